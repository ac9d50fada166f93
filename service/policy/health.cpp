#include "policy/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

namespace gradsync::policy {

namespace {

constexpr std::int64_t kLeastSteps = 100;
constexpr std::int64_t kMostSteps = 1000;
constexpr double kFarDeviations = 6;
constexpr double kMostCorrelated = 0.98;
constexpr double kCollapse = 10;
constexpr int kRisingWindows = 3;
constexpr double kRise = 1.1;  // in each of them
constexpr double kRisingFactor = 2;

double share(std::int64_t part, std::int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

/// Norms of neighbouring steps are alike, and so clips come together: the correlation of a clip with the next one, from
/// 0 to 0.98.
double clips_correlation(const ClipWindow& window) {
  const double rate = share(window.own_clipped, window.own_steps);
  if (rate == 0 || rate == 1) {
    return 0;
  }
  const double both = share(window.own_pairs, window.own_steps);
  return std::clamp((both - rate * rate) / (rate * (1 - rate)), 0.0, kMostCorrelated);
}

}  // namespace

std::string_view name_of(Sign sign) {
  switch (sign) {
    case Sign::ClipRate:
      return "clip_rate";
    case Sign::ThresholdCollapsing:
      return "threshold_collapsing";
    case Sign::AtCeiling:
      return "at_ceiling";
    case Sign::NormsRising:
      return "norms_rising";
  }
  return "";
}

Health::Health(const plan::PolicyOptions& policy)
    : adaptive_(plan::percentile_in(policy) != nullptr || std::holds_alternative<plan::ZScorePolicy>(policy)) {
  if (const plan::PercentilePolicy* percentile = plan::percentile_in(policy)) {
    size_ = std::clamp(percentile->window, kLeastSteps, kMostSteps);
    // The place of the percentile among `window` norms; the next norm falls between any two of them alike often.
    const auto norms = static_cast<double>(percentile->window);
    expected_rate_ = 1 - (percentile->percentile / 100 * (norms - 1) + 1) / (norms + 1);
  }
}

Health::Changes Health::observe(const ClipStep& step) {
  if (!std::isfinite(step.norm)) {
    return {};
  }
  ++now_.steps;
  now_.clipped += step.clipped ? 1 : 0;
  now_.threshold = step.threshold;
  now_.lowest = std::min(now_.lowest, step.threshold);
  now_.highest = std::max(now_.highest, step.threshold);
  now_.own = step.own;
  const bool has_own = std::isfinite(step.own);
  if (has_own && step.own < step.ceiling) {
    ++now_.own_steps;
    now_.own_clipped += step.clipped ? 1 : 0;
    now_.own_pairs += step.clipped && clipped_before_ ? 1 : 0;
  }
  clipped_before_ = step.clipped;
  const bool limited = std::isfinite(step.ceiling) && step.ceiling > 0;
  now_.at_ceiling += limited && (adaptive_ ? has_own && step.own >= step.ceiling : step.clipped) ? 1 : 0;
  if (step.norm > 0) {
    ++now_.norms;
    now_.log_norms += std::log(step.norm);
  }
  if (now_.steps < size_) {
    return {};
  }
  const Signs before = signs_;
  judge();
  return {signs_ & ~before, before & ~signs_};
}

/// The window that is full becomes the last whole one.
void Health::judge() {
  own_before_ = whole_ ? whole_->own : std::numeric_limits<double>::infinity();
  whole_ = now_;
  now_ = {};
  const auto set = [this](Sign sign, bool present) { signs_.set(static_cast<std::size_t>(sign), present); };
  set(Sign::ClipRate, clip_rate_is_far());
  set(Sign::ThresholdCollapsing, adaptive_ && std::isfinite(own_before_) && whole_->own * kCollapse < own_before_);
  set(Sign::AtCeiling, whole_->at_ceiling == whole_->steps);
  set(Sign::NormsRising, norms_rise());
}

bool Health::clip_rate_is_far() const {
  if (!expected_rate_ || 2 * whole_->own_steps < whole_->steps) {
    return false;  // where the ceiling decides, more are clipped
  }
  const double correlation = clips_correlation(*whole_);
  const double steps = static_cast<double>(whole_->own_steps) * (1 - correlation) / (1 + correlation);
  const double deviation = std::sqrt(*expected_rate_ * (1 - *expected_rate_) / steps);
  return std::abs(share(whole_->own_clipped, whole_->own_steps) - *expected_rate_) > kFarDeviations * deviation;
}

bool Health::norms_rise() {
  const std::optional<double> before = log_mean_;
  log_mean_.reset();
  if (whole_->norms > 0) {
    log_mean_ = whole_->log_norms / static_cast<double>(whole_->norms);
  }
  if (!before || !log_mean_ || *log_mean_ - *before < std::log(kRise)) {
    rises_ = 0;
    log_base_ = log_mean_.value_or(0);
    return false;
  }
  ++rises_;
  return rises_ >= kRisingWindows && *log_mean_ - log_base_ >= std::log(kRisingFactor);
}

std::string Health::words(Sign sign) const {
  const ClipWindow& last = window();
  const double percent = 100 * last.clip_rate();
  switch (sign) {
    case Sign::ClipRate: {
      const double rate = last.own_steps == 0 ? 0 : share(last.own_clipped, last.own_steps);
      const double expected = expected_rate_.value_or(0);
      return fmt::format(
          "{:.3g} % of {} steps were clipped by the percentile, {:.3g} % are expected{}",
          100 * rate,
          last.own_steps,
          100 * expected,
          !has(sign)        ? ""
          : rate > expected ? ": norms rise faster than the window forgets"
                            : ": norms fall"
      );
    }
    case Sign::ThresholdCollapsing:
      return fmt::format(
          "the threshold went from {:.6g} to {:.6g} in {} steps{}",
          own_before_,
          last.own,
          last.steps,
          has(sign) ? ": gradients vanish, or the loss scale is wrong" : ""
      );
    case Sign::AtCeiling:
      return fmt::format(
          "max_norm decided in {} of {} steps, and {:.3g} % were clipped{}",
          last.at_ceiling,
          last.steps,
          percent,
          has(sign) ? ": norms are above it" : ""
      );
    case Sign::NormsRising:
      if (!has(sign)) {
        return fmt::format("the geometric mean of the norms is {:.6g}", std::exp(log_mean_.value_or(0)));
      }
      return fmt::format(
          "norms rose in {} windows of {} steps, from {:.6g} to {:.6g} in the geometric mean",
          rises_,
          last.steps,
          std::exp(log_base_),
          std::exp(*log_mean_)
      );
  }
  return {};
}

}  // namespace gradsync::policy
