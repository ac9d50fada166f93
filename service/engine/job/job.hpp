#pragma once
// One job: it performs what the epoch machine and the step machine decide, for the processes of its ranks. Thread: io.
//
// A job whose last rank has left lives on until the lane is quiet, so that the last calls are not answered too early.

#include "base/fair_budget.hpp"
#include "engine/buffer_table.hpp"
#include "engine/epoch/admission.hpp"
#include "engine/epoch/epoch_machine.hpp"
#include "engine/epoch/local_ranks.hpp"
#include "engine/job/attempt.hpp"
#include "engine/job/epoch_plan.hpp"
#include "engine/job/job_facts.hpp"
#include "engine/lanes.hpp"
#include "engine/peers/peers.hpp"
#include "engine/plan/planner_port.hpp"
#include "engine/policies/policy_keeper.hpp"
#include "engine/recorder/flight_dump.hpp"
#include "engine/recorder/flight_recorder.hpp"
#include "engine/report/history.hpp"
#include "engine/report/job_gauges.hpp"
#include "engine/step/step_machine.hpp"
#include "engine/step/step_record.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

class Job;

/// The things that all jobs share.
struct JobContext {
  const EngineOptions& options;
  Lanes& lanes;
  PlannerPort& planner;
  FairBudget& declared_bytes;
  FairBudget& report_bytes;
  BufferTable& buffers;
  const EventSink& events;
  EngineMetrics& metrics;
  TimePoint now;
  std::uint64_t next_plan = 1;
  std::uint64_t next_ticket = 1;
  std::map<device::PlanId, Job*> plans = {};     ///< which job has the plan on a lane
  std::map<std::uint64_t, JobKey> tickets = {};  ///< which job asked the planner; it may be gone by now
  std::map<JobNumber, Job*> by_number = {};      ///< every job that lives
  JobNumber next_job = 1;
  std::vector<SessionId> vacated = {};      ///< sessions that ranks left since the last settling
  std::function<void()> follow_width = {};  ///< tells the lane how many threads may work; before it gets work
};

class Job {
 public:
  Job(JobContext& context, const AttachRequest& first);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // membership (job_membership.cpp)
  /// Whether the request may take its rank. Resuming counts as taking.
  [[nodiscard]] Result<void> may_attach(const AttachRequest& request) const {
    const Roster& roster = epochs_.roster();
    const bool full = roster.absent() == 0 && !roster[request.rank].taken;
    return engine::may_attach(identity_, ranks_[request.rank].holder, full, request);
  }

  [[nodiscard]] AttachResult attach(const AttachRequest& request, SessionId session);

  /// The session that holds a rank, 0 for none.
  [[nodiscard]] SessionId holder(std::int64_t rank) const { return ranks_[rank].holder.session; }

  [[nodiscard]] bool resumes(const AttachRequest& request) const {
    return engine::resumes(ranks_[request.rank].holder, request);
  }

  void leave(std::int64_t rank, const std::string& why, bool lost);

  void connection_lost(std::int64_t rank) { epochs_.on_disconnected(context_.now, rank); }

  void pause(std::int64_t rank, bool paused);

  [[nodiscard]] bool empty() const { return epochs_.roster().empty(); }

  /// All ranks leave: waiting calls get `error`, those of a step when the lane is quiet.
  void end(const Error& error) { perform(epochs_.on_superseded(error)); }

  /// No step of this job will be done any more: another job may go on with the state of its policies.
  void release_policies() { policies_.release(); }

  /// Nothing of it runs on the lane and no call waits for that.
  [[nodiscard]] bool quiet() const {
    return !(machine_ && (machine_->busy() || machine_->voting())) && attempt_.departed.empty();
  }

  // declaration (job_declare.cpp, job_epoch.cpp, job_load.cpp)
  void declare(std::int64_t rank, DeclareRequest request, Reply<DeclareResult> reply);
  /// A declaration of the rank was refused before it came to `declare`: the others are told.
  void declaration_refused(std::int64_t rank, const Error& refusal);

  void drain(const Error& error) { perform(epochs_.on_drain(error)); }  ///< answers every declaration that waits

  void on_plan(PlanOutcome& outcome);
  void on_loaded(device::LaneId lane, device::Loaded& report);
  void on_connected(device::PlanId plan);
  void on_load_failed(const device::Failed& report);

  // steps (job_step.cpp)
  void bucket_ready(std::int64_t rank, const BucketReady& ready);
  void tensor_unused(std::int64_t rank, const TensorUnused& unused);
  void finish(std::int64_t rank, FinishRequest request, Reply<RankReport> reply);
  void clip(std::int64_t rank, const ClipRequest& request, Reply<RankReport> reply);

