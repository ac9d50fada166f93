#pragma once
// A lane executes the work of one device in order. Commands go down and reports come back by value: nothing in them is
// a closure or a pointer into the sender, so a lane can be a thread (host) or another process (GPU).
//
// Invariants: commands are executed in the order of submission, but for `Abort`; each command yields exactly one
// report; `submit` never blocks and never throws. A reduction of a plan over nodes is under way from its command until
// its report; meanwhile commands of other plans are executed, and further reductions of its own are begun. The reports
// of a plan come in the order of its commands all the same. Where its sums travel by communicators, a `ConnectNodes`
// and an `Abort` are under way likewise, and what else is about the plan waits for them. `Abort` overtakes: reductions,
// finishes and scalings of its plan with a tag ≤ its own that are queued or running stop at the next chunk and report
// `Failed{aborted}`; the Abort's own report comes after all of theirs, so that after it nothing of them touches memory
// any more.
//
// What Abort promises in time: a pass of the aborted attempt that runs ends when each thread has done the chunk it has
// in hand, which is kChunkElements of one tensor on every rank: below a millisecond for the usual norms and up to some
// tens of ranks, several where a tensor's sum takes `pow`. Its queued commands and its report do not wait for commands
// of other plans in the queue, only for the one of another plan, or the mapping, that is being executed, and where
// there are communicators for NCCL to end them. No more is promised where the machine itself stands still: a thread
// that the kernel does not run, a page that it does not bring.

#include "base/shared_list.hpp"
#include "base/unique_fd.hpp"
#include "device/math/norm_sum.hpp"
#include "device/nccl/communicator.hpp"
#include "device/stats/stats_plan.hpp"
#include "device/step_math.hpp"
#include "plan/clip/clip_rule.hpp"
#include "plan/plan.hpp"
#include "plan/transfer/bucket_transfer.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::device {

using LaneId = std::uint32_t;    ///< one lane of this daemon
using PlanId = std::uint64_t;    ///< one loaded plan of one epoch of one job
using BufferId = std::uint64_t;  ///< one registered buffer
using Tag = std::uint64_t;       ///< the attempt a command belongs to

/// The lane of the CPU engine. It is the only lane of a daemon today.
inline constexpr LaneId kHostLane = 0;

// ---- layout of a loaded plan: only what the arithmetic needs

/// A rank in the sum of a tensor, with one of the tensor's tied copies: 0 is the tensor itself, k the k-th of
/// LaneTensor::copies.
struct LaneMember {
  std::uint32_t rank = 0;
  std::uint32_t copy = 0;
};

/// The sources whose inputs are added, in this order, and the destinations that get the result. Neither list is empty.
struct LaneSum {
  std::vector<LaneMember> sources;
  std::vector<LaneMember> destinations;
};

/// Runs at equal distances, in elements of the input.
struct LaneStride {
  std::uint64_t count = 1;
  std::uint64_t distance = 0;
};

/// The part of a tensor that some ranks hold after sync; all of it where nothing is sharded. It is contiguous in their
/// outputs, and lies in the inputs in runs. Parts of a tensor are disjoint.
struct LanePart {
  std::uint32_t tensor = 0;
  std::uint32_t sums = 0;           ///< index into LanePlan::sums
  std::uint64_t elements = 0;       ///< run · Π count
  std::uint64_t first = 0;          ///< element of the input at which it begins
  std::uint64_t run = 0;            ///< elements that lie together in the input
  std::vector<LaneStride> strides;  ///< strides between runs, innermost first; none: one run
};

struct LaneTensor {
  std::uint32_t bucket = 0;
  std::uint32_t clip_group = 0;
  std::int32_t layer = -1;            ///< index into LanePlan::layers; −1: none
  std::uint32_t first_part = 0;       ///< its parts, by box number, follow each other in LanePlan::parts
  std::uint32_t parts = 0;            ///< 0 for a tied copy: it is summed and counted with the tensor it is a copy of
  std::vector<std::uint32_t> copies;  ///< tensors tied to it; their memory takes part in its sums
};

struct LaneBucket {
  plan::DType dtype = plan::DType::Float32;
  std::vector<std::uint32_t> tensors;  ///< tied copies, too
  double divisor = 1.0;                ///< applied to every sum, once, also where one input alone is summed
};

/// The positions of tensors in an arena, in bytes. Where nothing is scattered the output is the input: then each source
/// of its parts' sums must be a destination as well.
struct LaneArena {
  std::vector<std::uint64_t> input;   ///< by tensor; kNotHeld: not in this arena
  std::vector<std::uint64_t> output;  ///< by tensor
};

inline constexpr std::uint64_t kNotHeld = ~std::uint64_t{0};

