#pragma once
// The transfer program of a bucket, as collectives of all nodes that a sum comes from: how its sums travel where a
// library adds them up instead of one of the nodes (docs/adr/0037). A pure function of the program.
//
// Places of a collective follow each other. Each holds the numbers of a block: the elements of a block, then one number
// for each of its pieces, 1 where a rank of the node contributed and 0 where none did, so that its sum says whether
// anybody has.
//
// Invariants: every block of the program is in one collective. All members of a collective have its blocks in the same
// places. Each node finds those that it is a member of in the order of this list, whatever else is in it.

#include "plan/transfer/bucket_transfer.hpp"

#include <cstdint>
#include <limits>
#include <vector>

namespace gradsync::plan {

inline constexpr std::uint32_t kNoBlock = std::numeric_limits<std::uint32_t>::max();

/// Blocks that are all-reduced go together up to so many numbers, 4 MiB of float32: a call of NCCL takes as long for
/// some kilobytes as for some hundreds of them, and a job has a block for each of its nodes.
inline constexpr std::uint64_t kMostTogether = 1u << 20;

struct TransferCollective {
  enum class Kind : std::uint8_t {
    AllReduce,      ///< places whose sums all members get
    ReduceScatter,  ///< a place for each member, who alone gets its sum; all have one size
  };

  Kind kind = Kind::AllReduce;
  std::vector<TransferNode> members;  ///< the sources of its blocks, ascending
  std::vector<std::uint32_t> blocks;  ///< by place: index into BucketTransfer::blocks; kNoBlock: nothing is there
  std::vector<std::uint64_t> begins;  ///< by place, in elements: multiples of kTransferUnit where they are all-reduced
  std::uint64_t elements = 0;         ///< scattered: of each place, the most that one needs; else of all places

  /// How many elements of staging memory it takes.
  [[nodiscard]] std::uint64_t staged() const {
    return kind == Kind::ReduceScatter ? elements * blocks.size() : elements;
  }
};

/// Blocks whose result one node gets are scattered, as many as there are members at once; the others, and one that
/// would be alone, are all-reduced, also where not every member is a destination. Those with equal members go together,
/// as long as they have `most_together` numbers at most.
[[nodiscard]] std::vector<TransferCollective> collectives_of(
    const BucketTransfer& transfer, std::uint64_t most_together = kMostTogether
);

using CollectivesByBucket = std::vector<std::vector<TransferCollective>>;

}  // namespace gradsync::plan
