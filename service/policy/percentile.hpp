#pragma once
// Clips what lies above a percentile of the last norms. Pure; one owner, one thread.
//
// The order of one step: the threshold is of the norms before this one; the norm of the step, as it was before
// clipping, is recorded after it. Before `warmup` norms there is no threshold, nor where it would be 0: norms of a
// group that took no part so far must not make its first gradients 0.

#include "base/error.hpp"
#include "plan/clip/clip_bound.hpp"
#include "plan/policy_options.hpp"
#include "policy/norm_window.hpp"

#include <span>
#include <vector>

namespace gradsync::policy {

class Percentile {
 public:
  explicit Percentile(const plan::PercentilePolicy& options)
      : options_(options), window_(static_cast<std::size_t>(options.window)) {}

  [[nodiscard]] plan::ClipBound bound() const;

  /// A finite norm ≥ 0.
  void record(double norm) { window_.push(norm); }

  /// Appends what `restore` takes: the norms, the oldest first.
  void save(std::vector<double>& state) const { window_.append_to(state); }

  /// Errors: InvalidParams for more norms than the window holds, or values that are no norms; then nothing changes.
  [[nodiscard]] Result<void> restore(std::span<const double> state);

 private:
  plan::PercentilePolicy options_;
  NormWindow window_;
};

}  // namespace gradsync::policy