  // policies (job_policies.cpp)
  [[nodiscard]] Result<PolicyExport> export_policies() const { return policies_.exported(); }

  void import_policies(std::int64_t rank, ImportRequest request, Reply<RankReport> reply);

  // reports of the lane that has the plan
  void on_reduced(device::LaneId lane, const device::Reduced& report);
  void on_finished(device::LaneId lane, device::Finished report);
  void on_measured(device::LaneId lane, device::Measured report);
  void on_scaled(device::LaneId lane, const device::Scaled& report);
  void on_rows_read(device::LaneId lane, device::RowsRead report);
  void on_aborted(device::LaneId lane, const device::Aborted& report);
  void on_lane_failed(device::LaneId lane, const device::Failed& report);

  // record (job_record.cpp)
  /// The attempt in flight fails; nothing is recorded and nobody answered any more.
  void halt();

  [[nodiscard]] bool halted() const { return epochs_.halted(); }

  /// Nothing of it changes gradients on the lane, or the lane hangs; no verdict on its attempt is waited for.
  [[nodiscard]] bool at_rest() const;

  // other nodes (job_peers.cpp)
  void on_peer_events(PeerEvents events) { perform(std::move(events)); }

  // flight recorder (job_recorder.cpp)
  [[nodiscard]] FlightDump dump() const;

  // deadlines (job_deadlines.cpp)
  void on_time();
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // read models (job_status.cpp)
  [[nodiscard]] JobStatus status() const;

  [[nodiscard]] std::vector<std::shared_ptr<const StepReport>> reports(std::int64_t last) const {
    return history_.last(last);
  }

  [[nodiscard]] std::shared_ptr<const plan::Plan> plan() const { return machine_ ? machine_->plan_pointer() : nullptr; }

  [[nodiscard]] bool idle() const;

  /// Some rank computes, so that lanes must leave it threads.
  [[nodiscard]] bool computes() const { return machine_ && !machine_->all_waiting(); }

  /// The plan under way; 0: none.
  [[nodiscard]] device::PlanId active_plan() const { return active_ ? active_->id : device::PlanId{}; }

  [[nodiscard]] bool owns_plan(device::PlanId plan) const;
  /// The lane has its plan, or a part of it.
  [[nodiscard]] bool runs_on(device::LaneId lane) const;
  [[nodiscard]] bool owns_buffer(std::uint64_t buffer) const;

  [[nodiscard]] std::int64_t restart_count() const { return identity_.restart_count; }

  [[nodiscard]] JobKey key() const { return {identity_.uid, identity_.name}; }

  JobFacts facts;  ///< of the index

 private:
  /// The process of a rank, and what it declared.
  struct Rank {
    RankHolder holder;
    std::shared_ptr<const plan::RankDeclaration> declaration;
    std::shared_ptr<FairBudget::Share> held;          ///< for its memory
    std::shared_ptr<FairBudget::Share> held_tensors;  ///< the same, or that of the rank that declared the tensors first
    std::uint64_t buffer = 0;
    std::uint64_t check = 0;           ///< the ticket of the check of its declaration
    DeclaredContent content;           ///< of its declaration, where other nodes hear of it
    bool comes_back = false;           ///< it has read the record of the daemon before this one
    std::optional<StepKey> last_done;  ///< the step before, where another daemon did it
    std::optional<StepKey> doubt;      ///< an attempt of that daemon, until it is ruled on
    Reply<DeclareResult> declare_reply;
  };

  struct FailedRecord {
    StepKey key;
    Error error;
  };

  /// Ended attempts, for calls that come again.
  struct EndedAttempts {
    std::optional<DoneRecord> done;
    std::optional<FailedRecord> failed;
  };

  /// The attempt under way, in one word.
  [[nodiscard]] std::uint64_t word() const { return attempt_word({epochs_.epoch(), machine_->attempt()}); }

  [[nodiscard]] std::int64_t world_size() const { return epochs_.roster().world_size(); }

  /// Those that have a process, which are all of this node where an epoch begins.
  [[nodiscard]] LocalRanks attached_ranks() const;
  void reseat(LocalRanks ranks);

