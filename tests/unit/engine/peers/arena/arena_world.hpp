#pragma once
// Tensors of a job whose gradients travel between nodes, and what their sums have to be: all are small integers, so
// that every order of additions gives the same bits.

#include "unit/engine/peers/steps/linked_engines.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gradsync::engine {

/// What a rank gave in an attempt.
struct Contribution {
  std::int64_t seed = 0;
  std::set<std::string> unused;
};

class ArenaWorld {
 public:
  static constexpr std::int64_t kAnyNode = -1;

  /// `group_of`: ranks with one number are summed; `part`: elements of the result that a rank gets, 0: all.
  struct Tensor {
    std::string name;
    std::int64_t elements = 0;
    std::string mesh;
    std::vector<plan::Placement> placements;
    bool by_node = false;  ///< each node sums its own
    bool mean = false;
    std::int64_t cut = 1;  ///< into how many parts, by rank or by rank of the node
    std::int64_t only = kAnyNode;
  };

  ArenaWorld(std::int64_t nodes, std::int64_t per_node) : nodes_(nodes), per_node_(per_node) {
    const plan::Partial sum{plan::ReduceOp::Sum, std::nullopt};
    const plan::Partial mean{plan::ReduceOp::Mean, std::nullopt};
    const plan::Partial scattered{plan::ReduceOp::Sum, plan::Shard{0}};
    tensors_ = {
        {"all", 130, "default", {{{"dp"}, sum}}},
        {"mean", 70, "default", {{{"dp"}, mean}}, false, true},
        {"cut", 40 * world(), "default", {{{"dp"}, scattered}}, false, false, world()},
        {"rows", 34 * per_node, "grid", {{{"node"}, sum}, {{"local"}, scattered}}, false, false, per_node},
        {"first", 20, "grid", {{{"node"}, plan::Only{{0}}}, {{"local"}, sum}}, true, false, 1, 0},
        {"last", 9, "grid", {{{"node"}, plan::Only{{nodes - 1}}}, {{"local"}, sum}}, true, false, 1, nodes - 1},
        {"copies", 11, "grid", {{{"node"}, plan::Replicate{}}, {{"local"}, sum}}, true},
        {"small", 3, "default", {{{"dp"}, sum}}},
    };
  }

  [[nodiscard]] std::int64_t world() const { return nodes_ * per_node_; }

