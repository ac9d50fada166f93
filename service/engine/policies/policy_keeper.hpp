#pragma once
// Keeps what the policies of one job remember: from plan to plan, on disk from daemon to daemon, and for checkpoints.
// Thread: io.
//
// A step: `rules`, `prepare`, then `commit` or `restore`. Everything that can fail, for want of room or of memory, is
// in `prepare`: a state is in the file before anybody can know that its step is done. Until `commit` the policies are
// at the state after the step, and what is exported is the state before it.

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

/// What a rank knows of the daemon before this one.
struct LastDone {
  std::int64_t rank = 0;
  StepKey step;  ///< the last that was done
};

class PolicyKeeper {
 public:
  struct Job {
    std::uint32_t uid = 0;
    std::string name;
    std::int64_t restart_count = 0;
    bool alone = true;  ///< no other node can fail a step
  };

  using Alert = std::function<void(const char* kind, const std::string& what)>;

  /// `alert` hears in words what is lost (`policy_state`), and of signs of ill health (`clip_health`). `directory`:
  /// where states outlive the daemon; empty: nowhere.
  PolicyKeeper(Job job, std::string directory, PolicyMetrics& metrics, Alert alert);

  /// A new plan goes on with what was remembered under the one before it, the first of the job with the file.
  /// `last_done`: of the ranks here that know a step of the daemon before this one, ascending.
  void adopt(const plan::Plan& plan, const std::vector<LastDone>& last_done);

  /// The plan is the one that was adopted last.
  [[nodiscard]] bool adopted(const plan::Plan& plan) const { return plan_digest_ == plan.digest; }

  /// Goes on from the state of another node, exported there under the same plan. The error says why it cannot be.
  [[nodiscard]] Result<void> take_given(const std::string& state);

  /// Nothing of an earlier step was found, and none was done since.
  [[nodiscard]] bool anew() const { return anew_; }

  /// No step of the job will be done any more: another job may go on with the file.
  void release() { file_.reset(); }

  [[nodiscard]] Result<void> check(const StepMaxNorm& max_norm) const { return policies_->check(max_norm); }

  /// Replaces `rules`: one per clip group.
  void rules(const StepTerms& terms, std::vector<plan::ClipRule>& rules) const;
  /// Once for every step that is about to be done. Fills in what watchers would have done, and the digest.
  void prepare(const device::StepMath& math, const StepTerms& terms, StepReport& report);
  /// The step that was prepared with these is done.
  void commit(
      const plan::Plan& plan, const std::vector<plan::ClipOutcome>& outcomes, const StepTerms& terms, std::int64_t step
  );
  /// The same for an attempt that imports a state, which was tried with the plan. Fills in the digest.
  void prepare_import(const std::string& state, StepReport& report);
  void commit_import();
  /// Behind either, when ranks can know that the attempt is done.
  void settle();
  /// What was prepared last is not done: the policies are as before it, bit for bit.
  void restore();

  [[nodiscard]] Result<PolicyExport> exported() const;

  /// Empty before there is a plan.
  [[nodiscard]] std::vector<ClipStatus> status() const;

  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  void open_file(bool first, const std::vector<LastDone>& last_done);
  void recall(const std::vector<LastDone>& last_done);
  [[nodiscard]] bool take_over(std::string_view saved);
  void forget(const std::string& why);
  void wipe_file();
  void lose_file(const std::string& why);
  void report_watched(StepReport& report) const;
  void stage(const StepReport& report, const std::string& state);
  void keep_state();
  void say_changes(std::int64_t step);

  const Job job_;
  const std::string directory_;
  PolicyMetrics& metrics_;
  const Alert alert_;
  std::optional<GroupPolicies> policies_;  ///< those of the last plan, with the state of earlier plans
  PreparedStep step_;                      ///< the last step that was prepared
  std::optional<PolicyFile> file_;
  bool file_tried_ = false;
  bool anew_ = true;
  std::string plan_digest_;  ///< of the plan adopted last
  std::string saved_;        ///< the state of the policies after the last step that is done
  std::string digest_;       ///< the digest of that state
  bool next_made_ = false;   ///< the step that is prepared has a state of its own:
  std::string next_;         ///< this one, else the one before
  std::string next_digest_;  ///< the digest of it
};

}  // namespace gradsync::engine
