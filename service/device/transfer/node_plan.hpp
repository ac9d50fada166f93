#pragma once
// What of a loaded plan travels between nodes, as one node needs it: its blocks in the order of the work, cut into
// chunks, with the messages of each. Made once; only `NodeAttempt` changes from step to step.
//
// Invariant: the layout's sums name only members that are on this node, once this was made of it. A sum that is
// elsewhere is empty then.

#include "device/lane.hpp"
#include "device/math/chunk_math.hpp"
#include "device/math/chunk_table.hpp"
#include "plan/transfer/node_transfer.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace gradsync::device {

/// Where the members of a sum are.
enum class SumPlace : std::uint8_t { Here, Travels, Elsewhere };

/// What this node knows of the contributions to a sum in an attempt.
enum class SumKnown : std::uint8_t { Nothing, Contributed, Empty };

inline constexpr std::uint32_t kNotCounted = std::numeric_limits<std::uint32_t>::max();

/// Some elements of a piece, at most kChunkElements of them.
struct BlockChunk {
  Chunk chunk;              ///< of inputs: their runs; of outputs: one run of elements of the part
  std::uint32_t piece = 0;  ///< index into BucketTransfer::pieces
  /// For outputs that the norm counts here: the place of their statistics in ChunkTable::chunks.
  std::uint32_t counted = kNotCounted;
  std::uint64_t at = 0;  ///< its first element in the block
};

/// A block in which this node has a part.
struct NodeBlock {
  std::uint32_t block = 0;  ///< index into BucketTransfer::blocks
  bool owned = false;
  std::uint64_t staging_bytes = 0;
  ChunkRange inputs;    ///< of NodeBucket::inputs; none: no source is here
  ChunkRange outputs;   ///< of NodeBucket::outputs; none: no destination is here
  ChunkRange sends;     ///< of NodeBucket::messages.sends
  ChunkRange receives;  ///< of NodeBucket::messages.receives
};

struct NodeBucket {
  using Name = std::tuple<plan::TransferNode, plan::Payload, bool>;  ///< the other end, and whether it is received

  std::vector<NodeBlock> blocks;
  std::vector<BlockChunk> inputs;
  std::vector<BlockChunk> outputs;
  plan::NodeTransfer messages;
  std::map<Name, std::vector<std::uint32_t>> block_of;  ///< by number of the message: index into `blocks`
  ChunkRange held_tasks;                                ///< of NodePlan::held_tasks
};

/// A part that this node compares with others, or of which it alone has the results of several sums.
struct ComparedPart {
  std::uint32_t part = 0;
  ChunkRange held;  ///< of NodePlan::held
};

/// What steps write.
struct NodeAttempt {
  std::vector<SumKnown> known;  ///< by sum of a part, NodePlan::first_sum; of sums that travel
  /// By tensor: values of sums that the norm does not count. One that is not finite makes the norm so.
  std::vector<std::atomic<std::uint64_t>> replica_nonfinite;
  std::vector<std::atomic<std::uint64_t>> replica_nan;
  std::vector<std::uint64_t> hashes;  ///< by NodePlan::held, of `hashed` parts in buckets that were compared; else none
  std::vector<bool> compared;         ///< by bucket
};

struct NodePlan {
  plan::TransferNode node = 0;
  std::vector<std::vector<SumPlace>> places;  ///< by LanePlan::sums
  std::vector<bool> all_here;                 ///< by LanePlan::sums: every sum is
  std::vector<bool> some_here;                ///< by LanePlan::sums: some sum is
  std::vector<std::size_t> first_sum;         ///< by part
  std::vector<bool> has_input;                ///< by tensor: a rank of this node brings it into some sum
  std::vector<NodeBucket> buckets;
  std::vector<ChunkRange> counted;  ///< by tensor: statistics of blocks that this node owns, as of ChunkTable::chunks
  std::uint32_t first_counted = 0;  ///< of ChunkTable::chunks; those before it are of sums that are here as a whole
  std::vector<Chunk> held;          ///< every output on this node, in single runs
  std::vector<ChunkRange> held_tasks;              ///< of `held`, for passes over outputs
  std::vector<std::vector<ComparedPart>> classes;  ///< by LaneNodes::classes
  std::vector<std::uint64_t> whole_hashes;         ///< by class: that of a step in which every sum has a gradient
  std::vector<bool> hashed;                        ///< by part: it is in a class, and other nodes have results of it
  std::vector<plan::TransferNode> peers;           ///< ascending; with which messages are exchanged
  std::uint64_t staging_bytes = 0;                 ///< that are needed at once, at most
  std::size_t most_sources = 0;                    ///< partial sums of a block
  NodeAttempt attempt;

  [[nodiscard]] bool is_here(const LanePart& part, std::size_t sum) const {
    return places[part.sums][sum] == SumPlace::Here;
  }

  /// For a sum that the norm does not count; any worker.
  void note_replica(std::uint32_t tensor, const ChunkStats& stats) {
    attempt.replica_nonfinite[tensor].fetch_add(stats.nonfinite, std::memory_order_relaxed);
    attempt.replica_nan[tensor].fetch_add(stats.nan, std::memory_order_relaxed);
  }

  [[nodiscard]] SumKnown& known(std::uint32_t part, std::size_t sum) { return attempt.known[first_sum[part] + sum]; }

  [[nodiscard]] SumKnown known(std::uint32_t part, std::size_t sum) const {
    return attempt.known[first_sum[part] + sum];
  }
};

/// For a layout that was checked. Leaves only the members of this node in its sums.
[[nodiscard]] std::unique_ptr<NodePlan> make_node_plan(LanePlan& layout);

/// Gives each chunk whose statistics are this node's a place at the end of the table, tensor by tensor.
void place_counted_chunks(const LanePlan& layout, NodePlan& nodes, ChunkTable& table);

}  // namespace gradsync::device
