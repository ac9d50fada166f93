#include "policy/percentile.hpp"

#include "policy/state_bytes.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace gradsync::policy {

namespace {

/// Equal states have equal bytes, so NaN has one pattern.
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool is_the_nan(double norm) { return std::bit_cast<std::uint64_t>(norm) == std::bit_cast<std::uint64_t>(kNaN); }

}  // namespace

plan::ClipBound Percentile::bound() const {
  plan::ClipBound bound;
  if (window_.size() < static_cast<std::size_t>(options_.warmup)) {
    return bound;
  }
  const double threshold = window_.percentile(options_.percentile);
  if (std::isfinite(threshold) && (threshold > 0 || to_the_letter_)) {
    bound.kind = plan::ClipBound::Kind::Percentile;
    bound.begin = threshold;
  }
  return bound;
}

void Percentile::record(double norm) { window_.push(std::isnan(norm) ? kNaN : norm); }

bool Percentile::is_recorded(double norm) const {
  return norm >= 0 ? std::isfinite(norm) || to_the_letter_ : to_the_letter_ && is_the_nan(norm);
}

Result<void> Percentile::restore(std::span<const double> state) {
  if (state.size() > window_.capacity()) {
    return invalid_params(
        "state",
        fmt::format("the state has {} norms, and the window {}", state.size(), window_.capacity()),
        "import it with the window it was exported with"
    );
  }
  NormWindow window(window_.capacity());
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!is_recorded(state[i])) {
      const char* expected = to_the_letter_ ? "a number >= 0 or NaN" : "a finite number >= 0";
      return damaged_state(fmt::format("norm {} of the state is {}, {} is expected", i, state[i], expected));
    }
    window.push(state[i]);
  }
  window_ = std::move(window);
  return {};
}

}  // namespace gradsync::policy
