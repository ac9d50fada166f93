#pragma once
// Keeps what the policies of one job remember: from plan to plan, on disk from daemon to daemon, and for checkpoints.
// Thread: io. A state is stored before any rank hears that the step is done.

#include "device/step_math.hpp"
#include "engine/metrics.hpp"
#include "engine/policies/group_policies.hpp"
#include "engine/policies/policy_file.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::engine {

/// The clipping options of a step's calls.
struct StepTerms {
  StepMaxNorm max_norm;
  double scale = 1.0;
  bool scaled = false;     ///< for a loss scaler, which takes no step after a norm that is not finite
  bool abandoned = false;  ///< the step ends as it is: no policy acts or remembers
};

class PolicyKeeper {
 public:
  struct Job {
    std::uint32_t uid = 0;
    std::string name;
    std::int64_t restart_count = 0;
  };

  using Alert = std::function<void(const char* kind, const std::string& what)>;

  /// `alert` hears in words what is lost (`policy_state`), and of signs of ill health (`clip_health`). `directory`:
  /// where states outlive the daemon; empty: nowhere.
  PolicyKeeper(Job job, std::string directory, PolicyMetrics& metrics, Alert alert);

  /// A new plan goes on with what was remembered under the one before it, the first of the job with the file.
  /// `last_done`: by rank, the step that the daemon before this one did.
  void adopt(const plan::Plan& plan, const std::vector<std::optional<StepKey>>& last_done);

  /// No step of the job will be done any more: another job may go on with the file.
  void release() { file_.reset(); }

  [[nodiscard]] Result<void> check(const StepMaxNorm& max_norm) const { return policies_->check(max_norm); }

  /// Replaces `rules`: one per clip group.
  void rules(const StepTerms& terms, std::vector<plan::ClipRule>& rules) const;
  /// Once for every step that is done, before anybody is told. Fills in what watchers would have done.
  void commit(const plan::Plan& plan, const device::StepMath& math, const StepTerms& terms, StepReport& report);

  [[nodiscard]] Result<PolicyExport> exported() const;
  /// A state that was tried with the plan, for the attempt that imports it.
  void import_state(const std::string& state, const StepKey& attempt);

  /// Empty before there is a plan.
  [[nodiscard]] std::vector<ClipStatus> status() const;

  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  void open_file(bool first, const std::vector<std::optional<StepKey>>& last_done);
  void recall(const std::vector<std::optional<StepKey>>& last_done);
  [[nodiscard]] bool take_over(std::string_view saved);
  void forget(const std::string& why);
  void wipe_file();
  void lose_file(const std::string& why);
  void store(const StepKey& attempt);
  void say_changes(std::int64_t step);

  const Job job_;
  const std::string directory_;
  PolicyMetrics& metrics_;
  const Alert alert_;
  std::optional<GroupPolicies> policies_;                ///< those of the last plan, with the state of earlier plans
  std::vector<std::vector<plan::ClipOutcome>> watched_;  ///< outcomes of the watching policies in the last step
  std::vector<HealthChange> changes_;                    ///< with the last step
  std::optional<PolicyFile> file_;
  bool file_tried_ = false;
  std::string saved_;   ///< the state of the policies after the last step
  std::string digest_;  ///< the digest of that state
};

}  // namespace gradsync::engine
