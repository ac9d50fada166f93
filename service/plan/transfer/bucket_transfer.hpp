#pragma once
// The transfer program of a bucket: what of its sums travels between the nodes of a job, in which blocks, and which
// node adds it up (docs/adr/0032). A pure function of the plan, rank → node and options: every node makes the same one.
//
// A sum whose sources and destinations are on more than one node travels. Each node with sources adds their inputs, in
// the order of ranks; that is its partial sum. One of the nodes with a destination owns a block: it adds the partial
// sums in the order of nodes, its own in its place, divides, rounds once, and sends the result to the other nodes with
// a destination. Where a piece has no contributing source, its partial sum is −0.0, which no addition notices.
//
// Invariants:
// - Every element of every sum that travels is in one piece of one block, and nothing else is.
// - For each block a node sends its partial sum to the owner, or the result to the others, or nothing: never both, and
//   to no node twice.
// - Let a stream of E elements have d destination nodes, partial sums of p bytes and results of r. A destination node
//   sends at most (E·p + E·r) · (d − 1) / d + kTransferUnit · |r · (d − 1) − p| bytes of it, another source node
//   E · p; each message has a bit per piece besides, in whole bytes. With p = r an all-reduce over n nodes is
//   2 · (n − 1) / n of its bytes, and a reduce-scatter, where each part has one destination, what is not its own.
// - A block has at most `block_bytes` of partial sums, and fits sixteen times into the staging memory of its owner,
//   unless it is a single unit.
// - Partial sums s_i in bfloat16 move a sum of n nodes, before it is divided and rounded to its format, from that of
//   exact partial sums by at most 2^-8 · Σ |s_i| over the nodes other than the owner, and by 2^-134 for each of them,
//   beside what float32 additions lose of either sum: (n − 1) · 2^-24 · Σ |s_i| · (1 + 2^-7). One above 3.39e38 becomes
//   infinite. All ranks get the bits of the owner in any case.

#include "plan/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace gradsync::plan {

/// A node of the job: nodes are numbered from 0.
using TransferNode = std::uint32_t;

/// Blocks begin at multiples of this in their stream, in elements: 64 bytes of the smallest type.
inline constexpr std::uint64_t kTransferUnit = 32;

struct TransferOptions {
  PartialSums partial_sums = PartialSums::Exact;
  std::uint64_t block_bytes = 1u << 20;     ///< of partial sums, the most of a block
  std::uint64_t staging_bytes = 64u << 20;  ///< of the job on one node
};

/// Some elements of one sum of a part.
struct TransferPiece {
  std::uint32_t tensor = 0;    ///< index into Plan::tensors
  std::uint32_t part = 0;      ///< index into PlannedTensor::parts
  std::uint32_t sum = 0;       ///< index into Plan::sums[PlannedPart::sums]
  std::uint64_t first = 0;     ///< element of the part
  std::uint64_t elements = 0;  ///< at least one
  friend bool operator==(const TransferPiece&, const TransferPiece&) = default;
};

/// All sums of a bucket whose sources, and whose destinations, are on the same nodes; their elements follow each other
/// without gaps. Each destination node owns one range of it.
struct TransferStream {
  std::vector<TransferNode> sources;       ///< ascending, which is the order of the additions
  std::vector<TransferNode> destinations;  ///< ascending; each is a source as well
  std::uint64_t elements = 0;
};

/// What travels at once: a message with its partial sum from each other source to the owner, and one with the result
/// from the owner to each other destination.
struct TransferBlock {
  std::uint32_t stream = 0;  ///< index into BucketTransfer::streams
  TransferNode owner = 0;
  std::uint32_t first_piece = 0;  ///< its pieces follow each other in BucketTransfer::pieces
  std::uint32_t pieces = 0;
  std::uint64_t elements = 0;
  friend bool operator==(const TransferBlock&, const TransferBlock&) = default;
};

struct BucketTransfer {
  std::uint32_t bucket = 0;
  DType result = DType::Float32;   ///< the format of gradients and results
  DType partial = DType::Float32;  ///< the format in which partial sums travel
  DType sum = DType::Float32;      ///< the format of the additions; an owner does not round its own partial sum
  std::vector<TransferStream> streams;
  std::vector<TransferBlock> blocks;  ///< in the order of the work: one for each owner, then the next for each
  std::vector<TransferPiece> pieces;  ///< block by block

  [[nodiscard]] std::span<const TransferPiece> pieces_of(const TransferBlock& block) const {
    return std::span(pieces).subspan(block.first_piece, block.pieces);
  }
};

/// Whether the sources and destinations of a sum are on more than one node.
[[nodiscard]] bool travels(const RankSum& sum, std::span<const TransferNode> node_of_rank);

/// `node_of_rank` has a node for each rank of the world. Data path arena only.
[[nodiscard]] BucketTransfer make_bucket_transfer(
    const Plan& plan,
    std::uint32_t bucket,
    std::span<const TransferNode> node_of_rank,
    const TransferOptions& options = {}
);

}  // namespace gradsync::plan