  // epoch (job_epoch.cpp, job_load.cpp)
  void share_tensors(std::int64_t rank, SharingDeclaration sharing);
  void perform(const EpochActions& actions);
  void perform(const CheckDeclaration& action);
  void perform(const TellLocals& action);
  void perform(const TellLeft& action);
  void perform(const TellReady& action);
  void tell_ready();
  /// What the ranks here have declared, for the other nodes.
  void say_declared(LocalsChanged& changed) const;
  /// On which device of this node the gradients of each rank lie.
  void say_devices(NodeDeclared& declared) const;
  /// Plan from what the ranks of all nodes have declared.
  void ask_for_node(PlanRequest& request) const;
  void perform(const MakePlan& action);
  void perform(const LoadPlan& action);
  void perform(const UnloadPlan& action);
  void perform(const CommitPlan& action);
  void perform(const OpenSteps& action);
  void perform(const AnswerDeclare& action);
  void perform(const FailAttempt& action);
  void perform(const FormEpoch& action);
  void perform(const VacateSeat& action);
  void perform(const ReportLoss& action);
  void perform(const FailStepCalls& action);
  [[nodiscard]] PlanRequest plan_request(std::uint64_t ticket) const;
  /// No answer to the ticket is wanted any more; 0 names none.
  void withdraw(std::uint64_t ticket) const;
  [[nodiscard]] PlanMade made(const PlanOutcome& outcome) const;
  [[nodiscard]] Result<void> use_collectives(PreparedPlan& prepared) const;
  [[nodiscard]] Holder plan_holder() const;
  [[nodiscard]] std::optional<Error> memory_error(std::uint64_t plan_bytes) const;
  [[nodiscard]] std::shared_ptr<const plan::Plan> counted(std::shared_ptr<const plan::Plan> plan, std::uint64_t bytes)
      const;
  [[nodiscard]] std::optional<Error> arena_error(std::int64_t rank, const plan::Plan& plan) const;
  [[nodiscard]] bool repeats_committed(std::int64_t rank, const DeclareRequest& request) const;

  [[nodiscard]] bool forming() const { return epochs_.state() != EpochMachine::State::Committed; }

  // other nodes (job_peers.cpp)
  void tell_pauses();
  void perform(PeerEvents events);
  void perform(PrepareEpoch& event);
  void perform(PoliciesWanted& event);
  void perform(PoliciesGiven& event);
  void perform(ConnectEpoch& event);
  void connect(const std::vector<device::CommunicatorId>& communicators);
  void perform(LinksReady& event);
  void perform(LinksFailed& event);
  [[nodiscard]] Error wire_error(const device::Failed& report) const;
  [[nodiscard]] Error communicator_error(const device::Failed& report) const;
  void fail_load(const Error& error);
  void perform(BeginEpoch& event);
  void perform(EpochEnded& event);
  void perform(EpochRefused& event);
  void perform(AttemptRefused& event);
  void perform(VerdictReached& event);
  void perform(SumsKnown& event);
  void perform(WantRows& event);
  void perform(WhoIsMissing& event);
  void perform(PeersHalfTime& event);
  void perform(PeersPaused& event);
  /// What the ranks here have read in the record of the daemon before this one.
  [[nodiscard]] RecordWords words_of_ranks() const;
  /// The last step that the rank knows is the one in doubt, where that was done.
  void apply_ruling(Rank& rank) const;
  /// Null where there is no doubt, or it is not ruled on.
  [[nodiscard]] const VerdictReached* ruling_on(const std::optional<StepKey>& doubt) const;

  // step
  void run(Actions actions);
  /// The same for actions that give the lane nothing to do.
  void perform(Actions& actions);
  void perform(LaunchReduce& action);
  void leave_own(device::LaneId lane, std::vector<device::UnusedTensor>& unused) const;
  void perform(LaunchFinish& action);
  template <typename Terms>
  void take_terms(const Terms& terms);
  void perform(LaunchMeasure& action);
  void perform(Decide& action);
  void perform(LaunchOutcomes& action);
  void perform(LaunchScale& action);
  void perform(AskPeers& action);
  void perform(LaunchRead& action);
  void perform(PeersOverdue& action);
  void perform(TellFailed& action);
  void perform(LaunchAbort& action);
  void perform(AnswerRank& action);
  void perform(NormKnown& action);
  void perform(Prepare& action);
  void perform(PrepareImport& action);
  void perform(Committed& action);
  void perform(Imported& action);
  void perform(AttemptFailed& action);
  void perform(HalfTime& action);
  [[nodiscard]] std::optional<Result<RankReport>> recorded(std::int64_t rank, const StepKey& key) const;
  /// The answer to a step call that does not need the machine: the record of its attempt, or why it is refused.
  [[nodiscard]] std::optional<Result<RankReport>> answer_at_hand(std::int64_t rank, const StepKey& key);
  [[nodiscard]] std::optional<Error> refuse_step(std::int64_t rank, const StepKey& key) const;
  [[nodiscard]] TimePoint step_deadline(const std::optional<Milliseconds>& timeout) const;
  void complete(StepReport& report, std::uint64_t attempt) const;
  void find_stable_buckets(std::vector<std::uint32_t>& stable) const;
  void count_step(const StepReport& report, std::uint64_t nonfinite_values) const;
  /// Raises an alert for values that are not finite, for divergence, and for a step that no optimizer takes.
  void publish_findings(const StepReport& report, std::uint64_t nonfinite_values) const;
  void publish_step(const std::shared_ptr<const StepReport>& report) const;
  [[nodiscard]] bool take_step_reply(std::int64_t rank, const StepKey& key, const Ask& ask, Reply<RankReport> reply);
  void note_ask();
  void follow_step_call(std::int64_t rank);
  void answer_step(StepCall& call, Result<RankReport> result) const;

