#include "policy/zscore.hpp"

#include "policy/state_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gradsync::policy {

namespace {

/// A value that `record` accepts. Any mean of such values is one too, and the squares of a warm-up can be added up.
bool is_norm(double value) { return value >= 0 && value <= 1e150; }

}  // namespace

ZScore::ZScore(const plan::ZScorePolicy& options) : options_(options) {
  first_.reserve(static_cast<std::size_t>(options.warmup));
}

plan::ClipBound ZScore::bound() const {
  plan::ClipBound bound;
  if (begun_ && variance_ > 0) {
    bound.kind = plan::ClipBound::Kind::ZScore;
    bound.mean = mean_;
    bound.deviation = std::sqrt(variance_);
    bound.z = options_.z;
    bound.begin = mean_ + options_.z * (bound.deviation + plan::kScoreEpsilon);
  }
  return bound;
}

void ZScore::record(double norm) {
  if (!is_norm(norm)) {
    return;
  }
  if (!begun_) {
    first_.push_back(norm);
    if (first_.size() >= static_cast<std::size_t>(options_.warmup)) {
      begin();
    }
    return;
  }
  const double value = std::min(norm, bound().threshold(norm));
  mean_ = options_.alpha * mean_ + (1 - options_.alpha) * value;
  variance_ = options_.alpha * variance_ + (1 - options_.alpha) * ((value - mean_) * (value - mean_));
}

void ZScore::begin() {
  const auto count = static_cast<double>(first_.size());
  double sum = 0;
  for (const double norm : first_) {
    sum += norm;
  }
  mean_ = sum / count;
  double squares = 0;
  for (const double norm : first_) {
    squares += (norm - mean_) * (norm - mean_);
  }
  variance_ = squares / count;
  begun_ = true;
  first_.clear();
}

void ZScore::save(std::vector<double>& state) const {
  state.push_back(begun_ ? 1 : 0);
  if (begun_) {
    state.insert(state.end(), {mean_, variance_});
  } else {
    state.insert(state.end(), first_.begin(), first_.end());
  }
}

Result<void> ZScore::restore(std::span<const double> state) {
  const bool begun = !state.empty() && state.front() == 1;
  if (state.empty() || (!begun && (state.front() != 0 || std::signbit(state.front())))) {
    return damaged_state("the state of a z-score says neither that its warm-up lasts nor that it is over");
  }
  const std::span<const double> values = state.subspan(1);
  if (begun ? values.size() != 2 : values.size() >= static_cast<std::size_t>(options_.warmup)) {
    return damaged_state(fmt::format(
        "the state of a z-score has {} numbers {} a warm-up of {}",
        values.size(),
        begun ? "after" : "within",
        options_.warmup
    ));
  }
  const std::span<const double> norms = begun ? values.first(1) : values;
  if (const auto bad = std::find_if_not(norms.begin(), norms.end(), is_norm); bad != norms.end()) {
    return damaged_state(fmt::format("a norm of the state is {}, a finite number >= 0 is expected", *bad));
  }
  if (begun && !(values[1] >= 0 && std::isfinite(values[1]))) {
    return damaged_state(fmt::format("the variance of the state is {}, a finite number >= 0 is expected", values[1]));
  }
  begun_ = begun;
  mean_ = begun ? values[0] : 0;
  variance_ = begun ? values[1] : 0;
  first_.assign(values.begin(), begun ? values.begin() : values.end());
  return {};
}

}  // namespace gradsync::policy
