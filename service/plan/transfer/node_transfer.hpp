#pragma once
// What one node sends and receives for a bucket, in its order: the projection of a transfer program onto that node.
//
// Invariant: the messages of one payload from node a to node b have the numbers 0, 1, 2 … in the order of the program,
// and both ends number them alike. A message is named by bucket, payload and number, and its size is known before it
// arrives: its elements without gaps, then a bit per piece in whole bytes, the lowest bit first. The bit says whether a
// rank behind the message contributed to the piece: one of the sender's for a partial sum, any for a result.

#include "plan/transfer/bucket_transfer.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::plan {

enum class Payload : std::uint8_t {
  Partial,  ///< a partial sum, to the owner of the block
  Result,   ///< the result, from the owner of the block
};

struct TransferMessage {
  std::uint32_t block = 0;  ///< index into BucketTransfer::blocks
  TransferNode peer = 0;    ///< the other end
  Payload payload = Payload::Partial;
  std::uint32_t number = 0;  ///< among those of its payload from sender to receiver
  std::uint64_t bytes = 0;
  friend bool operator==(const TransferMessage&, const TransferMessage&) = default;
};

/// Both in the order of blocks, and of peers in a block.
struct NodeTransfer {
  std::vector<TransferMessage> sends;
  std::vector<TransferMessage> receives;
};

[[nodiscard]] NodeTransfer transfer_of_node(const BucketTransfer& transfer, TransferNode node);

[[nodiscard]] std::uint64_t message_bytes(const BucketTransfer& transfer, const TransferBlock& block, Payload payload);

/// The staging memory that a block takes on a node until all its messages there have been sent or received: at the
/// owner every partial sum, its own too, and the result if another node gets it. Messages begin at multiples of 64
/// bytes. 0: the node has no part in the block.
[[nodiscard]] std::uint64_t staging_bytes_of(
    const BucketTransfer& transfer, const TransferBlock& block, TransferNode node
);

}  // namespace gradsync::plan