  [[nodiscard]] StepCall& call_of(std::int64_t rank) { return attempt_.calls[locals_.seat_of_local(rank)]; }

  /// What ends the attempt is prepared: its verdict is asked for.
  void vote();
  void answer_done(std::uint64_t attempt);
  void fail_if_refused();
  void answer_failed(Attempt& attempt, const Error& error) const;  ///< also calls of ranks that left
  /// Whether what must be equal on several ranks is compared in the step after `steps` steps of the epoch.
  [[nodiscard]] bool compares(std::int64_t steps) const;
  [[nodiscard]] DeclareResult declare_result(std::int64_t rank) const;

  // record
  [[nodiscard]] Result<std::shared_ptr<StepRecord>> record_for(const PreparedPlan& prepared) const;
  [[nodiscard]] std::optional<RecordGrant> grant_record(std::int64_t rank) const;
  void note_begun();
  /// Returns the answers by seat, whose texts it has kept for ranks that come back to another daemon.
  [[nodiscard]] std::vector<RankReport> kept_answers(const std::shared_ptr<const StepReport>& report) const;
  void note_done(std::uint64_t attempt);
  [[nodiscard]] std::shared_ptr<const std::string> text_of(const StepReport& report) const;

  // flight recorder
  /// A rank asks for its step, and calls buckets ready with that.
  void note_finish(std::int64_t rank, const FinishRequest& request);
  void name_ranks(FlightDump& dump) const;
  /// Something that nobody asked for has ended an attempt or the epoch: what is recorded of it is kept.
  void keep_dump(const Error& cause);

  // read models
  [[nodiscard]] RankStatus rank_status(std::int64_t rank) const;

  // deadlines
  void follow_pauses();
  [[nodiscard]] std::string lacks() const;
  void name_other_nodes(EpochActions& due) const;
  /// When one of the job's lanes reported last, of whatever job.
  [[nodiscard]] TimePoint last_report() const;
  [[nodiscard]] LaneStop::EndedBy ended_by() const;
  /// Does not wait any longer for lanes that hang, but does not say either that gradients may be used again.
  void give_up_on_lane(const Error& stuck);

  void publish_alert(const std::string& kind, const std::string& what) const;
  void publish_epoch(const std::string& what) const;

  JobContext& context_;
  const JobNumber number_;
  const JobIdentity identity_;
  const std::unique_ptr<Peers> peers_;
  ByRank<Rank> ranks_;
  EpochMachine epochs_;
  LocalRanks locals_;  ///< of the last plan that was committed: seats of `machine_` and `attempt_`
  const std::shared_ptr<plan::DeclarationPool> declared_;  ///< used by the planner, one request after the other
  std::uint64_t planning_ = 0;                             ///< the ticket of the plan that is being made
  PrepareEpoch gathered_;                                  ///< what all nodes declared for the coming epoch
  std::unique_ptr<PreparedPlan> prepared_;                 ///< on its way from the planner to the lane
  std::optional<EpochPlan> active_;                        ///< the plan that the lane has, or is about to have
  /// The record of the last plan. It is shared with the tokens that lead to it, which do not own it.
  std::shared_ptr<StepRecord> record_;
  std::optional<StepMachine> machine_;
  Attempt attempt_;
  EndedAttempts ended_;
  std::optional<VerdictReached> ruling_;  ///< on the last doubt of the daemon before this one
  PolicyKeeper policies_;
  History history_;
  std::unique_ptr<JobGauge> gauge_;  ///< none where too many jobs have one
  FlightRecorder recorder_;
  /// The last epoch did not begin, or failed: nodes may disagree on which communicators there are.
  bool fresh_communicators_ = true;
};

}  // namespace gradsync::engine
