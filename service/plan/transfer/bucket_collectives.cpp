#include "plan/transfer/bucket_collectives.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace gradsync::plan {

namespace {

std::uint64_t numbers_of(const TransferBlock& block) { return block.elements + block.pieces; }

/// One block alone costs less where all get its sum than with empty places beside it.
void reduce_what_is_alone(TransferCollective& one) {
  if (one.kind == TransferCollective::Kind::ReduceScatter &&
      std::ranges::count(one.blocks, kNoBlock) + 1 == std::ssize(one.blocks)) {
    std::erase(one.blocks, kNoBlock);
    one.kind = TransferCollective::Kind::AllReduce;
  }
}

}  // namespace

std::vector<TransferCollective> collectives_of(const BucketTransfer& transfer) {
  using Kind = TransferCollective::Kind;
  std::vector<TransferCollective> made;
  std::map<std::vector<TransferNode>, std::size_t> open;  // the last one of these members that is scattered
  for (std::uint32_t index = 0; index < transfer.blocks.size(); ++index) {
    const TransferBlock& block = transfer.blocks[index];
    const TransferStream& stream = transfer.streams[block.stream];
    if (stream.destinations.size() != 1) {
      made.push_back({Kind::AllReduce, stream.sources, {index}, numbers_of(block)});
      continue;
    }
    const auto place = static_cast<std::size_t>(
        std::distance(stream.sources.begin(), std::ranges::lower_bound(stream.sources, stream.destinations.front()))
    );
    const auto found = open.find(stream.sources);
    if (found == open.end() || made[found->second].blocks[place] != kNoBlock) {
      open[stream.sources] = made.size();
      made.push_back(
          {Kind::ReduceScatter, stream.sources, std::vector<std::uint32_t>(stream.sources.size(), kNoBlock), 0}
      );
    }
    TransferCollective& one = made[open[stream.sources]];
    one.blocks[place] = index;
    one.elements = std::max(one.elements, numbers_of(block));
  }
  std::ranges::for_each(made, reduce_what_is_alone);
  return made;
}

}  // namespace gradsync::plan
