#pragma once
// Clips what lies above a percentile of the last norms. Pure; one owner, one thread.
//
// The order of one step: the threshold is of the norms before this one; the norm of the step, as it was before
// clipping, is recorded after it. Before `warmup` norms there is no threshold, nor where it would be 0: norms of a
// group that took no part so far must not make its first gradients 0.
//
// Auto gradient clipping is the same, but keeps to the letter of its source, min(ceiling, percentile) of a list to
// which every norm is appended: 0 is a threshold, and where the percentile is not finite there is none, which is what
// Python's min makes of it.

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

  explicit Percentile(const plan::AutoPolicy& options)
      : options_(options), to_the_letter_(true), window_(static_cast<std::size_t>(options.window)) {}

  [[nodiscard]] plan::ClipBound bound() const;

  /// Whether `record` is for every norm, also of a step that no optimizer makes, and for those that are not finite.
  [[nodiscard]] bool takes_every_norm() const { return to_the_letter_; }

  /// A norm ≥ 0, finite unless it takes every norm.
  void record(double norm);

  /// Appends what `restore` takes: the norms, the oldest first.
  void save(std::vector<double>& state) const { window_.append_to(state); }

  /// Errors: InvalidParams for more norms than the window holds, or values that are no norms; then nothing changes.
  [[nodiscard]] Result<void> restore(std::span<const double> state);

 private:
  [[nodiscard]] bool is_recorded(double norm) const;

  plan::PercentilePolicy options_;
  bool to_the_letter_ = false;  ///< auto gradient clipping
  NormWindow window_;
};

}  // namespace gradsync::policy
