#pragma once
// One job: its ranks, its epochs and the steps of the current one. Thread: io.
//
// An epoch is one agreed membership with one plan. It forms when every rank declared what it holds, and ends when a
// rank is lost or a rank declares anew. After a loss the survivors' declarations carry over, so that only the new
// process has to declare; after a new declaration of a live rank everybody has to. Ending an epoch first fails the
// attempt in flight; the new number counts from the moment the lane is quiet, because only then may trainers write
// gradients again. A job whose last rank has left lives on until then, so that the last calls are not answered too
// early.

#include "engine/buffer_table.hpp"
#include "engine/engine.hpp"
#include "engine/group_policies.hpp"
#include "engine/history.hpp"
#include "engine/policy_file.hpp"
#include "engine/step_machine.hpp"
#include "engine/step_record.hpp"
#include "engine/step_report.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// What all jobs share.
struct JobContext {
  const EngineOptions& options;
  device::Lane& lane;
  PlannerPort& planner;
  BufferTable& buffers;
  const EventSink& events;
  EngineMetrics& metrics;
  TimePoint now;
  std::uint64_t next_plan = 1;
  std::uint64_t next_ticket = 1;
  std::function<void()> follow_width = {};  ///< tells the lane how many threads may work; before it gets work
};

/// A timeout of a client may be any number: the longest is a year.
[[nodiscard]] TimePoint deadline_after(TimePoint now, Milliseconds timeout);

/// A plan the lane has, or is about to have.
struct EpochPlan {
  device::PlanId id = 0;
  std::shared_ptr<const plan::Plan> plan;
  std::vector<std::uint64_t> buffers;
  ReportConstants constants;
  std::shared_ptr<StepRecord> record;  ///< none where there is no encoder
};

class Job {
 public:
  Job(JobContext& context, const AttachRequest& first);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // membership (job_membership.cpp)
  /// Whether the request may take its rank. Resuming counts as taking.
  [[nodiscard]] Result<void> may_attach(const AttachRequest& request) const;
  [[nodiscard]] AttachResult attach(const AttachRequest& request, SessionId session);

  /// The session that holds a rank, 0 for none.
  [[nodiscard]] SessionId holder(std::int64_t rank) const { return ranks_[index(rank)].session; }

  [[nodiscard]] bool resumes(const AttachRequest& request) const;
  void leave(std::int64_t rank, const std::string& why, bool lost);
  void connection_lost(std::int64_t rank);
  void pause(std::int64_t rank, bool paused);
  [[nodiscard]] bool empty() const;
  /// All ranks leave: waiting calls get `error`, those of a step when the lane is quiet.
  void end(const Error& error);

  /// No step of it will be done any more: another job may go on with what its policies remember.
  void release_policies() { policy_file_.reset(); }

  /// Nothing of it runs on the lane and no call waits for that.
  [[nodiscard]] bool quiet() const { return !(machine_ && machine_->busy()) && departed_.empty(); }

  // declaration (job_declare.cpp, job_epoch.cpp)
  void declare(std::int64_t rank, DeclareRequest request, Reply<DeclareResult> reply);
  void stop_forming(const Error& error);  ///< answers every declaration that waits
  void on_plan(PlanOutcome& outcome);
  void on_loaded(device::PlanId plan);
  void on_load_failed(const device::Failed& report);

  // steps (job_step.cpp)
  void bucket_ready(std::int64_t rank, const BucketReady& ready);
  void tensor_unused(std::int64_t rank, const TensorUnused& unused);
  void finish(std::int64_t rank, FinishRequest request, Reply<RankReport> reply);
  void clip(std::int64_t rank, const ClipRequest& request, Reply<RankReport> reply);
  // policies (job_policies.cpp)
  [[nodiscard]] Result<PolicyExport> export_policies() const;
  void import_policies(std::int64_t rank, ImportRequest request, Reply<RankReport> reply);

  void on_reduced(const device::Reduced& report);
  void on_finished(device::Finished report);
  void on_scaled(const device::Scaled& report);
  void on_aborted(const device::Aborted& report);
  void on_lane_failed(const device::Failed& report);

  // record (job_record.cpp)
  /// The attempt in flight fails; nothing is recorded and nobody answered any more.
  void halt();

  [[nodiscard]] bool halted() const { return halted_; }

  /// Nothing of it changes gradients on the lane, or the lane hangs.
  [[nodiscard]] bool at_rest() const;

  // deadlines (job_deadlines.cpp)
  void on_time();
  /// The lane reported something, of whatever job: it does not hang.
  void lane_moved();
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // read models (job_status.cpp)
  [[nodiscard]] JobStatus status() const;

  [[nodiscard]] std::vector<StepReport> reports(std::int64_t last) const { return history_.last(last); }

  [[nodiscard]] std::shared_ptr<const plan::Plan> plan() const { return machine_ ? machine_->plan_pointer() : nullptr; }

  [[nodiscard]] bool idle() const;

