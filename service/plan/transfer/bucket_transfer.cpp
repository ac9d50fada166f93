#include "plan/transfer/bucket_transfer.hpp"

#include "base/assert.hpp"
#include "plan/interrupt.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace gradsync::plan {

namespace {

/// So many blocks of an owner fit into staging memory: enough for some to be summed, some to be on the wire and some to
/// be written, where every node owns one of each turn.
constexpr std::uint64_t kBlocksInStaging = 16;

std::vector<TransferNode> nodes_of(const std::vector<SumMember>& members, std::span<const TransferNode> node_of_rank) {
  std::vector<TransferNode> nodes;
  for (const SumMember& member : members) {
    nodes.push_back(node_of_rank[member.rank]);
  }
  std::ranges::sort(nodes);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

/// A stream and what lies in it.
struct Filled {
  TransferStream stream;
  std::vector<TransferPiece> pieces;  ///< whole parts
  std::vector<std::uint64_t> begins;  ///< by piece: its first element in the stream
};

class Streams {
 public:
  Streams(const Plan& plan, std::span<const TransferNode> node_of_rank) : plan_(plan), node_of_rank_(node_of_rank) {}

  void add(std::uint32_t tensor) {
    const std::vector<PlannedPart>& parts = plan_.tensors[tensor].parts;
    for (std::uint32_t part = 0; part < parts.size(); ++part) {
      const std::vector<std::optional<std::uint32_t>>& streams = streams_of(parts[part].sums);
      for (std::uint32_t sum = 0; parts[part].elements != 0 && sum < streams.size(); ++sum) {
        if (streams[sum]) {
          Filled& to = filled[*streams[sum]];
          to.begins.push_back(to.stream.elements);
          to.pieces.push_back({tensor, part, sum, 0, parts[part].elements});
          to.stream.elements += parts[part].elements;
        }
      }
    }
  }

  std::vector<Filled> filled;  ///< in the order in which the bucket's tensors need them

 private:
  /// By sum: its stream, if it travels.
  const std::vector<std::optional<std::uint32_t>>& streams_of(std::uint32_t sums) {
    const auto [found, first] = of_sums_.try_emplace(sums);
    for (std::size_t sum = 0; first && sum < plan_.sums[sums].size(); ++sum) {
      found->second.push_back(stream_of(plan_.sums[sums][sum]));
    }
    return found->second;
  }

  std::optional<std::uint32_t> stream_of(const RankSum& sum) {
    if (!travels(sum, node_of_rank_)) {
      return std::nullopt;
    }
    TransferStream stream{nodes_of(sum.sources, node_of_rank_), nodes_of(sum.destinations, node_of_rank_), 0};
    GRADSYNC_ASSERT(std::ranges::includes(stream.sources, stream.destinations), "a destination of a sum is a source");
    const auto number = static_cast<std::uint32_t>(filled.size());
    const auto [found, first] = of_nodes_.try_emplace({stream.sources, stream.destinations}, number);
    if (first) {
      filled.push_back({std::move(stream), {}, {}});
    }
    return found->second;
  }

  const Plan& plan_;
  std::span<const TransferNode> node_of_rank_;
  std::map<std::uint32_t, std::vector<std::optional<std::uint32_t>>> of_sums_;  ///< by index into Plan::sums
  std::map<std::pair<std::vector<TransferNode>, std::vector<TransferNode>>, std::uint32_t> of_nodes_;
};

/// The elements of a block in its stream.
struct Range {
  std::uint64_t turn = 0;  ///< how many blocks its owner has of the stream before it
  std::uint32_t stream = 0;
  std::uint32_t place = 0;  ///< of its owner among those of the stream
  TransferNode owner = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::uint64_t units_of_block(const TransferStream& stream, const BucketTransfer& made, const TransferOptions& options) {
  const std::uint64_t partial = size_of(made.partial);
  const std::uint64_t staged = (stream.sources.size() - 1) * partial + size_of(made.sum) + size_of(made.result);
  const std::uint64_t elements =
      std::min(options.block_bytes / partial, options.staging_bytes / kBlocksInStaging / staged);
  return std::max<std::uint64_t>(elements / kTransferUnit, 1);
}

/// Cuts a stream into one range per owner and each range into blocks, both as equal as units allow. The first owner is
/// another one from bucket to bucket, so that what is left over of many small ones is not owned by one node.
void cut(const TransferStream& stream, std::uint64_t block_units, BucketTransfer& made, std::vector<Range>& ranges) {
  const auto number = static_cast<std::uint32_t>(made.streams.size());
  const std::uint64_t owners = stream.destinations.size();
  const std::uint64_t units = (stream.elements + kTransferUnit - 1) / kTransferUnit;
  for (std::uint32_t place = 0; place < owners; ++place) {
    const std::uint64_t begin = units * place / owners;
    const std::uint64_t length = units * (place + 1) / owners - begin;
    const std::uint64_t blocks = (length + block_units - 1) / block_units;
    const TransferNode owner = stream.destinations[(place + made.bucket + number) % owners];
    for (std::uint64_t turn = 0; turn < blocks; ++turn) {
      const std::uint64_t end = kTransferUnit * (begin + length * (turn + 1) / blocks);
      ranges.push_back(
          {turn, number, place, owner, kTransferUnit * (begin + length * turn / blocks), std::min(end, stream.elements)}
      );
    }
  }
}

void add_block(const Filled& from, const Range& range, BucketTransfer& made) {
  TransferBlock block{range.stream, range.owner, static_cast<std::uint32_t>(made.pieces.size()), 0, 0};
  auto piece = static_cast<std::size_t>(std::ranges::upper_bound(from.begins, range.begin) - from.begins.begin() - 1);
  for (; piece < from.pieces.size() && from.begins[piece] < range.end; ++piece) {
    const std::uint64_t begin = std::max(range.begin, from.begins[piece]);
    const std::uint64_t end = std::min(range.end, from.begins[piece] + from.pieces[piece].elements);
    TransferPiece& part = made.pieces.emplace_back(from.pieces[piece]);
    part.first = begin - from.begins[piece];
    part.elements = end - begin;
    block.elements += part.elements;
    ++block.pieces;
  }
  made.blocks.push_back(block);
}

}  // namespace

bool travels(const RankSum& sum, std::span<const TransferNode> node_of_rank) {
  const auto elsewhere = [&](const SumMember& member) {
    return node_of_rank[member.rank] != node_of_rank[sum.sources.front().rank];
  };
  return std::ranges::any_of(sum.sources, elsewhere) || std::ranges::any_of(sum.destinations, elsewhere);
}

BucketTransfer make_bucket_transfer(
    const Plan& plan, std::uint32_t bucket, std::span<const TransferNode> node_of_rank, const TransferOptions& options
) {
  GRADSYNC_ASSERT(node_of_rank.size() == static_cast<std::size_t>(plan.world_size), "each rank is on a node");
  BucketTransfer made;
  made.bucket = bucket;
  made.result = plan.buckets[bucket].dtype;
  made.sum = made.result == DType::Float64 ? DType::Float64 : DType::Float32;
  const bool rounded = options.partial_sums == PartialSums::BFloat16 && made.sum == DType::Float32;
  made.partial = rounded ? DType::BFloat16 : made.sum;
  Streams streams(plan, node_of_rank);
  for (const std::uint32_t tensor : plan.buckets[bucket].tensors) {
    interruption_point();
    streams.add(tensor);
  }
  std::vector<Range> ranges;
  for (const Filled& filled : streams.filled) {
    cut(filled.stream, units_of_block(filled.stream, made, options), made, ranges);
    made.streams.push_back(filled.stream);
  }
  std::ranges::sort(ranges, {}, [](const Range& range) { return std::tuple(range.turn, range.stream, range.place); });
  for (const Range& range : ranges) {
    interruption_point();
    add_block(streams.filled[range.stream], range, made);
  }
  return made;
}

}  // namespace gradsync::plan
