#include "app/replay/policy_text.hpp"

#include "plan/check/check_max_norm.hpp"
#include "plan/check/check_policy.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <charconv>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace gradsync::app {

namespace {

constexpr const char* kUsage = "example: percentile:percentile=95,window=1000,warmup=100,max_norm=1";

template <typename T>
std::optional<T> number_in(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

Error wrong(const std::string& name, std::string_view value, std::string_view expected) {
  return invalid_params(name, fmt::format("{} is '{}', {} is expected", name, value, expected), kUsage);
}

template <typename T>
Result<void> set_number(T& field, const std::string& name, std::string_view value) {
  const std::optional<T> number = number_in<T>(value);
  if (!number) {
    return wrong(name, value, std::is_integral_v<T> ? "a whole number" : "a number");
  }
  field = *number;
  return {};
}

template <typename Enum>
Result<void> set_name(
    Enum& field, const std::string& name, std::string_view value, std::initializer_list<Enum> values
) {
  std::string expected;
  for (const Enum candidate : values) {
    if (plan::name_of(candidate) == value) {
      field = candidate;
      return {};
    }
    expected += fmt::format("{}{}", expected.empty() ? "" : " | ", plan::name_of(candidate));
  }
  return wrong(name, value, expected);
}

/// nullopt: the policy has no such setting.
std::optional<Result<void>> set_own(plan::PolicyOptions& policy, const std::string& name, std::string_view value) {
  if (plan::PercentilePolicy* percentile = plan::percentile_in(policy)) {
    if (name == "percentile") {
      return set_number(percentile->percentile, name, value);
    }
    if (name == "window") {
      return set_number(percentile->window, name, value);
    }
    if (name == "warmup") {
      return set_number(percentile->warmup, name, value);
    }
  } else if (auto* zscore = std::get_if<plan::ZScorePolicy>(&policy)) {
    if (name == "z") {
      return set_number(zscore->z, name, value);
    }
    if (name == "alpha") {
      return set_number(zscore->alpha, name, value);
    }
    if (name == "warmup") {
      return set_number(zscore->warmup, name, value);
    }
  }
  return std::nullopt;
}

Result<void> set(NamedPolicy& policy, const std::string& name, std::string_view value) {
  using plan::ClipMode;
  using plan::NonfiniteAction;
  using plan::SpikeAction;
  using plan::ZeroRule;
  plan::ClipOptions& clip = policy.clip;
  if (name == "max_norm") {
    if (value == "none") {
      clip.max_norm.reset();
      return {};
    }
    return set_number(*(clip.max_norm = 1.0), name, value);
  }
  if (name == "formula" || name == "mode") {  // mode: its old name
    return set_name(policy.mode, name, value, {ClipMode::Strict, ClipMode::Torch});
  }
  if (name == "zero_rule") {
    return set_name(clip.zero_rule, name, value, {ZeroRule::Refuse, ZeroRule::Off, ZeroRule::Zero});
  }
  if (name == "nonfinite") {
    return set_name(
        clip.nonfinite,
        name,
        value,
        {NonfiniteAction::Propagate, NonfiniteAction::Skip, NonfiniteAction::Zero, NonfiniteAction::Raise}
    );
  }
  if (name == "spike") {
    return set_name(clip.spike, name, value, {SpikeAction::Clip, SpikeAction::Skip, SpikeAction::Raise});
  }
  if (name == "spike_factor") {
    return set_number(clip.spike_factor, name, value);
  }
  if (const auto own = set_own(clip.policy, name, value)) {
    return *own;
  }
  return invalid_params(name, fmt::format("policy {} has no setting '{}'", plan::name_of(clip.policy), name), kUsage);
}

Result<plan::PolicyOptions> kind_in(std::string_view name) {
  const plan::PolicyOptions kinds[] = {
      plan::FixedPolicy{}, plan::ObservePolicy{}, plan::PercentilePolicy{}, plan::ZScorePolicy{}, plan::AutoPolicy{}};
  for (const plan::PolicyOptions& kind : kinds) {
    if (plan::name_of(kind) == name) {
      return kind;
    }
  }
  return invalid_params(
      "policy", fmt::format("there is no policy '{}'", name), "fixed, observe, percentile, auto or zscore"
  );
}

}  // namespace

Result<NamedPolicy> read_policy(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const Result<plan::PolicyOptions> kind = kind_in(std::string_view(text).substr(0, colon));
  if (!kind) {
    return kind.error();
  }
  NamedPolicy policy{text, {}};
  policy.clip.max_norm = 1;
  policy.clip.policy = *kind;
  if (std::holds_alternative<plan::AutoPolicy>(*kind)) {  // what torch does is a part of it
    policy.clip.zero_rule = plan::ZeroRule::Zero;
    policy.mode = plan::ClipMode::Torch;
  }
  std::string_view rest = std::string_view(text).substr(colon == text.size() ? colon : colon + 1);
  while (!rest.empty()) {
    const std::string_view setting = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), setting.size() + 1));
    const std::size_t equals = setting.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return invalid_params("policy", fmt::format("'{}' is not name=value", setting), kUsage);
    }
    if (const auto done = set(policy, std::string(setting.substr(0, equals)), setting.substr(equals + 1)); !done) {
      return done.error();
    }
  }
  auto checked = plan::check_max_norm(policy.clip, "max_norm");
  if (checked) {
    checked = plan::check_policies(policy.clip, text);
  }
  if (!checked) {
    return checked.error();
  }
  return policy;
}

}  // namespace gradsync::app