  [[nodiscard]] std::int64_t node_of(std::int64_t rank) const { return rank / per_node_; }

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }

  [[nodiscard]] bool holds(std::int64_t rank, const Tensor& tensor) const {
    return tensor.only == kAnyNode || tensor.only == node_of(rank);
  }

  /// The number of the tensor in the rank's declaration.
  [[nodiscard]] std::uint32_t row_of(std::int64_t rank, const std::string& name) const {
    std::uint32_t row = 0;
    for (const Tensor& tensor : tensors_) {
      if (tensor.name == name) {
        return row;
      }
      row += holds(rank, tensor) ? 1 : 0;
    }
    throw std::logic_error("no such tensor");
  }

  [[nodiscard]] plan::RankDeclaration declaration(std::int64_t rank, std::optional<double> max_norm) const {
    plan::RankDeclaration all;
    all.options.clip = {{"all", {max_norm, plan::ZeroRule::Refuse}}};
    std::vector<plan::TensorDeclaration> declared;
    for (const Tensor& tensor : tensors_) {
      if (holds(rank, tensor)) {
        plan::TensorDeclaration one;
        one.name = tensor.name;
        one.shape = one.local_shape = {tensor.elements};
        one.mesh = tensor.mesh;
        one.placements = tensor.placements;
        declared.push_back(std::move(one));
      }
    }
    all.tensors = std::move(declared);
    return all;
  }

  static float value(std::int64_t seed, std::int64_t rank, std::int64_t element) {
    return static_cast<float>((seed * 3 + rank * 7 + element) % 17 - 5);
  }

  void write(LinkedEngines& all, std::int64_t rank, std::int64_t seed) const {
    for (const Tensor& tensor : tensors_) {
      if (holds(rank, tensor)) {
        float* const at = all.input(rank, row_of(rank, tensor.name));
        for (std::int64_t i = 0; i < tensor.elements; ++i) {
          at[i] = value(seed, rank, i);
        }
      }
    }
  }

  [[nodiscard]] std::vector<std::uint32_t> rows_unused(std::int64_t rank, const std::set<std::string>& names) const {
    std::vector<std::uint32_t> rows;
    for (const Tensor& tensor : tensors_) {
      if (holds(rank, tensor) && names.contains(tensor.name)) {
        rows.push_back(row_of(rank, tensor.name));
      }
    }
    return rows;
  }

  using Given = std::map<std::int64_t, Contribution>;  ///< by rank

  /// The sum of an element as the rank gets it; nothing: no rank of the job contributed to the tensor.
  [[nodiscard]] std::optional<float> sum_of(
      const Given& given, std::int64_t rank, const Tensor& tensor, std::int64_t element
  ) const {
    float sum = 0;
    bool used = false;
    for (const auto& [other, contribution] : given) {
      if (holds(other, tensor) && !contribution.unused.contains(tensor.name)) {
        used = true;
        if (!tensor.by_node || node_of(other) == node_of(rank)) {
          sum += value(contribution.seed, other, element);
        }
      }
    }
    const float divisor = tensor.mean ? static_cast<float>(world()) : 1.0F;
    return used ? std::optional(sum / divisor) : std::nullopt;
  }

  /// The elements that the rank has after sync, in the tensor as a whole.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> part_of(std::int64_t rank, const Tensor& tensor) const {
    const std::int64_t size = tensor.elements / tensor.cut;
    const std::int64_t place = tensor.cut == 1 ? 0 : tensor.cut == per_node_ ? rank % per_node_ : rank;
    return {place * size, size};
  }

  [[nodiscard]] double norm_of(const Given& given) const {
    double sum = 0;
    for (const Tensor& tensor : tensors_) {
      const std::int64_t rank = counted_on(given, tensor);
      for (std::int64_t i = 0; i < tensor.elements; ++i) {
        const double element = sum_of(given, rank, tensor, i).value_or(0);
        sum += element * element;
      }
    }
    return std::sqrt(sum);
  }

  /// Empty, or which element of the rank is not what it has to be.
  [[nodiscard]] std::string difference(
      const LinkedEngines& all, std::int64_t rank, const Given& given, float multiplier = 1
  ) const {
    for (const Tensor& tensor : tensors_) {
      if (!holds(rank, tensor)) {
        continue;
      }
      const std::uint32_t row = row_of(rank, tensor.name);
      const auto [first, count] = part_of(rank, tensor);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::optional<float> sum = sum_of(given, rank, tensor, first + i);
        if (!sum) {
          break;  // nobody reads what is absent everywhere
        }
        const float is = all.output(rank, row)[i];
        if (std::bit_cast<std::uint32_t>(is + 0.0F) != std::bit_cast<std::uint32_t>(*sum * multiplier + 0.0F)) {
          return "rank " + std::to_string(rank) + " has " + std::to_string(is) + " in '" + tensor.name + "'[" +
                 std::to_string(first + i) + "], and not " + std::to_string(*sum * multiplier);
        }
      }
    }
    return {};
  }

 private:
  /// A rank that gets the sum which the norm counts: the first that has a gradient.
  [[nodiscard]] std::int64_t counted_on(const Given& given, const Tensor& tensor) const {
    for (const auto& [rank, contribution] : given) {
      if (holds(rank, tensor) && !contribution.unused.contains(tensor.name)) {
        return rank;
      }
    }
    return 0;
  }

  std::int64_t nodes_;
  std::int64_t per_node_;
  std::vector<Tensor> tensors_;
};

/// Several buckets.
inline EngineOptions small_buckets() {
  EngineOptions options;
  options.buckets = {256, 512};
  return options;
}

}  // namespace gradsync::engine
