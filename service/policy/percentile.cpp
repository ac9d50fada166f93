#include "policy/percentile.hpp"

#include "policy/state_bytes.hpp"

#include <fmt/format.h>

#include <cmath>

namespace gradsync::policy {

plan::ClipBound Percentile::bound() const {
  plan::ClipBound bound;
  if (window_.size() < static_cast<std::size_t>(options_.warmup)) {
    return bound;
  }
  if (const double threshold = window_.percentile(options_.percentile); threshold > 0) {
    bound.kind = plan::ClipBound::Kind::Percentile;
    bound.begin = threshold;
  }
  return bound;
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
    if (!(state[i] >= 0 && std::isfinite(state[i]))) {
      return damaged_state(fmt::format("norm {} of the state is {}, a finite number >= 0 is expected", i, state[i]));
    }
    window.push(state[i]);
  }
  window_ = std::move(window);
  return {};
}

}  // namespace gradsync::policy
