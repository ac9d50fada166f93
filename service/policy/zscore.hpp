#pragma once
// ZClip: clips a norm that is more than z deviations above the moving mean (Kumar, Owen, Chowdhury, Güra, 2025). Pure;
// one owner, one thread.
//
// This follows the authors' code, bluorion-com/ZClip at 1acb0857, mode "zscore", option "adaptive_scaling", factor 1:
//   the first `warmup` norms give mean and variance (of the population); from then on
//   score = (norm − mean) / (√variance + 1e-6)
//   value = norm where score ≤ z, else mean + z · √variance / (score / z)     the threshold, ClipBound
//   mean = α · mean + (1 − α) · value, variance = α · variance + (1 − α) · (value − mean)², with the new mean.
// The ceiling is applied afterwards and is not fed back, because with it the variance would collapse.
// Three things differ: a norm that is not finite or above 1e150 is left out; without a deviation there is no
// threshold (else norms that were equal so far, for instance 0, would be clipped to their mean for ever); numbers are
// float64.

#include "base/error.hpp"
#include "plan/clip/clip_bound.hpp"
#include "plan/policy_options.hpp"

#include <span>
#include <vector>

namespace gradsync::policy {

class ZScore {
 public:
  explicit ZScore(const plan::ZScorePolicy& options);

  /// There is none before `warmup` norms, and where they do not deviate.
  [[nodiscard]] plan::ClipBound bound() const;

  /// A finite norm ≥ 0, before clipping.
  void record(double norm);

  /// Appends what `restore` takes: 0 and the norms of the warm-up, or 1, mean and variance.
  void save(std::vector<double>& state) const;

  /// Errors: InvalidParams for what `save` does not write; then nothing changes.
  [[nodiscard]] Result<void> restore(std::span<const double> state);

 private:
  void begin();

  plan::ZScorePolicy options_;
  std::vector<double> first_;  ///< norms of the warm-up; empty after it
  bool begun_ = false;
  double mean_ = 0;
  double variance_ = 0;
};

}  // namespace gradsync::policy