/// A communicator by which sums of a plan travel, with one lane of each of its sites.
struct LaneCommunicator {
  CommunicatorSpec spec;
  std::vector<plan::TransferNode> nodes;  ///< of its members, ascending; as many as spec.ranks
};

/// The communicators of a plan whose sums travel by collectives of NCCL (docs/adr/0037).
struct LaneCommunicators {
  JobNumber job = 0;
  bool fresh = false;                    ///< the last epoch failed: what is idle of the job is ended first
  std::vector<LaneCommunicator> needed;  ///< one for each set of nodes that sums come from, this one among them
};

/// The nodes of a job, for the lane of one of them. Ranks on other nodes have no buffer here; sums name them all the
/// same. What of a bucket travels is in its transfer; the lane reads the inputs of its own ranks and writes their
/// outputs (docs/adr/0034).
struct LaneNodes {
  plan::TransferNode node = 0;                   ///< this one
  std::vector<plan::TransferNode> node_of_rank;  ///< empty: all ranks are here, and nothing below is used
  /// By bucket; without streams where nothing of it travels. All sites of a node have one list.
  SharedList<plan::BucketTransfer> transfers = {};
  std::uint64_t staging_bytes = 64u << 20;  ///< as in the options of the transfers
  /// Parts, by tensor and number among its parts, that have several sums, not all of them on one node, and a
  /// destination here. Nodes compare them, each class of them by one hash; a class ascends.
  std::vector<std::vector<StatsBox>> classes = {};
  std::optional<LaneCommunicators> communicators = {};  ///< none: sums travel over connections
};

struct LanePlan {
  std::int64_t world_size = 1;
  double norm_type = 2.0;
  std::vector<LaneTensor> tensors;
  std::vector<LanePart> parts;
  /// Shared by parts that are summed alike. More than one sum: the part is replicated, and all of them have equal bits
  /// where training is right. The first that any rank contributes to is counted in the norm.
  std::vector<std::vector<LaneSum>> sums;
  std::vector<LaneBucket> buckets;
  std::vector<LaneArena> arenas;             ///< one for all ranks that are laid out alike
  std::vector<std::uint32_t> arena_of_rank;  ///< index into `arenas`
  std::uint32_t clip_groups = 1;
  std::uint32_t layers = 0;
  std::vector<BufferId> rank_buffers;  ///< one mapped arena per rank; 0: the rank is on another site
  LaneNodes nodes;
};

// ---- commands

/// Memory of a GPU that another process allocated and exported. Buffers of an equal `allocation` share one mapping:
/// that number names memory, while the bytes of a handle may come again for other memory.
struct ExportedMemory {
  std::uint64_t allocation = 0;        ///< given by the daemon, never twice to different memory
  std::string handle;                  ///< 64 bytes, of the allocation as a whole
  std::uint64_t allocation_bytes = 0;  ///< as its owner says; the mapping must not be smaller
  std::uint64_t offset = 0;            ///< of the buffer in the allocation
};

/// Maps the memory behind `fd` and populates the page tables, or maps what was exported. Reports Mapped.
struct MapBuffer {
  BufferId buffer = 0;
  UniqueFd fd;
  std::uint64_t size_bytes = 0;
  std::optional<ExportedMemory> exported = {};
};

/// Tries memory that was exported, and keeps nothing of it: opens its handle, also where that allocation is mapped
/// already, reads what is at the offset, writes the complement of each byte there, and closes the handle. `buffer` is a
/// number that no buffer has. Reports Probed.
struct ProbeMemory {
  BufferId buffer = 0;
  std::uint64_t size_bytes = 0;  ///< that are read and written: few
  ExportedMemory exported;
};

/// Punches the pages out (memory is freed even while others hold the fd), unmaps, closes. Reports Unmapped. With `fd`
/// the buffer need not be mapped: pages that only the client touched are freed here as well. Exported memory is closed
/// with the last buffer of its allocation, behind the collectives that are under way; its pages belong to the owner.
struct UnmapBuffer {
  BufferId buffer = 0;
  UniqueFd fd = {};
  std::uint64_t size_bytes = 0;
};

/// Prepares a plan: chunk table and scratch for its steps, so that a steady step allocates only its report. Reports
/// Loaded.
struct LoadPlan {
  PlanId plan = 0;
  LanePlan layout;
};

/// Prepares a plan of data path `stats`: nothing is reduced or multiplied on it, `FinishStep` reads the ranks' tables.
/// Reports Loaded.
struct LoadStats {
  PlanId plan = 0;
  StatsPlan layout;
};

/// Connected stream sockets to another node, one for each payload (device/wire/wire.hpp).
struct NodeConnection {
  plan::TransferNode node = 0;
  UniqueFd partials;
  UniqueFd results;
};