  /// Every rank waits in a step call: the lane may use all threads.
  [[nodiscard]] bool wants_width() const { return machine_ && machine_->all_waiting(); }

  [[nodiscard]] bool stepping() const { return machine_.has_value(); }

  [[nodiscard]] bool owns_plan(device::PlanId plan) const;
  [[nodiscard]] bool owns_buffer(std::uint64_t buffer) const;

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] std::uint32_t uid() const { return uid_; }

  [[nodiscard]] std::int64_t restart_count() const { return restart_count_; }

 private:
  struct Rank {
    SessionId session = 0;
    std::string client_id;
    std::int64_t pid = 0;
    std::optional<TimePoint> reconnect_until;  ///< set while the connection is gone but the process lives
    bool paused = false;
    std::uint64_t joined_epoch = 0;  ///< what was recorded before belongs to another process

    // declaration
    std::shared_ptr<const plan::RankDeclaration> declaration;
    std::uint64_t buffer = 0;
    bool valid = false;      ///< the planner checked it
    bool fresh = false;      ///< declared since the last commit
    bool committed = false;  ///< may send step messages
    bool resumed = false;    ///< came back since: may not have heard the answer to its declaration
    std::uint64_t validate_ticket = 0;
    Reply<DeclareResult> declare_reply;
    TimePoint declare_since;
    TimePoint declare_deadline;
    std::optional<StepKey> last_done;  ///< the step before, where another daemon did it

    // step
    Reply<RankReport> step_reply;
    StepKey step_key;
    Ask step_ask;
    std::vector<std::uint32_t> bucket_digests;
  };

  // Ended attempts, for calls that come again.

  struct DoneRecord {
    StepKey key;
    std::shared_ptr<const StepReport> report;
    std::shared_ptr<const plan::Plan> plan;  ///< that it is of
  };

  struct FailedRecord {
    StepKey key;
    Error error;
  };

  [[nodiscard]] static std::size_t index(std::int64_t rank) { return static_cast<std::size_t>(rank); }

  [[nodiscard]] std::int64_t world_size() const { return static_cast<std::int64_t>(ranks_.size()); }

  // epoch
  void end_epoch(Error error);
  void apply_transition();
  static void drop_declaration(Rank& rank);
  [[nodiscard]] std::optional<Error> arena_error(std::int64_t rank, const plan::Plan& plan) const;
  void refuse_fresh(const Error& error);
  [[nodiscard]] bool repeats_committed(const Rank& rank, const DeclareRequest& request) const;

  /// Survivors declared weights, to be found equal before the first step.
  [[nodiscard]] bool compares_weights() const;

  [[nodiscard]] bool lacks_declaration(const Rank& rank) const { return !rank.valid || (redeclare_ && !rank.fresh); }

  void answer_declare(Rank& rank, const Result<DeclareResult>& result) const;
  void cancel_forming();
  void try_form();
  void load(PreparedPlan prepared, std::shared_ptr<StepRecord> record);
  void commit_epoch();
  [[nodiscard]] bool changes_plan(const plan::Plan& plan) const;
  void unload(EpochPlan& plan);

  [[nodiscard]] bool forming() const { return !machine_ || loading_ || plan_ticket_ != 0 || !all_committed(); }

  [[nodiscard]] bool all_committed() const;
  [[nodiscard]] std::string forming_reason() const;

  // step
  void run(Actions actions);
  void perform(LaunchReduce& action);
  void perform(LaunchFinish& action);
  void perform(LaunchScale& action);
  void perform(LaunchAbort& action);
  void perform(AnswerRank& action);
  void perform(NormKnown& action);
  void perform(Committed& action);
  void perform(Imported& action);
  void perform(AttemptFailed& action);
  [[nodiscard]] std::optional<Result<RankReport>> recorded(const Rank& rank, const StepKey& key) const;
  /// What a step call is answered without the machine: what is recorded of its attempt, or why it is refused.
  [[nodiscard]] std::optional<Result<RankReport>> answer_at_hand(const Rank& rank, const StepKey& key) const;
  [[nodiscard]] std::optional<Error> refuse_step(const Rank& rank, const StepKey& key) const;
  [[nodiscard]] TimePoint step_deadline(const std::optional<Milliseconds>& timeout) const;
  void complete(StepReport& report, std::uint64_t attempt) const;
  void adopt_policies();
  void open_policy_file(bool first);
  void make_rules(std::vector<plan::ClipRule>& rules) const;
  void recall_policies();
  [[nodiscard]] bool take_over_policies(std::string_view saved);
  void forget_policies(const std::string& why);
  void wipe_policy_file();
  void lose_policy_file(const std::string& why);
  void commit_policies(const device::StepMath& math, StepReport& report);
  void store_policies(std::uint64_t attempt);
  void find_stable_buckets(std::vector<std::uint32_t>& stable) const;
  void publish_step(const std::shared_ptr<const StepReport>& report);
  [[nodiscard]] bool take_step_reply(Rank& rank, const StepKey& key, const Ask& ask, Reply<RankReport> reply);
  void note_ask();
  void answer_step(Rank& rank, Result<RankReport> result) const;
  void answer_steps(const Error& error);
  void answer_done(const std::shared_ptr<const StepReport>& report, std::uint64_t attempt);
  void answer_failed(const Error& error);  ///< also those that left
  void forget_attempt();
  /// Whether what must be equal on several ranks is compared in the step after `steps` steps of the epoch.
  [[nodiscard]] bool compares(std::int64_t steps) const;
  [[nodiscard]] bool check_next(std::int64_t steps) const;
  [[nodiscard]] DeclareResult declare_result(std::int64_t rank) const;

  // record
  [[nodiscard]] Result<std::shared_ptr<StepRecord>> record_for(const PreparedPlan& prepared) const;
  [[nodiscard]] std::optional<RecordGrant> grant_record(const Rank& rank) const;
  void note_begun();
  /// Fills in `answers` for all ranks, kept for whoever comes back to another daemon.
  void record_done(
      const std::shared_ptr<const StepReport>& report, std::uint64_t attempt, std::vector<RankReport>& answers
  );
  [[nodiscard]] std::shared_ptr<const std::string> text_of(const StepReport& report);

  // deadlines
  [[nodiscard]] bool step_waits_for_paused() const;
  [[nodiscard]] bool declare_waits_for_paused() const;
  void follow_pauses();
  void time_out_declare(Rank& rank);
  void give_up_on_lane();

  void publish_alert(const std::string& kind, const std::string& what) const;
  void publish_epoch(const std::string& what) const;

  JobContext& context_;
  const std::string name_;
  const std::uint32_t uid_;
  const std::int64_t restart_count_;
  const std::vector<plan::Mesh> meshes_;
  std::vector<Rank> ranks_;

  std::uint64_t epoch_;
  std::optional<EpochPlan> active_;
  std::optional<EpochPlan> loading_;
  std::uint64_t plan_ticket_ = 0;  ///< of the plan being made; 0: none
  bool redeclare_ = false;         ///< every rank has to declare before the next commit
  std::shared_ptr<StepRecord>
      record_;           ///< of the last plan; shared with the tokens that lead to it, which do not hold it
  bool halted_ = false;  ///< nobody is answered any more
  std::optional<StepMachine> machine_;
  std::optional<Error> transition_;    ///< why the epoch ends, while the attempt in flight still fails
  std::optional<Error> ended_;         ///< why the epoch before this one ended
  std::optional<TimePoint> quiet_by_;  ///< when the lane, told to abort, must be at rest
  std::optional<Error> stuck_;         ///< it was not: what step calls are answered until it is

  std::optional<DoneRecord> done_;           ///< the last step done
  std::optional<FailedRecord> failed_;       ///< the last attempt that failed
  std::optional<DoneRecord> norm_record_;    ///< the norm given out in this attempt
  std::vector<Reply<RankReport>> departed_;  ///< step calls of ranks that left, until the attempt has ended
  std::optional<TimePoint> step_suspended_;  ///< since when step deadlines stand still, for a paused rank
  std::optional<TimePoint> declare_suspended_;
  std::optional<GroupPolicies> policies_;  ///< of the last plan, with what was remembered in those before it
  std::vector<std::vector<plan::ClipOutcome>> watched_;  ///< of the last step
  std::optional<PolicyFile> policy_file_;
  bool policy_file_tried_ = false;
  std::string saved_;          ///< what policies remember, as after the last step
  std::string policy_digest_;  ///< of that
  std::string import_state_;   ///< that ranks wait to import, the last one given
  StepMaxNorm step_max_norm_;  ///< by which the outcomes of this attempt are made
  double norm_scale_ = 1.0;
  bool norm_scaled_ = false;
  bool abandoned_ = false;                         ///< the step whose norm was given out
  std::vector<double> raw_norms_;                  ///< by clip group, of the norm given out: what clip.apply clips by
  std::vector<plan::ClipOutcome> scale_outcomes_;  ///< of the clip.apply in flight
  std::int64_t report_step_ = 0;                   ///< the trainers' label of the step in flight
  double reduce_s_ = 0;
  std::optional<TimePoint> first_ask_;
  std::optional<TimePoint> last_ask_;
  bool half_warned_ = false;
  std::int64_t steps_in_epoch_ = 0;
  std::int64_t multiplied_in_a_row_ = 0;  ///< steps that ended by `finish` alone
  History history_;

  // Memory that every step uses again. What it says is of an earlier one.
  device::StepMath step_memory_;       ///< goes to the lane and comes back with the result
  std::vector<plan::ClipRule> rules_;  ///< likewise
  std::vector<RankReport> answers_;    ///< empty between steps
  std::shared_ptr<std::string> text_;  ///< of the record; whoever reads it holds it
  Event step_event_;                   ///< without a report between steps
};

}  // namespace gradsync::engine
