#include "plan/transfer/bucket_collectives.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace gradsync::plan {

namespace {

std::uint64_t numbers_of(const TransferBlock& block) { return block.elements + block.pieces; }

class Collectives {
 public:
  explicit Collectives(const BucketTransfer& transfer, std::uint64_t most_together)
      : transfer_(transfer), most_together_(most_together) {}

  [[nodiscard]] std::vector<TransferCollective> make() {
    for (std::uint32_t index = 0; index < transfer_.blocks.size(); ++index) {
      const TransferStream& stream = transfer_.streams[transfer_.blocks[index].stream];
      if (stream.destinations.size() == 1) {
        scatter(index, stream);
      } else {
        reduce(index, stream);
      }
    }
    std::ranges::for_each(made_, [this](TransferCollective& one) { end(one); });
    return std::move(made_);
  }

 private:
  using Kind = TransferCollective::Kind;
  /// By members: the last collective of theirs.
  using Last = std::map<std::vector<TransferNode>, std::size_t>;

  void reduce(std::uint32_t index, const TransferStream& stream) {
    const std::uint64_t numbers = numbers_of(transfer_.blocks[index]);
    const auto [last, fresh] = reduced_.try_emplace(stream.sources, made_.size());
    const std::uint64_t begin = fresh ? 0 : round_up(made_[last->second].elements);
    if (fresh || begin + numbers > most_together_) {
      last->second = made_.size();
      made_.push_back({Kind::AllReduce, stream.sources, {index}, {0}, numbers});
      return;
    }
    TransferCollective& one = made_[last->second];
    one.blocks.push_back(index);
    one.begins.push_back(begin);
    one.elements = begin + numbers;
  }

  void scatter(std::uint32_t index, const TransferStream& stream) {
    const auto place = static_cast<std::size_t>(
        std::distance(stream.sources.begin(), std::ranges::lower_bound(stream.sources, stream.destinations.front()))
    );
    const auto [last, fresh] = scattered_.try_emplace(stream.sources, made_.size());
    if (fresh || made_[last->second].blocks[place] != kNoBlock) {
      last->second = made_.size();
      const std::size_t places = stream.sources.size();
      made_.push_back({Kind::ReduceScatter, stream.sources, std::vector<std::uint32_t>(places, kNoBlock), {}, 0});
    }
    TransferCollective& one = made_[last->second];
    one.blocks[place] = index;
    one.elements = std::max(one.elements, numbers_of(transfer_.blocks[index]));
  }

  /// One block alone costs less where all get its sum than with empty places beside it.
  static void end(TransferCollective& one) {
    if (one.kind == Kind::ReduceScatter && std::ranges::count(one.blocks, kNoBlock) + 1 == std::ssize(one.blocks)) {
      std::erase(one.blocks, kNoBlock);
      one.kind = Kind::AllReduce;
      one.begins = {0};
    }
    for (std::uint64_t place = 0; one.kind == Kind::ReduceScatter && place < one.blocks.size(); ++place) {
      one.begins.push_back(place * one.elements);
    }
  }

  static std::uint64_t round_up(std::uint64_t elements) {
    return (elements + kTransferUnit - 1) / kTransferUnit * kTransferUnit;
  }

  const BucketTransfer& transfer_;
  const std::uint64_t most_together_;
  std::vector<TransferCollective> made_;
  Last reduced_;
  Last scattered_;
};

}  // namespace

std::vector<TransferCollective> collectives_of(const BucketTransfer& transfer, std::uint64_t most_together) {
  return Collectives(transfer, most_together).make();
}

}  // namespace gradsync::plan
