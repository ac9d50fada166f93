#pragma once
// The result of a step and the read models of the engine, as values. Field names are wire names.

#include "base/text/shared_text.hpp"
#include "plan/clip/clip_rule.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// The decision that a watching policy would have made on the norm of its clip group.
struct WatchReport {
  std::string policy;  ///< in the words of plan::words_of
  double threshold = 0;
  double coefficient = 1;
  bool clipped = false;
  plan::StepAction action = plan::StepAction::Step;
  bool spike = false;
  std::string reason;
  friend bool operator==(const WatchReport&, const WatchReport&) = default;
};

struct GroupReport {
  std::string name;
  double norm = 0;
  double threshold = 0;  ///< +infinity when only measured
  double coefficient = 1;
  bool clipped = false;
  std::string reason;
  plan::StepAction action = plan::StepAction::Step;  ///< Zero: its gradients became 0
  bool spike = false;                                ///< the norm was far above the threshold
  std::vector<WatchReport> watch = {};               ///< in the order of the declaration
  friend bool operator==(const GroupReport&, const GroupReport&) = default;
};

struct LayerReport {
  SharedText name;
  double norm = 0;
  friend bool operator==(const LayerReport&, const LayerReport&) = default;
};

struct NonfiniteInput {
  std::int64_t rank = 0;
  std::uint64_t count = 0;
  /// That completed the bucket of the tensor on that rank; none: the rank did not say. The values may be older.
  std::optional<std::int64_t> micro_batch = {};
  friend bool operator==(const NonfiniteInput&, const NonfiniteInput&) = default;
};

struct NonfiniteReport {
  std::string tensor;
  std::uint64_t count = 0;             ///< in the stored result
  std::vector<NonfiniteInput> inputs;  ///< counts of the ranks' inputs before the reduction; empty: arose in the sum
  friend bool operator==(const NonfiniteReport&, const NonfiniteReport&) = default;
};

struct DivergenceReport {
  std::string tensor;
  std::vector<std::int64_t> ranks;          ///< ranks whose bits differ from those of the lowest rank
  std::vector<std::int64_t> majority = {};  ///< ranks with the bits that more than half of the copies have
  std::vector<std::int64_t> suspects = {};  ///< the others; all ranks compared where there is no majority
  friend bool operator==(const DivergenceReport&, const DivergenceReport&) = default;
};

/// Data path `stats` only.
struct MissingReport {
  std::string tensor;
  std::vector<std::int64_t> ranks;  ///< without a gradient for what they hold, while others have one
  friend bool operator==(const MissingReport&, const MissingReport&) = default;
};

/// The cost of the norm between nodes: one packed vector of doubles, summed over these axes.
struct ScalarCollectiveReport {
  std::string mesh;
  std::vector<std::string> axes;
  std::int64_t length = 0;
  friend bool operator==(const ScalarCollectiveReport&, const ScalarCollectiveReport&) = default;
};

struct StepTimings {
  double wait_s = 0;    ///< first finish until the last
  double reduce_s = 0;  ///< lane time of the reductions; of several lanes that of the longest
  double norm_s = 0;
  double clip_s = 0;
  double total_s = 0;  ///< first finish until the commit
  friend bool operator==(const StepTimings&, const StepTimings&) = default;
};

