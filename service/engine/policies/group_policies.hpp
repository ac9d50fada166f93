#pragma once
// The policies of a job: of every clip group the one that decides, and those that watch. Pure; one owner, one thread.
//
// A step: `rules` before the norm; the lane applies them and decides the groups together; `prepare` once, and then
// `commit` when the step is done for good. Where it is not, `restore` with what `save` said before it. A watcher goes
// by its own rule and its own group alone, with the norm that was measured: what it would have done is what `policy
// replay` says of the same norms.

#include "base/error.hpp"
#include "engine/report/report.hpp"
#include "plan/plan.hpp"
#include "policy/health.hpp"
#include "policy/policy.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::engine {

/// A step's own `max_norm`, of the first `groups` clip groups: it takes the place of the declared one, as the threshold
/// of a fixed policy and the ceiling of an adaptive one. A policy that observes has none.
struct StepMaxNorm {
  std::optional<double> max_norm;  ///< empty: no limit
  std::size_t groups = 0;          ///< 0: all as declared
};

/// A step that is about to be done. One outcome and one norm per clip group.
struct DoneStep {
  std::span<const plan::ClipOutcome> outcomes;  ///< by `rules` with the same `max_norm`, and decided together
  std::span<const double> raw_norms;            ///< as plan::apply_clip_rule takes them
  double scale = 1;
  bool scaled = false;  ///< a loss scaler skips the step where a norm is not finite: policies do not record it then,
                        ///< except those that take every norm
  StepMaxNorm max_norm = {};
};

/// Signs of a policy that began or ended with a step.
struct HealthChange {
  std::size_t group = 0;
  std::size_t policy = 0;  ///< 0: the one that decides; then those that watch
  policy::Health::Changes signs;
};

/// What is known of a step between `prepare` and `commit`. To be used again for the next, because it has memory.
struct PreparedStep {
  std::vector<std::vector<plan::ClipOutcome>> watched;  ///< by clip group, in the order declared
  std::vector<policy::ClipStep> steps;  ///< by clip group and policy, for their health; none where no policy records
  std::vector<HealthChange> changes;    ///< by `commit`
};

class GroupPolicies {
 public:
  /// `plan` of a declaration that was checked. Watchers have the group's max_norm and its settings for spikes and for
  /// norms that are not finite.
  explicit GroupPolicies(const plan::Plan& plan);

  GroupPolicies(GroupPolicies&&) = default;
  GroupPolicies& operator=(GroupPolicies&&) = default;
  GroupPolicies(const GroupPolicies&) = delete;  // a copy would allocate where it records
  GroupPolicies& operator=(const GroupPolicies&) = delete;

  /// Errors: InvalidParams with path `max_norm`, of the first group that it cannot be for.
  [[nodiscard]] Result<void> check(const StepMaxNorm& max_norm) const;

  /// Replaces `rules`: one per clip group, by the policies that decide. `max_norm` as checked.
  void rules(const StepMaxNorm& max_norm, std::vector<plan::ClipRule>& rules) const;

  /// Replaces `prepared`: what each watcher would have done. Then all record, or, where memory for that ran out and it
  /// throws, none.
  void prepare(const DoneStep& step, PreparedStep& prepared);

  /// The step that was prepared last is done: says which signs of health changed. It takes no memory.
  void commit(PreparedStep& prepared);

  /// "clip group 'all', percentile 95, …" of a change, and what its window shows of the sign.
  [[nodiscard]] std::string words(const HealthChange& change, policy::Sign sign) const;

  /// By clip group the policy that decides and those that watch; the first 16 of them.
  [[nodiscard]] std::vector<ClipStatus> status() const;

  /// Signs and windows of the groups of an earlier plan that are declared as before.
  void continue_health(GroupPolicies&& before);

  /// Replaces `bytes`: all that is remembered, with names and settings. Equal states have equal bytes. Returns their
  /// digest, at no further cost.
  std::string save(std::string& bytes) const;

  /// Continues where the state was saved, bit for bit. Errors: InvalidParams with path `state` for bytes that are
  /// damaged, of other clip groups, or of other policies, each named; then nothing changes.
  [[nodiscard]] Result<void> restore(std::string_view bytes);

  /// Whether any of them remembers norms.
  [[nodiscard]] bool remember() const;

  /// 16 hex digits over all that `save` writes.
  [[nodiscard]] std::string digest() const;

  /// Continues what policies of an earlier plan of the job remembered. In a clip group of the same name each policy
  /// takes the state of one with equal settings, rather of the one in its place; those that find none begin anew.
  /// False: some norms are remembered no more. Errors: InvalidParams with path `state` for bytes that are damaged.
  [[nodiscard]] Result<bool> take_over(std::string_view saved);

 private:
  struct Group {
    std::string name;
    plan::ClipOptions clip;
    plan::DType norm_dtype = plan::DType::Float32;
    std::vector<policy::Policy> policies;  ///< the one that decides, then those that watch
    std::vector<policy::Health> health;    ///< of each
  };

  void record_overflow(const DoneStep& step, const PreparedStep& prepared);
  [[nodiscard]] std::vector<policy::Policy> new_policies(const Group& group) const;
  [[nodiscard]] Result<std::vector<policy::Policy>> restored_policies(
      const Group& group, const std::vector<std::string_view>& states
  ) const;
  [[nodiscard]] plan::ClipRule rule(std::size_t group, std::size_t policy, const StepMaxNorm& step) const;
  [[nodiscard]] const plan::PolicyOptions& options(std::size_t group, std::size_t policy) const;

  plan::ClipMode mode_;
  double norm_type_;
  std::vector<Group> groups_;
};

}  // namespace gradsync::engine
