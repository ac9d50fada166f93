#pragma once
// The types that the façade, the machines and the jobs share: options, identities, requests and their results.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fair_budget.hpp"
#include "base/unique_fd.hpp"
#include "device/memory/arena.hpp"
#include "engine/peers/record_words.hpp"
#include "engine/report/report.hpp"
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
  std::uint64_t arena_bytes = 0;  ///< the limit for all jobs together; 0: what the machine has
  std::int64_t tokens = 16'384;   ///< that wait to be used, of all jobs together
  std::int64_t tensors = 200'000;
  /// The limit for the memory of all declarations: of pages that came, and of what ranks have declared.
  std::uint64_t declared_bytes = 1u << 30;
  std::uint64_t report_bytes = 256u << 20;  ///< the limit for the reports that are kept of all jobs
  std::int64_t world_size = 4096;
};

struct EngineDeadlines {
  Milliseconds declare{300'000};
  Milliseconds first_step{1'800'000};
  Milliseconds step{600'000};
  Milliseconds reconnect{2'000};    ///< a closed connection of a live process has this long to come back
  Milliseconds token{10'000};       ///< validity of an fd token
  Milliseconds unused_gpu{30'000};  ///< a worker whose GPU has no buffer any more ends after this
  Milliseconds lane{3'000};         ///< an aborted lane has this long to come to rest; less than the client's 5 s more
};

/// Returns what is left beside these arenas.
using MeasureMemory = std::function<device::MemoryHeadroom(const device::ArenaBytes& arenas)>;

class Peers;
struct AttachRequest;
using JobNumber = std::uint64_t;  ///< of a job in this daemon; a later job of the same name has another

/// The port of a new job to its other nodes; null where all of its ranks are on this node.
using MakePeers = std::function<std::unique_ptr<Peers>(JobNumber, const AttachRequest& first)>;

struct FlightDump;

/// Takes what the flight recorder of a job has, after a failure; must only hand it over.
using KeepDump = std::function<void(FlightDump)>;

struct EngineOptions {
  plan::BucketSizes buckets;
  EngineLimits limits;
  EngineDeadlines deadlines;
  std::int64_t check_every =
      100;  ///< replica comparison: the first three steps of an epoch, then every this many; 0: no more
  std::int64_t history = 1000;  ///< reports kept per job
  /// The first epoch of every job. It is random in a daemon, so that epochs of the daemon before it do not exist here;
  /// at least 1, and far below 2^32, because (epoch << 32) + attempt + 1 names an attempt in one word.
  std::uint64_t first_epoch = 1;
  EncodeReport encode_report;            ///< none: no job has a record of its steps
  std::size_t encoded_bytes = 1u << 20;  ///< no result has more
  std::uint32_t own_uid = 0;             ///< the daemon's: no uid limit holds for it (base/fair_budget.hpp)
  MeasureMemory measure_memory = [](const device::ArenaBytes& arenas) { return device::memory_headroom(arenas); };
  std::string policy_directory;  ///< where the policies' states outlive the daemon; empty: they are not stored
  MakePeers make_peers;          ///< none: every job has all of its ranks on this node
  bool other_nodes = true;       ///< with `make_peers`: jobs may have ranks on other nodes
  KeepDump keep_dump;            ///< none: failures leave no dump
  bool cpu_collectives = false;  ///< gradients in memory of CPUs travel by NCCL, on a lane in a worker; else by sockets
};

struct AttachRequest {
  std::string job;
  std::uint32_t uid = 0;  ///< that of the peer process; jobs of other uids are other jobs
  std::int64_t pid = 0;
  std::string client_id;  ///< equal to that of the session it resumes after a lost connection
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::vector<plan::Mesh> meshes;
  std::int64_t restart_count = 0;     ///< a higher one supersedes live ranks and may change the world size
  std::int64_t local_world_size = 0;  ///< ranks of this node; 0: all of them
  std::string coordinator;            ///< HOST or HOST:PORT of rank 0's node; empty: rank 0 is on this one

  [[nodiscard]] std::int64_t ranks_here() const { return local_world_size > 0 ? local_world_size : world_size; }
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

/// Memory of a GPU that the rank's process allocated, and exported by a handle. An allocation is named by its address
/// and a generation, which goes up whenever memory that was exported may have been freed.
struct ExportedBuffer {
  std::string gpu;     ///< UUID: "GPU-…"
  std::string handle;  ///< the 64 bytes of cuIpcGetMemHandle
  std::uint64_t base = 0;
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t generation = 0;
};

struct RegisteredBuffer {
  std::uint64_t buffer = 0;
  std::uint64_t size_bytes = 0;
};

/// The result of a token's exchange.
struct TakenFd {
  UniqueFd fd;  ///< none where one was given
  std::uint64_t size_bytes = 0;
};

/// The record of the job's attempts, for a rank to map for reading (engine/step/step_record.hpp).
struct RecordGrant {
  std::string token;  ///< 32 hex digits, one use
  std::uint64_t size_bytes = 0;
};

using JobKey = std::pair<std::uint32_t, std::string>;  ///< uid and name

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
  /// The rank comes back, and has read the record of the daemon before this one.
  bool comes_back = false;
  std::optional<StepKey> last_done;  ///< that the daemon before this one did: policies go on from there
  /// The attempt that a call of the rank waits for, which its node voted for; the record does not say what it came to.
  std::optional<StepKey> doubt;
  std::shared_ptr<FairBudget::Share> held = {};  ///< of `Engine::declared_bytes`, as long as the declaration stands
};

struct DeclareResult {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::shared_ptr<const plan::Plan> plan;
  std::int64_t rank = 0;          ///< the rank that declared
  std::uint64_t arena_bytes = 0;  ///< the bytes of this rank's buffer that are used: its arena or its table
  bool check = false;             ///< the first step is checked: on data path `stats` its rows carry fingerprints
  std::optional<RecordGrant> record;
  std::optional<Verdict> verdict;  ///< done or failed: what came of the attempt that the rank was in doubt about
};

struct BucketReady {
  StepKey key;
  std::uint32_t bucket = 0;
  std::optional<std::int64_t> micro_batch = {};  ///< that completed it
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
  std::vector<std::uint32_t> ready;  ///< otherwise these are ready, those already notified included
  std::vector<std::uint32_t> unused;
  double scale = 1.0;
  bool scaled = false;  ///< a norm that is not finite skips the step, whatever was declared, for a loss scaler
  bool override_max_norm = false;  ///< `max_norm` replaces that of the first clip group for this step
  std::optional<double> max_norm;
  std::vector<std::uint32_t> bucket_digests;  ///< digests of hook counts, one per bucket; empty: not given
  std::optional<std::int64_t> micro_batch;    ///< that completed the buckets that were not notified
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

/// A state that the policies of a job go on with; equal on all ranks, between two steps.
struct ImportRequest {
  StepKey key;
  std::string state;
  std::optional<Milliseconds> timeout;
};

struct PolicyExport {
  std::string state;   ///< the state after the last step that was done
  std::string digest;  ///< the same digest as in its report
};

struct Event {
  std::string topic;  ///< "step" | "alert" | "epoch"
  std::uint32_t uid = 0;
  std::string job;
  std::string what;  ///< alert and epoch: one line in words
  std::string kind;  ///< alert: an error kind, "nonfinite", "divergence", "deadline_half", "lane_stuck",
                     ///< "step_skipped", "step_raised", "policy_state" or "clip_health"
  std::uint64_t epoch = 0;
  std::shared_ptr<const StepReport> report;  ///< topic step
};

using EventSink = std::function<void(const Event&)>;

}  // namespace gradsync::engine
