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
#include "engine/prepared_plan.hpp"
#include "engine/report.hpp"
#include "plan/make_plan.hpp"

#include <boost/function.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

using SessionId = std::uint64_t;  ///< one rank attached; 0 is never used

/// Holds a shared pointer without memory of its own, which std::function does not.
template <typename T>
using Reply = boost::function<void(const Result<T>&)>;

struct EngineLimits {
  std::int64_t sessions = 1024;
  std::int64_t buffers_per_session = 64;
  std::uint64_t arena_bytes = 0;  ///< of all jobs; 0: what the machine has
  std::int64_t tensors = 200'000;
  std::int64_t world_size = 4096;
};

struct EngineDeadlines {
  Milliseconds declare{300'000};
  Milliseconds first_step{1'800'000};
  Milliseconds step{600'000};
  Milliseconds reconnect{2'000};  ///< a closed connection of a live process has this long to come back
  Milliseconds token{10'000};     ///< validity of an fd token
  Milliseconds lane{3'000};       ///< an aborted lane has this long to come to rest; less than the client's 5 s more
};

struct EngineOptions {
  plan::BucketSizes buckets;
  EngineLimits limits;
  EngineDeadlines deadlines;
  std::int64_t check_every =
      100;  ///< replica comparison: the first three steps of an epoch, then every this many; 0: no more
  std::int64_t history = 1000;  ///< reports kept per job
  /// Of every job. Random in a daemon, so that what was said to the one before it fits nothing here; at least 1, and
  /// far below 2^32, because (epoch << 32) + attempt + 1 names an attempt in one word.
  std::uint64_t first_epoch = 1;
  EncodeReport encode_report;            ///< none: no job has a record of its steps
  std::size_t encoded_bytes = 1u << 20;  ///< no result has more
  std::string policy_directory;          ///< where what policies remember outlives the daemon; empty: nowhere
};

struct AttachRequest {
  std::string job;
  std::uint32_t uid = 0;  ///< of the peer process; jobs of other uids are other jobs
  std::int64_t pid = 0;
  std::string client_id;  ///< equal to that of the session it resumes after a lost connection
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::vector<plan::Mesh> meshes;
  std::int64_t restart_count = 0;  ///< a higher one supersedes live ranks and may change the world size
};

struct AttachResult {
  SessionId session = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t last_step = -1;
  bool resumed = false;
};

struct BufferGrant {
  std::uint64_t buffer = 0;
  std::uint64_t size_bytes = 0;
  std::string token;  ///< 32 hex digits, one use
};

/// What the job has begun and done, for a rank to map for reading (engine/step_record.hpp).
struct RecordGrant {
  std::string token;  ///< 32 hex digits, one use
  std::uint64_t size_bytes = 0;
};

/// Fencing of every step message.
struct StepKey {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
};

/// An attempt in one word: what rows are stamped with, and what a record tells. 0 names none.
[[nodiscard]] constexpr std::uint64_t attempt_word(const StepKey& key) { return (key.epoch << 32) + key.attempt + 1; }

struct DeclareRequest {
  plan::RankDeclaration declaration;
  std::uint64_t buffer = 0;
  std::optional<Milliseconds> timeout;
  std::optional<StepKey> last_done;  ///< that the daemon before this one did: policies go on from there
};

struct DeclareResult {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::shared_ptr<const plan::Plan> plan;
  std::int64_t rank = 0;          ///< whose declaration it was
  std::uint64_t arena_bytes = 0;  ///< of this rank's buffer that are used: its arena or its table
  bool check = false;             ///< the rows of the first step should carry fingerprints; data path `stats` only
  std::optional<RecordGrant> record;
};

struct BucketReady {
  StepKey key;
  std::uint32_t bucket = 0;
};

struct TensorUnused {
  StepKey key;
  std::vector<std::uint32_t> tensors;
};

enum class FinishKind : std::uint8_t { Finish, NormOnly };

struct FinishRequest {
  StepKey key;
  std::int64_t step = 0;
  FinishKind kind = FinishKind::Finish;
  bool ready_all = false;            ///< every bucket is ready
  std::vector<std::uint32_t> ready;  ///< else these, those already notified included
  std::vector<std::uint32_t> unused;
  double scale = 1.0;
  bool scaled = false;  ///< a norm that is not finite skips the step, whatever was declared, for a loss scaler
  bool override_max_norm = false;  ///< `max_norm` replaces that of the first clip group for this step
  std::optional<double> max_norm;
  std::vector<std::uint32_t> bucket_digests;  ///< of hook counts, one per bucket; empty: not given
  std::optional<Milliseconds> timeout;
};

struct ClipRequest {
  StepKey key;
  std::int64_t step = 0;
  std::optional<double> max_norm;  ///< for all clip groups; empty: as declared
  bool override_max_norm = false;
  std::optional<Milliseconds> timeout;
  bool abandon = false;  ///< the step ends as it is: nothing is multiplied, no policy acts or remembers
};

/// What the policies of a job remembered once, for them to go on with; equal on all ranks, between two steps.
struct ImportRequest {
  StepKey key;
  std::string state;
  std::optional<Milliseconds> timeout;
};

struct PolicyExport {
  std::string state;   ///< of the last step that was done
  std::string digest;  ///< as in its report
};

struct Event {
  std::string topic;  ///< "step" | "alert" | "epoch"
  std::uint32_t uid = 0;
  std::string job;
  std::string what;  ///< alert and epoch: one line in words
  std::string kind;  ///< alert: an error kind, "nonfinite", "divergence", "deadline_half", "lane_stuck",
                     ///< "step_skipped", "step_raised" or "policy_state"
  std::uint64_t epoch = 0;
  std::shared_ptr<const StepReport> report;  ///< topic step
};

using EventSink = std::function<void(const Event&)>;

/// Work for the planner thread and its answer.
struct PlanRequest {
  std::uint64_t ticket = 0;
  std::vector<std::shared_ptr<const plan::RankDeclaration>> by_rank;
  std::vector<plan::Mesh> meshes;
  std::int64_t world_size = 1;
  plan::BucketSizes sizes;
  bool validate_only = false;            ///< check the one declaration given; the outcome's plan is null
  EncodeReport encode_report;            ///< to measure the longest report; none: not measured
  std::size_t encoded_bytes = 1u << 20;  ///< no report may have more, with all left out that can be
};

struct PlanOutcome {
  std::uint64_t ticket = 0;
  Result<std::unique_ptr<PreparedPlan>> plan;
};

class PlannerPort {
 public:
  virtual ~PlannerPort() = default;
  virtual void submit(PlanRequest request) = 0;  ///< the outcome comes back through Engine::on_plan

  /// The same value; its last owner leaves it to be freed where nobody waits, for what was declared of 100,000 tensors
  /// takes tens of milliseconds. The value may outlive the port.
  template <typename T>
  [[nodiscard]] std::shared_ptr<const T> freed_elsewhere(std::shared_ptr<const T> value) const {
    const T* bare = value.get();
    return {bare, [free = disposal(), value = std::move(value)](const T*) mutable { free(std::move(value)); }};
  }

 protected:
  using Disposal = std::function<void(std::shared_ptr<const void>)>;  ///< any thread; does not throw
  [[nodiscard]] virtual Disposal disposal() const = 0;
};

struct EngineMetrics;

class Engine {
 public:
  Engine(
      EngineOptions options, device::Lane& host_lane, PlannerPort& planner, EventSink events, EngineMetrics& metrics
  );
  ~Engine();

  // ranks
  [[nodiscard]] Result<AttachResult> attach(const AttachRequest& request);
  [[nodiscard]] Result<void> detach(SessionId session);
  [[nodiscard]] Result<void> pause(SessionId session, bool paused);
  void connection_lost(SessionId session);  ///< the process may still live: starts the reconnect deadline
  void process_exited(SessionId session);

  // buffers
  [[nodiscard]] Result<BufferGrant> allocate(SessionId session, std::uint64_t size_bytes);
  /// For an arena that a daemon before this one gave out: its descriptor has to come with the token.
  [[nodiscard]] Result<BufferGrant> adopt(SessionId session, std::uint64_t size_bytes);
  [[nodiscard]] Result<void> release(SessionId session, std::uint64_t buffer);

  struct TakenFd {
    UniqueFd fd;  ///< none where one was given
    std::uint64_t size_bytes = 0;
  };

  /// One use of a token; the peer must have the uid (and pid, unless 0) of the session that got it. A token of
  /// `allocate` or of a record gives the descriptor; one of `adopt` takes the `given` one.
  [[nodiscard]] Result<TakenFd> exchange_fd(
      const std::string& token, std::uint32_t uid, std::int64_t pid, UniqueFd given
  );

  // declaration and steps
  void declare(SessionId session, DeclareRequest request, Reply<DeclareResult> reply);
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
  [[nodiscard]] Result<std::vector<StepReport>> stats(
      std::optional<std::uint32_t> uid, const std::string& job, std::int64_t last
  ) const;
  [[nodiscard]] Result<std::shared_ptr<const plan::Plan>> plan_of(
      std::optional<std::uint32_t> uid, const std::string& job
  ) const;

  // the outside world
  void on_lane_report(device::LaneReport report);
  void on_plan(PlanOutcome outcome);
  void advance(TimePoint now);  ///< call before any event of that moment, and when `next_deadline` has come
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  /// No new ranks and plans; what has begun may finish, and a job in which nothing has is halted.
  void drain();
  [[nodiscard]] bool idle() const;  ///< no call waits, no step has begun and nothing runs on the lane
  /// The end, before connections close: attempts in flight fail without an answer, so that who waits goes on with the
  /// successor, and nothing is launched or recorded any more.
  void halt();
  /// After `halt`: nothing on the lane changes gradients, or it hangs (`EngineDeadlines::lane`).
  [[nodiscard]] bool at_rest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradsync::engine
