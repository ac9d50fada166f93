#pragma once
// Random small jobs over 2 to 8 nodes: any split of the ranks, meshes of one to three axes, every placement.

#include "unit/plan/transfer/transfer_world.hpp"

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::plan {

class RandomTransferWorld {
 public:
  explicit RandomTransferWorld(std::uint64_t seed) : random_(seed), mesh_(random_mesh()) {
    integers = below(2) == 0;
    TransferJob job(mesh_);
    for (std::uint64_t wanted = 1 + below(6), made = 0; made < wanted; ++made) {
      if (mesh_.axes.front().name == "pp" && below(3) == 0) {
        add_tied(job, std::to_string(made));
      } else {
        EXPECT_TRUE(job.add(random_tensor("t" + std::to_string(made))));
      }
    }
    world.plan = job.plan({1 + below(4000), 1 + below(4000)});
    place_ranks_on_nodes();
    world.fill(job, [&] { return value(); });
    forget_some();
  }

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  TransferWorld world;
  bool integers = false;  ///< the inputs are integers so small that every format holds each sum

 private:
  Mesh random_mesh() {
    const auto some = [&] { return static_cast<std::int64_t>(1 + below(3)); };
    switch (below(6)) {
      case 0:
        return mesh({{"dp", static_cast<std::int64_t>(2 + below(9))}});
      case 1:
        return mesh({{"dp_replicate", 1 + some()}, {"dp_shard", 1 + some()}});
      case 2:
        return mesh({{"dp", 1 + some()}, {"tp", some()}});
      case 3:
        return mesh({{"pp", 2}, {"dp", 1 + some()}});
      case 4:
        return mesh({{"pp", 1 + some()}, {"dp", some()}, {"tp", some()}});
      default:
        return mesh({{"dp_replicate", 2}, {"dp_shard", some()}, {"tp", some()}});
    }
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> shape(below(4));
    for (std::int64_t& extent : shape) {
      const std::uint64_t most = shape.size() == 1 ? 700 : shape.size() == 2 ? 30 : 9;
      extent = below(25) == 0 ? 0 : static_cast<std::int64_t>(1 + below(most));
    }
    return shape;
  }

  Placement placement(const Axis& axis, const std::vector<std::int64_t>& shape, bool means) {
    const auto dim = [&] { return static_cast<std::int64_t>(below(shape.size())); };
    const std::uint64_t choice = below(100);
    const ReduceOp op = means && below(2) == 0 ? ReduceOp::Mean : ReduceOp::Sum;
    if (axis.name == "pp" && choice < 70) {
      std::vector<std::int64_t> at;
      for (std::int64_t i = 0; i < axis.size; ++i) {
        if (below(2) == 0) {
          at.push_back(i);
        }
      }
      return only({axis.name}, at.empty() ? std::vector<std::int64_t>{0} : at);
    }
    if (choice < 25 && !shape.empty()) {
      return {{axis.name}, Partial{op, Shard{dim()}}};
    }
    if (choice < 35 && !shape.empty()) {
      return shard({axis.name}, dim());
    }
    return choice < 50 ? replicate({axis.name}) : partial({axis.name}, op);
  }

  TensorDeclaration random_tensor(std::string name) {
    TensorDeclaration made = tensor(std::move(name), shape(), {});
    constexpr DType kTypes[] = {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64};
    made.dtype = kTypes[below(4)];
    const bool divided = below(4) == 0;
    if (divided) {
      made.divisor = static_cast<double>(1 + below(5));
    }
    for (const Axis& axis : mesh_.axes) {
      made.placements.push_back(placement(axis, made.shape, !divided));
    }
    return made;
  }

  /// One weight on the first stage and on the last.
  void add_tied(TransferJob& job, const std::string& name) {
    TensorDeclaration first = random_tensor("first" + name);
    first.tied = "tie" + name;
    first.placements.front() = only({"pp"}, {0});
    TensorDeclaration last = first;
    last.name = "last" + name;
    last.placements.front() = only({"pp"}, {mesh_.axes.front().size - 1});
    EXPECT_TRUE(job.add(first) && job.add(last));
  }

  /// Neighbours together, or any; every node has a rank, and the lowest ranks number the nodes.
  void place_ranks_on_nodes() {
    const auto ranks = static_cast<std::uint64_t>(world.plan.world_size);
    const std::uint64_t nodes = std::min<std::uint64_t>(2 + below(7), ranks);
    std::vector<std::uint64_t> labels;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      labels.push_back(rank < nodes ? rank : below(nodes));
    }
    if (below(2) == 0) {
      std::ranges::sort(labels);
    } else {
      std::ranges::shuffle(labels, random_);
    }
    std::map<std::uint64_t, TransferNode> numbers;
    for (const std::uint64_t label : labels) {
      const auto next = static_cast<TransferNode>(numbers.size());
      world.node_of_rank.push_back(numbers.try_emplace(label, next).first->second);
    }
  }

  double value() {
    if (below(6) == 0) {
      return -0.0;
    }
    if (integers) {
      return static_cast<double>(below(9)) - 4;
    }
    const double sign = below(2) == 0 ? -1 : 1;
    return sign * std::ldexp(1 + static_cast<double>(below(1u << 30)) * 0x1p-30, static_cast<int>(below(8)) - 5);
  }

  void forget_some() {
    const std::uint64_t share = below(2) == 0 ? 0 : 1 + below(3);
    for (std::uint32_t tensor = 0; tensor < world.plan.tensors.size(); ++tensor) {
      const bool all = share != 0 && below(6) == 0;
      for (const Holding& holding : world.plan.tensors[tensor].holdings) {
        if (all || below(4) < share) {
          world.unused.emplace(tensor, holding.rank);
        }
      }
    }
  }

  std::mt19937_64 random_;
  Mesh mesh_;
};

}  // namespace gradsync::plan
