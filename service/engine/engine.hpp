#pragma once
// The engine façade: jobs, ranks, buffers, plans and steps, without JSON, sockets or a clock.
//
// Thread: io only. Every call returns at once; a call that has to wait takes a `Reply`, which is called exactly once on
// the io thread, possibly before the call returns, also when its rank leaves; never after `halt` or the end of the
// engine. It is called in the middle of an event, as the `EventSink` is: neither may call the engine, its const members
// apart. Time arrives through `advance`, lane reports and plans through `on_lane_report` and `on_plan`. Invariants: a
// step is reported as done only after every rank of the job asked for the same step and the lane finished it; after a
// failure the gradients of that attempt are never reported as usable; a failed step is answered when the lane touches
// its memory no more, or, once `EngineDeadlines::lane` is over, with an error that says that it still may.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "device/lane.hpp"
#include "engine/lanes.hpp"
#include "engine/peers/peers.hpp"
#include "engine/plan/planner_port.hpp"
#include "engine/recorder/flight_dump.hpp"
#include "engine/report/report.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

struct EngineMetrics;

class Engine {
 public:
  Engine(EngineOptions options, Lanes lanes, PlannerPort& planner, EventSink events, EngineMetrics& metrics);
  ~Engine();

  // ranks
  [[nodiscard]] Result<AttachResult> attach(const AttachRequest& request);
  [[nodiscard]] Result<void> detach(SessionId session);
  [[nodiscard]] Result<void> pause(SessionId session, bool paused);
  void connection_lost(SessionId session);  ///< the process may still live: starts the reconnect deadline
  void process_exited(SessionId session);

  // buffers
  [[nodiscard]] Result<BufferGrant> allocate(
      SessionId session, std::uint64_t size_bytes, device::LaneId lane = device::kHostLane
  );
  /// For an arena that a daemon before this one gave out: its descriptor has to come with the token.
  [[nodiscard]] Result<BufferGrant> adopt(SessionId session, std::uint64_t size_bytes);
  /// Has the worker of its GPU map memory that the rank allocated; answers when it is mapped.
  void register_buffer(SessionId session, ExportedBuffer exported, Reply<RegisteredBuffer> reply);
  /// Has the worker of its GPU try memory that the process allocated, which needs no rank: `size_bytes` of it are read
  /// and written. Its base and generation mean nothing, because it is not kept.
  void probe_memory(const Holder& holder, ExportedBuffer exported, Reply<device::Probe> reply);
  [[nodiscard]] Result<void> release(SessionId session, std::uint64_t buffer);

  /// Whether `exchange_fd` needs a descriptor to be given.
  [[nodiscard]] bool awaits_fd(const std::string& token, std::uint32_t uid, std::int64_t pid) const;

  /// One use of a token; the peer must have the uid (and pid, unless 0) of the session that got it. A token of
  /// `allocate` or of a record gives the descriptor; one of `adopt` takes the `given` one.
  [[nodiscard]] Result<TakenFd> exchange_fd(
      const std::string& token, std::uint32_t uid, std::int64_t pid, UniqueFd given
  );

  // declaration and steps
  /// The memory of all declarations. What a declaration takes is added page by page, and comes with it.
  [[nodiscard]] FairBudget& declared_bytes();
  void declare(SessionId session, DeclareRequest request, Reply<DeclareResult> reply);
  /// A declaration of the session's rank was refused before it was whole: ranks that wait for it are told.
  void declaration_refused(SessionId session, const Error& refusal);
  void bucket_ready(SessionId session, const BucketReady& ready);
  void tensor_unused(SessionId session, const TensorUnused& unused);
  void finish(SessionId session, FinishRequest request, Reply<RankReport> reply);
  void clip(SessionId session, ClipRequest request, Reply<RankReport> reply);

  // what policies remember
  [[nodiscard]] Result<PolicyExport> export_policies(SessionId session) const;
  /// An attempt like a step: done when every rank gave the same state. Its report has no norm.
  void import_policies(SessionId session, ImportRequest request, Reply<RankReport> reply);

  // read models; only jobs of `uid` (nullopt: all, for the operator)
  [[nodiscard]] std::vector<JobStatus> status(std::optional<std::uint32_t> uid) const;
  [[nodiscard]] Result<std::vector<std::shared_ptr<const StepReport>>> stats(
      std::optional<std::uint32_t> uid, const std::string& job, std::int64_t last
  ) const;
  [[nodiscard]] Result<std::shared_ptr<const plan::Plan>> plan_of(
      std::optional<std::uint32_t> uid, const std::string& job
  ) const;

  /// What the flight recorders have: of which jobs, and of one of them; none where it is gone.
  [[nodiscard]] std::vector<JobKey> recorded_jobs() const;
  [[nodiscard]] std::optional<FlightDump> dump_of(const JobKey& job) const;

  // the outside world
  void on_lane_report(device::LaneId lane, device::LaneReport report);  ///< `lane` sent it
  void on_plan(PlanOutcome outcome);
  /// What other nodes of the job have done. A job that is gone is told nothing.
  void on_peer_events(JobNumber job, PeerEvents events);
  void advance(TimePoint now);  ///< call before any event of that moment, and when `next_deadline` has come
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  /// Refuses new ranks and plans; a step that has begun may finish, and a job in which none has is halted.
  void drain();
  [[nodiscard]] bool idle() const;  ///< no call waits, no step has begun and nothing runs on the lane
  /// Ends the work before connections close: attempts in flight fail without an answer, so that a waiting rank goes on
  /// with the successor, and nothing is launched or recorded any more.
  void halt();
  /// After `halt`: nothing on the lane changes gradients, or it hangs (`EngineDeadlines::lane`).
  [[nodiscard]] bool at_rest() const;

  /// How many jobs all events so far looked at: a few for each event, however many jobs there are.
  [[nodiscard]] std::uint64_t looks_at_jobs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradsync::engine