struct StepReport {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::uint64_t next_attempt = 0;
  double norm = 0;       ///< before clipping, over all clip groups, unscaled units
  double threshold = 0;  ///< that of the first clip group
  double coefficient = 1;
  bool clipped = false;  ///< any group
  bool skipped = false;  ///< nothing was multiplied, and no optimizer may step
  std::string reason;    ///< that of the clip group that decided, else of the first
  bool found_inf = false;
  std::vector<GroupReport> groups;
  std::vector<LayerReport> layers;
  std::vector<NonfiniteReport> nonfinite;
  std::vector<DivergenceReport> divergence;
  std::vector<std::uint32_t> absent;  ///< tensors that got no gradient on any rank; data path `stats`: see absent_names
  std::vector<std::uint32_t> stable_buckets;  ///< buckets whose hook counts were equal on all ranks in this step
  std::uint64_t counted_elements = 0;
  std::int64_t collectives = 0;  ///< bucket reductions launched
  std::string data_path = "arena";
  std::string policy_digest;
  StepTimings timings;
  std::vector<MissingReport> missing;
  std::vector<std::string>
      absent_names;  ///< on data path `stats`, where ranks number tensors differently: the first 64 of them
  std::vector<ScalarCollectiveReport> scalar_collectives;  ///< the same in every step of a plan
  bool check_next = false;  ///< the next step is checked: on data path `stats` its rows carry fingerprints
  /// Step, Skip or Raise: the strongest of the groups. Raise: the trainer raises from the report, on every rank.
  plan::StepAction action = plan::StepAction::Step;
  std::string decided_by;  ///< the clip group that skips or raises the step by its norm; empty: none does
  std::optional<std::string> partial_sums;  ///< "bfloat16", where that was declared
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

/// The answer to one rank; ranks that get the same answer share it.
struct RankReport {
  std::shared_ptr<const StepReport> report;
  std::shared_ptr<const std::string> text;  ///< the reply, made once for the record of the job; null: none was made
};

/// A report as the text that its rank is answered, in at most `room` bytes where that is possible. Called on any
/// thread.
using EncodeReport = std::function<std::string(const StepReport& report, std::size_t room)>;

struct RankStatus {
  std::int64_t rank = 0;
  std::string state;  ///< "attached" | "declared" | "disconnected"
  std::int64_t pid = 0;
  std::string waiting_in;  ///< method of the call the rank waits in, or ""
  double waited_s = 0;
  bool paused = false;
  std::uint64_t arena_bytes = 0;
  std::string measured_by;  ///< what takes its statistics, or ""
};

/// A policy of a clip group in the last whole window of steps; before there is one, in those so far.
struct ClipStatus {
  std::string group;
  std::string policy;      ///< in the words of plan::words_of
  bool watches = false;    ///< it says only what it would have done
  std::int64_t steps = 0;  ///< of the window
  double clip_rate = 0;    ///< share of them whose norm exceeded the threshold
  double threshold = 0;    ///< of the last of them; +infinity: none
  double threshold_lowest = 0;
  double threshold_highest = 0;
  std::vector<std::string> signs;  ///< of ill health, in words
};

/// A status has no more of them per job, because it has to fit into a message.
inline constexpr std::size_t kMostClipStatuses = 16;

/// A group of ranks whose gradients travel between nodes, as this node sees it.
struct CommunicatorStatus {
  std::string name;                 ///< the axes of its buckets, and 16 hex digits of its ranks
  std::vector<std::int64_t> ranks;  ///< that bring something, ascending; by NCCL: that stand for its members
  std::string transport;            ///< "sockets" or "nccl"
  std::uint64_t epoch = 0;
  std::string state;  ///< "connecting", "idle" or "reducing"
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t operations = 0;           ///< buckets that were reduced, or collectives that were done
  std::uint64_t operations_per_step = 0;  ///< of a whole step
  double last_use_age_s = -1;             ///< −1: it was not used yet
};

struct JobStatus {
  std::string job;
  std::uint32_t uid = 0;
  std::int64_t world_size = 0;
  std::string state;   ///< "forming" | "ready" | "stepping"
  std::string reason;  ///< the events that it waits for, in words
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t last_step = -1;
  std::uint64_t steps_committed = 0;
  std::uint64_t steps_failed = 0;
  std::string plan_digest;
  std::int64_t tensors = 0;
  std::int64_t buckets = 0;
  std::string data_path = "arena";
  double last_commit_age_s = -1;  ///< −1: none yet
  double norm = 0;                ///< that of the last committed step
  double threshold = 0;
  std::vector<ClipStatus> clip;                   ///< the first 16 policies
  std::vector<CommunicatorStatus> communicators;  ///< the first 16
  std::vector<RankStatus> ranks;                  ///< those that have a process
  std::int64_t absent = 0;                        ///< how many have none
  std::vector<std::int64_t> absent_ranks;         ///< the lowest 20 of them
  std::optional<std::string> partial_sums;        ///< "bfloat16", where that was declared
};

}  // namespace gradsync::engine
