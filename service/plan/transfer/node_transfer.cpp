#include "plan/transfer/node_transfer.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace gradsync::plan {

namespace {

/// Numbers the messages of one direction of the node's links.
class Messages {
 public:
  Messages(const BucketTransfer& transfer, std::vector<TransferMessage>& messages)
      : transfer_(transfer), messages_(messages) {}

  void add(std::uint32_t block, TransferNode peer, Payload payload) {
    const std::uint64_t bytes = message_bytes(transfer_, transfer_.blocks[block], payload);
    messages_.push_back({block, peer, payload, next_[{peer, payload}]++, bytes});
  }

 private:
  const BucketTransfer& transfer_;
  std::vector<TransferMessage>& messages_;
  std::map<std::pair<TransferNode, Payload>, std::uint32_t> next_;
};

}  // namespace

NodeTransfer transfer_of_node(const BucketTransfer& transfer, TransferNode node) {
  NodeTransfer made;
  Messages sends(transfer, made.sends);
  Messages receives(transfer, made.receives);
  for (std::uint32_t index = 0; index < transfer.blocks.size(); ++index) {
    const TransferNode owner = transfer.blocks[index].owner;
    const TransferStream& stream = transfer.streams[transfer.blocks[index].stream];
    for (const TransferNode source : stream.sources) {
      if (source != owner && node == owner) {
        receives.add(index, source, Payload::Partial);
      } else if (source != owner && node == source) {
        sends.add(index, owner, Payload::Partial);
      }
    }
    for (const TransferNode destination : stream.destinations) {
      if (destination != owner && node == owner) {
        sends.add(index, destination, Payload::Result);
      } else if (destination != owner && node == destination) {
        receives.add(index, owner, Payload::Result);
      }
    }
  }
  return made;
}

std::uint64_t message_bytes(const BucketTransfer& transfer, const TransferBlock& block, Payload payload) {
  const DType dtype = payload == Payload::Partial ? transfer.partial : transfer.result;
  return block.elements * size_of(dtype) + (block.pieces + 7) / 8;
}

std::uint64_t staging_bytes_of(const BucketTransfer& transfer, const TransferBlock& block, TransferNode node) {
  const TransferStream& stream = transfer.streams[block.stream];
  const std::uint64_t partial = align_up(message_bytes(transfer, block, Payload::Partial));
  const std::uint64_t result = align_up(message_bytes(transfer, block, Payload::Result));
  if (node == block.owner) {
    const std::uint64_t own = align_up(block.elements * size_of(transfer.sum));
    return own + (stream.sources.size() - 1) * partial + (stream.destinations.size() > 1 ? result : 0);
  }
  const bool source = std::ranges::binary_search(stream.sources, node);
  const bool destination = std::ranges::binary_search(stream.destinations, node);
  return (source ? partial : 0) + (destination ? result : 0);
}

}  // namespace gradsync::plan
