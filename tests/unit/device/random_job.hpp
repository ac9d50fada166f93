#pragma once
// Random small plans: any shapes, cuts, groups, copies, formats, norms and unused tensors.

#include "unit/device/sharded_job.hpp"

#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace gradsync::device {

class RandomJob {
 public:
  explicit RandomJob(std::uint64_t seed) : random_(seed) {}

  ShardedJob make() {
    const double norms[] = {2, 2, 1, 3, std::numeric_limits<double>::infinity()};
    world_ = static_cast<std::uint32_t>(1 + below(6));
    ShardedJob job(world_, norms[below(5)], below(2) == 0);
    const std::uint64_t buckets = 1 + below(3);
    for (std::uint64_t bucket = 0; bucket < buckets; ++bucket) {
      const plan::DType dtypes[] = {
          plan::DType::Float32, plan::DType::Float64, plan::DType::BFloat16, plan::DType::Float16};
      job.add_bucket(dtypes[below(4)], std::exp2(static_cast<double>(below(4)) - 1));
    }
    for (std::uint64_t left = 1 + below(5); left > 0; --left) {
      ShardedTensor tensor = below(3) == 0 ? whole() : cut();
      tensor.bucket = static_cast<std::uint32_t>(below(buckets));
      tensor.clip_group = static_cast<std::uint32_t>(below(2));
      job.add(tensor);
    }
    return job;
  }

  /// Some pairs of tensor and rank; now and then all of a tensor.
  std::set<std::pair<std::uint32_t, std::uint32_t>> unused(const ShardedJob& job) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> unused;
    const std::uint64_t share = below(3) == 0 ? 0 : 1 + below(4);
    for (std::uint32_t tensor = 0; tensor < job.specs.size(); ++tensor) {
      const bool all = below(8) == 0;
      for (std::uint32_t rank = 0; rank < world_; ++rank) {
        if (all || below(5) < share) {
          unused.insert({tensor, rank});
        }
      }
    }
    return unused;
  }

  std::mt19937_64& random() { return random_; }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  Index shape() {
    Index shape(1 + below(4));
    for (std::uint64_t& extent : shape) {
      extent = below(20) == 0 ? 0 : 1 + below(shape.size() == 1 ? 20'000 : shape.size() == 2 ? 200 : 12);
    }
    return shape;
  }

  /// All ranks, or some, in groups of at least `least`.
  std::vector<std::vector<std::uint32_t>> groups(std::size_t least) {
    std::vector<std::uint32_t> ranks(world_);
    std::iota(ranks.begin(), ranks.end(), 0U);
    std::shuffle(ranks.begin(), ranks.end(), random_);
    std::vector<std::vector<std::uint32_t>> groups;
    while (groups.empty() || (ranks.size() >= least && below(4) != 0)) {
      const std::size_t size = std::min<std::size_t>(ranks.size(), least + below(3));
      groups.emplace_back(ranks.end() - static_cast<std::ptrdiff_t>(size), ranks.end());
      ranks.resize(ranks.size() - size);
    }
    return groups;
  }

  ShardedTensor whole() {
    ShardedTensor tensor = replicated(shape(), groups(1));
    if (below(3) == 0) {  // a copy on the same ranks and on others
      tensor.copies = 1;
      for (LaneSum& sum : tensor.parts[0].sums) {
        const std::vector<LaneMember> counted = sum.sources;
        for (const LaneMember& member : counted) {
          if (below(2) == 0) {
            sum.sources.push_back({member.rank, 1});
          }
        }
        sum.destinations = sum.sources;
      }
    }
    return tensor;
  }

  /// Cuts along one or two dimensions; the k-th rank of each group gets the k-th box.
  ShardedTensor cut() {
    ShardedTensor tensor;
    tensor.shape = shape();
    const std::size_t pieces = 1 + below(world_);
    std::vector<ShardBox> boxes = {whole_box(tensor.shape)};
    while (boxes.size() < pieces) {
      const std::size_t which = below(boxes.size());
      const std::size_t dim = below(tensor.shape.size());
      ShardBox rest = boxes[which];
      boxes[which].end[dim] = rest.begin[dim] = rest.begin[dim] + below(rest.end[dim] - rest.begin[dim] + 1);
      boxes.push_back(rest);
    }
    const auto members_of = groups(pieces);
    const bool copied = below(4) == 0;
    tensor.copies = copied ? 1 : 0;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      ShardPart part{boxes[piece], {}};
      for (const std::vector<std::uint32_t>& group : members_of) {
        LaneSum sum{members(group), {{group[piece], 0}}};
        for (std::size_t k = 0; k < group.size(); ++k) {
          if (k >= pieces && (k - pieces) % pieces == piece) {
            sum.destinations.push_back({group[k], 0});
          }
        }
        if (copied) {
          const std::vector<LaneMember> copies = members(group, 1);
          sum.sources.insert(sum.sources.end(), copies.begin(), copies.end());
          sum.destinations.push_back({group[piece], 1});
        }
        part.sums.push_back(sum);
      }
      tensor.parts.push_back(part);
    }
    return tensor;
  }

  std::mt19937_64 random_;
  std::uint32_t world_ = 1;
};

}  // namespace gradsync::device