/// Gives a loaded plan that is over nodes its connections, once: one for each other node that a transfer of it sends to
/// or receives from; or, for each of its communicators, the instance that all of its members have in this epoch.
/// Without it nothing that travels is reduced. Reports Connected; where there are communicators, when all of them are
/// built and warm.
struct ConnectNodes {
  PlanId plan = 0;
  std::vector<NodeConnection> connections;
  std::vector<CommunicatorId> communicators = {};
};

/// Forgets a plan of either kind. Reports Unloaded.
struct UnloadPlan {
  PlanId plan = 0;
};

/// A tensor to which a rank contributed nothing: its input is not read. Unused on all ranks: *absent*, neither read nor
/// written. If no rank contributed to a sum, but others did to the tensor, the sum is zero and is written: the old
/// contents of an output must not be taken for a gradient.
struct UnusedTensor {
  std::uint32_t tensor = 0;
  std::int64_t rank = 0;
};

/// Makes every sum of the bucket, divides, writes the result to its destinations and gathers the statistics. Reports
/// Reduced.
struct ReduceBucket {
  PlanId plan = 0;
  Tag tag = 0;
  std::uint32_t bucket = 0;
  std::vector<UnusedTensor> unused;  ///< those that belong to this bucket
  /// Compare the sums of a part bit for bit (what must be replicated is); over nodes by hashes of their results.
  bool compare = false;
  /// Leaves all destinations of a sum but the first to the finish. A finish that multiplies writes them in any case,
  /// and saves a write of each; one that does not has to copy. The results are the same.
  bool defer = false;
};

/// Combines the statistics of all buckets into norms and, if `apply`, multiplies. It may be queued behind the last
/// reduction, and is refused, with nothing multiplied, unless every bucket was reduced with this tag. On a plan of data
/// path `stats` it reads the tables instead and never multiplies; a row that is stale or cannot be right fails it, with
/// tensor, rank and field. Reports Finished.
struct FinishStep {
  PlanId plan = 0;
  Tag tag = 0;
  double scale = 1.0;
  std::vector<plan::ClipRule> rules;  ///< one per clip group
  bool apply = true;                  ///< false: measure only; `ScaleGradients` may follow
  std::uint64_t stamp = 0;            ///< the stamp that rows of this attempt carry; data path `stats` only
  /// Nothing is decided: `Finished` brings what the nodes of a job add and compare. There are no rules and `apply` is
  /// false. A plan of which some ranks are on other nodes is finished in no other way.
  bool raw = false;
  HashSums sums = HashSums::In;  ///< with `raw`: whether hashes tell sums apart
};

/// Reads the tables of an attempt again, behind a raw finish of it: for the classes the hash of each box, or for the
/// boxes the rows of all ranks that are here. One of the two is given. On data path arena over nodes rows are made of
/// the results, and a rank without a gradient has one with the stamp 0. Reports RowsRead.
struct ReadRows {
  PlanId plan = 0;
  Tag tag = 0;
  std::vector<std::uint32_t> classes;  ///< index into StatsPlan::classes, or LaneNodes::classes
  std::vector<StatsBox> boxes;         ///< of any of them
};

/// What `FinishStep` is on a plan that several lanes share: the sums of the tensors in the buckets that this lane
/// reduced. Nothing is decided and nothing multiplied here; the caller adds the sums of all lanes. Refused unless these
/// buckets were reduced with this tag. Reports Measured.
struct MeasureBuckets {
  PlanId plan = 0;
  Tag tag = 0;
  std::vector<std::uint32_t> buckets;  ///< not empty, ascending
};

/// The second half of a step finished with `apply == false`, or of one that was measured: one outcome per clip group.
/// On data path `stats` the trainers multiply. Reports Scaled.
struct ScaleGradients {
  PlanId plan = 0;
  Tag tag = 0;
  std::vector<plan::ClipOutcome> outcomes;
  std::vector<std::uint32_t> buckets = {};  ///< those of this lane where several share the plan; empty: all
  /// On a plan over nodes of data path arena: the tensors that are absent on every node, ascending. Sums of others to
  /// which no rank contributed are written as zero now. Such a plan gets this command in every step.
  std::vector<std::uint32_t> absent = {};
};

/// See the invariants above. Reports Aborted.
struct Abort {
  PlanId plan = 0;
  Tag tag = 0;
};

/// Changes how many threads work: all of them while every trainer waits, few while backward runs. Takes effect at once,
/// also for work already running. No report.
struct SetWidth {
  bool wide = false;
};

using LaneCommand = std::variant<
    MapBuffer,
    UnmapBuffer,
    LoadPlan,
    LoadStats,
    UnloadPlan,
    ReduceBucket,
    FinishStep,
    MeasureBuckets,
    ScaleGradients,
    Abort,
    SetWidth,
    ProbeMemory,
    ReadRows,
    ConnectNodes>;

