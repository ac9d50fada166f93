#include "plan/clip/clip_rule.hpp"

#include "arithmetic/clip.hpp"
#include "base/assert.hpp"

#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

namespace gradsync::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The threshold that the norm is compared with, and its name.
struct Limit {
  double value = kInfinity;
  std::string_view name = "max_norm";
};

/// Empty: the norm is measured only.
std::optional<Limit> limit_of(const ClipRule& rule, double norm) {
  std::optional<Limit> limit;
  if (rule.max_norm && (*rule.max_norm != 0 || rule.zero_rule != ZeroRule::Off)) {
    limit = Limit{*rule.max_norm};
  }
  if (rule.bound.kind == ClipBound::Kind::None) {
    return limit;
  }
  const double threshold = rule.bound.threshold(norm);
  if (!limit || threshold < limit->value) {
    limit =
        Limit{threshold, rule.bound.kind == ClipBound::Kind::Percentile ? "the percentile" : "the z-score threshold"};
  }
  return limit;
}

/// Replaces the reason, in the memory it has: a steady step allocates nothing.
template <typename... Args>
void say(ClipOutcome& outcome, fmt::format_string<Args...> text, Args&&... args) {
  outcome.reason.clear();
  outcome.reason.reserve(kReasonBytes);
  fmt::format_to(std::back_inserter(outcome.reason), text, std::forward<Args>(args)...);
}

/// A number as text, without the heap.
class NumberText {
 public:
  template <typename Number>
  explicit NumberText(Number number) : size_(fmt::format_to_n(text_, sizeof text_, FMT_COMPILE("{}"), number).size) {}

  [[nodiscard]] std::string_view view() const { return {text_, size_}; }

 private:
  char text_[32];  // a double has 24 at most
  std::size_t size_;
};

/// The norm as a float32, which is shorter, unless that text would look equal to a threshold that it is not.
NumberText norm_text(double norm, double threshold, DType dtype) {
  if (dtype == DType::Float64 || !(norm <= arithmetic::kFloatMax)) {
    return NumberText(norm);
  }
  const NumberText shorter(static_cast<float>(norm));
  return norm == threshold || shorter.view() != NumberText(threshold).view() ? shorter : NumberText(norm);
}

void say_compared(const Limit& limit, DType dtype, ClipOutcome& outcome) {
  say(outcome,
      "norm {} {} {} {}",
      norm_text(outcome.norm, limit.value, dtype).view(),
      outcome.clipped ? "exceeds" : "is within",
      limit.name,
      limit.value);
}

void say_not_finite(std::string_view consequence, ClipOutcome& outcome) {
  say(outcome, "norm is not finite: {} ({})", outcome.norm, consequence);
}

void say_decided(const ClipRule& rule, const std::optional<Limit>& limit, ClipOutcome& outcome) {
  if (limit && std::isfinite(outcome.norm)) {
    say_compared(*limit, rule.norm_dtype, outcome);
  } else if (limit && rule.mode == ClipMode::Strict) {
    say_not_finite("formula strict does not clip by it", outcome);
  } else if (limit) {
    say_not_finite(
        std::isnan(outcome.coefficient) ? "formula torch multiplies by NaN" : "formula torch multiplies by 0", outcome
    );
  } else if (!std::isfinite(outcome.norm)) {
    say_not_finite("no max_norm: measured only", outcome);
  } else {
    say(outcome, "{}: measured only", rule.max_norm ? "max_norm 0 means off" : "no max_norm");
  }
}

arithmetic::NormType type_of(DType dtype) {
  return dtype == DType::Float64 ? arithmetic::NormType::Float64 : arithmetic::NormType::Float32;
}

arithmetic::ClipLimit numbers_of(const ClipRule& rule, const std::optional<Limit>& limit) {
  const auto mode = !limit                         ? arithmetic::ClipMode::MeasureOnly
                    : rule.mode == ClipMode::Torch ? arithmetic::ClipMode::Torch
                                                   : arithmetic::ClipMode::Strict;
  return {limit ? limit->value : kInfinity, mode, type_of(rule.norm_dtype)};
}

