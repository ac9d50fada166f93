#pragma once
// The memory of a clip group, and the rule it makes of that for the next norm. Pure; one owner, one thread.
//
// A step: `rule()` before the norm; `plan::apply_clip_rule` on the norm, `plan::decide_together` on all groups;
// `record` once, when the step is done for good. A policy that only watches does the same with its own rule:
// its outcome is what it would have done, and that is what it records.

#include "base/error.hpp"
#include "plan/clip/clip_rule.hpp"
#include "policy/percentile.hpp"
#include "policy/zscore.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace gradsync::policy {

/// Norms that have risen for good must not stop the training: after so many skips in a row, spikes are clipped and
/// recorded until a norm is no spike.
inline constexpr std::uint32_t kMaxSpikeSkips = 5;

class Policy {
 public:
  /// `clip` was checked by plan::check_policies; its `watch` is not used here. Norms are of type `norm_type`.
  Policy(const plan::ClipOptions& clip, plan::ClipMode mode, plan::DType norm_dtype, double norm_type = 2);

  /// Makes the rule for the next norm, with `max_norm` as declared.
  [[nodiscard]] plan::ClipRule rule() const;

  /// The outcome of a step that is done: what was decided with this policy's rule, and together with the other groups.
  /// The norm is remembered as it was reported, before clipping; one that is not finite, or of a step that was skipped
  /// or raised, is not, except by a policy that takes every norm.
  void record(const plan::ClipOutcome& outcome);

  /// Auto gradient clipping does.
  [[nodiscard]] bool takes_every_norm() const;

  /// All it remembers, with its settings and a checksum: bytes that `restore` takes on any machine. Equal states have
  /// equal bytes.
  void save(std::string& bytes) const;

  /// Continues where the state was saved, bit for bit. Errors: InvalidParams for bytes that are damaged, of another
  /// version, policy, window or other setting, each named; then nothing changes.
  [[nodiscard]] Result<void> restore(std::string_view bytes);

 private:
  struct Stateless {};

  plan::ClipOptions clip_;
  plan::ClipMode mode_;
  plan::DType norm_dtype_;
  std::string settings_;  ///< on which a state depends: with others its numbers mean something else
  std::variant<Stateless, Percentile, ZScore> memory_;
  std::uint32_t skips_ = 0;  ///< spikes skipped since the last norm that was none
};

/// Whether a saved state is that of a policy that remembers norms.
[[nodiscard]] bool remembers_norms(std::string_view state);

}  // namespace gradsync::policy