// ---- reports

struct Mapped {
  BufferId buffer = 0;
};

struct Unmapped {
  BufferId buffer = 0;
};

/// What the lane has of the communicators that a plan needs, for the other nodes to hear.
struct LoadedCommunicators {
  int version = 0;  ///< of NCCL
  std::vector<CommunicatorOffer> offers;
};

struct Loaded {
  PlanId plan = 0;
  std::optional<LoadedCommunicators> communicators = {};  ///< of a plan whose sums travel by them
};

struct Connected {
  PlanId plan = 0;
};

struct Unloaded {
  PlanId plan = 0;
};

/// What a bucket took on the connections to one other node, of both payloads together. Times count from when the lane
/// began with the bucket.
struct LinkUse {
  plan::TransferNode node = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  double sent_s = 0;      ///< until the last byte was given away
  double received_s = 0;  ///< until the last byte was here
  double partials_s = 0;  ///< until its last partial sum was here, which waits for no third node; 0: it sends none
};

struct Reduced {
  PlanId plan = 0;
  Tag tag = 0;
  std::uint32_t bucket = 0;
  double busy_s = 0;
  std::vector<LinkUse> links = {};  ///< by node, ascending; none where nothing of the bucket travels
};

/// What a node has to say of a step before anything is decided.
struct RawStep {
  NodeCells cells;
  std::vector<std::uint64_t> class_hashes;  ///< by StatsPlan::classes, or LaneNodes::classes
};

struct Finished {
  PlanId plan = 0;
  Tag tag = 0;
  StepMath math;                            ///< of a raw finish: findings alone
  std::shared_ptr<const RawStep> raw = {};  ///< apart, so that reports of one node stay as small as they were
};

/// The sum of a tensor that the norm counts.
struct TensorCell {
  std::uint32_t tensor = 0;
  TensorSum sum;
  std::uint64_t elements = 0;  ///< those that were counted
};

struct Measured {
  PlanId plan = 0;
  Tag tag = 0;
  std::vector<TensorCell> cells;  ///< by tensor, ascending; of tensors in the buckets asked for that anybody used
  StepMath findings;              ///< what is to be said of these tensors; no norm and no outcome
};

struct Scaled {
  PlanId plan = 0;
  Tag tag = 0;
  double clip_s = 0;
};

struct Aborted {
  PlanId plan = 0;
  Tag tag = 0;
};

struct RowsRead {
  PlanId plan = 0;
  Tag tag = 0;
  std::vector<std::uint64_t> box_hashes;  ///< class by class, and box by box
  std::vector<HeldRow> rows;              ///< box by box: its own, then those of tied copies; each by rank
};

/// A row of data path `stats` that could not be believed.
struct FailedRow {
  std::uint32_t tensor = 0;
  std::int64_t rank = 0;
  std::string field;
};

/// Any command that could not be done. `buffer` or `plan` say which.
struct Failed {
  PlanId plan = 0;
  Tag tag = 0;
  BufferId buffer = 0;
  bool aborted = false;
  bool out_of_memory = false;
  std::string message;
  std::optional<FailedRow> row = {};
  std::string hint = {};   ///< what to do about it; may be empty
  bool lane_lost = false;  ///< so will every later command: the lane has to be replaced
  /// The connections of the plan are of no use any more, for a reason that `message` has; every later reduction of what
  /// travels fails alike. `node`: to which of them, where it is known.
  bool wire_lost = false;
  std::optional<plan::TransferNode> node = {};
  bool unsupported = false;  ///< of LoadPlan: this machine cannot do what it asks for
};

/// What a worker found of memory that another process exported, and how long each part took.
struct Probe {
  std::uint64_t mapped_bytes = 0;  ///< of the allocation; its owner may have asked for less
  std::string read;                ///< the bytes that were there before they were written
  double open_s = 0;               ///< the handle, and the GPU itself where this is the first use of it
  double copy_s = 0;               ///< both ways
  double close_s = 0;
};

struct Probed {
  BufferId buffer = 0;
  Probe probe;
};

using LaneReport = std::variant<
    Mapped,
    Unmapped,
    Loaded,
    Unloaded,
    Reduced,
    Finished,
    Measured,
    Scaled,
    Aborted,
    Failed,
    Probed,
    RowsRead,
    Connected>;

/// Called on a thread of the lane; must only hand the report over.
using LaneSink = std::function<void(LaneReport)>;

class Lane {
 public:
  virtual ~Lane() = default;  ///< finishes what is queued, then joins
  virtual void submit(LaneCommand command) = 0;
};

}  // namespace gradsync::device