void multiply_by(double factor, StepAction action, ClipOutcome& outcome) {
  outcome.coefficient = factor;
  outcome.multiplier = factor;
  outcome.multiply = false;
  outcome.action = action;
}

std::string_view consequence_of(StepAction action) {
  switch (action) {
    case StepAction::Step:
      return "the step is done";
    case StepAction::Zero:
      return "the gradients of the group become 0";
    case StepAction::Skip:
      return "the step is skipped";
    case StepAction::Raise:
      return "an error is raised, no optimizer steps";
  }
  GRADSYNC_ASSERT(false, "every StepAction has a consequence");
}

void act_on_nonfinite(NonfiniteAction action, ClipOutcome& outcome) {
  constexpr StepAction kActions[] = {StepAction::Step, StepAction::Skip, StepAction::Zero, StepAction::Raise};
  const StepAction wanted = kActions[static_cast<std::size_t>(action)];
  if (wanted != StepAction::Step) {
    multiply_by(wanted == StepAction::Zero ? 0 : 1, wanted, outcome);
    say_not_finite(consequence_of(wanted), outcome);
  }
}

void act_on_spike(const ClipRule& rule, ClipOutcome& outcome) {
  outcome.spike = true;
  if (rule.spike == SpikeAction::Clip) {
    return;
  }
  multiply_by(1, rule.spike == SpikeAction::Skip ? StepAction::Skip : StepAction::Raise, outcome);
  say(outcome,
      "norm {} is a spike, above {} ({})",
      norm_text(outcome.norm, rule.spike_above, rule.norm_dtype).view(),
      rule.spike_above,
      consequence_of(outcome.action));
}

}  // namespace

double reported_norm(double raw_norm, double scale, DType norm_dtype) {
  return arithmetic::reported_norm(raw_norm, scale, type_of(norm_dtype));
}

ClipOutcome apply_clip_rule(const ClipRule& rule, double raw_norm, double scale) {
  ClipOutcome outcome;
  apply_clip_rule(rule, raw_norm, scale, outcome);
  return outcome;
}

void apply_clip_rule(const ClipRule& rule, double raw_norm, double scale, ClipOutcome& outcome) {
  const std::optional<Limit> limit = limit_of(rule, reported_norm(raw_norm, scale, rule.norm_dtype));
  const arithmetic::Clipping found = arithmetic::clip(numbers_of(rule, limit), raw_norm, scale);

  ClipOutcome fresh;
  fresh.reason.swap(outcome.reason);
  outcome = std::move(fresh);
  outcome.norm = found.norm;
  outcome.threshold = found.threshold;
  outcome.coefficient = found.coefficient;
  outcome.multiplier = found.multiplier;
  outcome.multiply = found.multiply != 0;
  outcome.clipped = found.clipped != 0;
  say_decided(rule, limit, outcome);
  if (!std::isfinite(outcome.norm)) {
    act_on_nonfinite(rule.nonfinite, outcome);
  } else if (outcome.norm > rule.spike_above) {
    act_on_spike(rule, outcome);
  }
}

void decide_together(std::span<ClipOutcome> outcomes) {
  // A norm beside one that is not finite is no spike to be trusted: what overflows in one group is large in others.
  const auto weight = [](const ClipOutcome& outcome) {
    const int action = outcome.action == StepAction::Raise ? 2 : outcome.action == StepAction::Skip ? 1 : 0;
    return action == 0 || std::isfinite(outcome.norm) ? action : action + 2;
  };
  const auto deciding = std::max_element(outcomes.begin(), outcomes.end(), [&](const auto& a, const auto& b) {
    return weight(a) < weight(b);
  });
  if (deciding == outcomes.end() || weight(*deciding) == 0) {
    return;
  }
  const ClipOutcome decided = *deciding;
  for (ClipOutcome& outcome : outcomes) {
    if (outcome.action != decided.action) {
      outcome.reason = decided.reason;
    }
    multiply_by(1, decided.action, outcome);
    outcome.decides = &outcome == &*deciding;
  }
}

}  // namespace gradsync::plan
