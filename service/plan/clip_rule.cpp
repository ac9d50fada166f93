#include "plan/clip_rule.hpp"

#include "base/assert.hpp"

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
constexpr double kFloatMax = std::numeric_limits<float>::max();

/// Rounds to nearest like a cast, but defined for values beyond the range of float: they stay what they are when
/// not finite and become the largest float when finite.
float nearest_float(double value) {
  if (std::isfinite(value)) {
    return static_cast<float>(std::clamp(value, -kFloatMax, kFloatMax));
  }
  if (std::isnan(value)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return value > 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
}

/// The largest value of `dtype`'s precision that is not above `value` (which is ≥ 0).
double round_down(double value, DType dtype) {
  if (dtype == DType::Float64) {
    return value;
  }
  const float nearest = nearest_float(value);
  return static_cast<double>(nearest) > value ? std::nextafter(nearest, 0.0F) : nearest;
}

/// A finite norm above the range of float32 stays a float64: it must neither become infinite nor pretend to be less.
double round_norm(double norm, DType dtype) {
  return dtype == DType::Float64 || (std::isfinite(norm) && norm > kFloatMax) ? norm : nearest_float(norm);
}

/// `min(1, max_norm / (norm + 1e-6))` as torch evaluates it for a 0-dim tensor of type T: `scalar / tensor` is
/// `tensor.reciprocal() * scalar`, each operation rounded to T, and clamp lets NaN through.
template <typename T>
double torch_coefficient(T norm, T max_norm) {
  const T shifted = norm + static_cast<T>(1e-6);
  const T reciprocal = T{1} / shifted;
  const T coefficient = reciprocal * max_norm;
  return coefficient > T{1} ? 1.0 : static_cast<double>(coefficient);
}

double next_below(double value, DType dtype) {
  return dtype == DType::Float64 ? std::nextafter(value, 0.0) : std::nextafter(static_cast<float>(value), 0.0F);
}

/// The largest factor of `dtype`'s precision, not above `factor`, that takes `norm` to no more than max_norm.
double shrink_to_fit(double factor, double norm, double max_norm, DType dtype) {
  factor = round_down(factor, dtype);
  while (factor > 0 && factor * norm > max_norm) {
    factor = next_below(factor, dtype);
  }
  return factor;
}

/// Rounded down, so that `coefficient * norm ≤ max_norm` holds for the norm that was measured, not only for the one
/// that is reported: rounding to nearest would leave half of all clipped steps a little above the threshold.
double strict_coefficient(double max_norm, double measured, double reported, DType dtype) {
  return shrink_to_fit(std::min(max_norm / reported, max_norm / measured), measured, max_norm, dtype);
}

/// What the norm is compared with, and its name.
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
  explicit NumberText(Number number) : size_(fmt::format_to_n(text_, sizeof text_, "{}", number).size) {}

  [[nodiscard]] std::string_view view() const { return {text_, size_}; }

 private:
  char text_[32];  // a double has 24 at most
  std::size_t size_;
};

/// Whether the norm is said as a float32, which is shorter, and does not look equal to the threshold unless it is.
bool is_said_short(double norm, double threshold, DType dtype) {
  return dtype != DType::Float64 && norm <= kFloatMax &&
         (norm == threshold || NumberText(static_cast<float>(norm)).view() != NumberText(threshold).view());
}

/// The shortest text that reads back as the norm; longer where that text would look equal to the threshold.
NumberText norm_text(double norm, double threshold, DType dtype) {
  return is_said_short(norm, threshold, dtype) ? NumberText(static_cast<float>(norm)) : NumberText(norm);
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

void decide_strict(const Limit& limit, DType dtype, double measured, ClipOutcome& outcome) {
  if (!std::isfinite(outcome.norm)) {
    say_not_finite("strict mode does not clip by it", outcome);
    return;
  }
  say_compared(limit, dtype, outcome);
  if (outcome.clipped) {
    outcome.coefficient = strict_coefficient(limit.value, measured, outcome.norm, dtype);
  }
}

void decide_torch(const Limit& limit, DType dtype, ClipOutcome& outcome) {
  outcome.coefficient = dtype == DType::Float64
                            ? torch_coefficient<double>(outcome.norm, limit.value)
                            : torch_coefficient<float>(nearest_float(outcome.norm), nearest_float(limit.value));
  if (!std::isfinite(outcome.norm)) {
    say_not_finite(std::isnan(outcome.norm) ? "torch mode multiplies by NaN" : "torch mode multiplies by 0", outcome);
  } else {
    say_compared(limit, dtype, outcome);
  }
}

void say_measured(const ClipRule& rule, ClipOutcome& outcome) {
  if (!std::isfinite(outcome.norm)) {
    say_not_finite("no max_norm: measured only", outcome);
  } else {
    say(outcome, "{}: measured only", rule.max_norm ? "max_norm 0 means off" : "no max_norm");
  }
}

void multiply_by(double factor, StepAction action, ClipOutcome& outcome) {
  outcome.coefficient = factor;
  outcome.multiplier = factor;
  outcome.multiply = false;
  outcome.clipped = false;
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

/// A scale below 1 can lift a norm out of the doubles. It is then the largest of them, and clips by what is exact: the
/// norm before the division.
bool is_beyond(double raw_norm, double scale) { return std::isfinite(raw_norm) && std::isinf(raw_norm / scale); }

double measured_norm(double raw_norm, double scale) {
  return is_beyond(raw_norm, scale) ? std::numeric_limits<double>::max() : raw_norm / scale;
}

}  // namespace

double reported_norm(double raw_norm, double scale, DType norm_dtype) {
  return round_norm(measured_norm(raw_norm, scale), norm_dtype);
}

ClipOutcome apply_clip_rule(const ClipRule& rule, double raw_norm, double scale) {
  ClipOutcome outcome;
  apply_clip_rule(rule, raw_norm, scale, outcome);
  return outcome;
}

void apply_clip_rule(const ClipRule& rule, double raw_norm, double scale, ClipOutcome& outcome) {
  const bool beyond = is_beyond(raw_norm, scale);
  const double measured = measured_norm(raw_norm, scale);

  ClipOutcome fresh;
  fresh.reason.swap(outcome.reason);
  outcome = std::move(fresh);
  outcome.norm = round_norm(measured, rule.norm_dtype);
  const std::optional<Limit> limit = limit_of(rule, outcome.norm);
  const bool torch = rule.mode == ClipMode::Torch && limit;
  outcome.threshold = limit ? limit->value : kInfinity;
  outcome.clipped = outcome.norm > outcome.threshold;
  if (!limit) {
    say_measured(rule, outcome);
  } else if (torch) {
    decide_torch(*limit, rule.norm_dtype, outcome);
  } else {
    decide_strict(*limit, rule.norm_dtype, measured, outcome);
  }

  const double multiplier = outcome.coefficient / scale;
  if (outcome.clipped && std::isfinite(raw_norm) && (!torch || beyond)) {
    // What is multiplied is the stored values, so they are what must come to no more than max_norm.
    const double largest = limit->value / raw_norm;
    outcome.multiplier =
        shrink_to_fit(beyond ? largest : std::min(multiplier, largest), raw_norm, limit->value, rule.norm_dtype);
    outcome.coefficient = beyond ? outcome.multiplier * scale : outcome.coefficient;
  } else {
    outcome.multiplier =
        rule.norm_dtype == DType::Float64 ? multiplier : static_cast<double>(nearest_float(multiplier));
  }
  outcome.multiply = torch || outcome.multiplier != 1.0;

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
