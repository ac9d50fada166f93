#pragma once
// A job over several nodes, made from declarations: its plan, the input of every rank, and who contributed nothing.

#include "arithmetic/half.hpp"
#include "plan/merge/placed_ranks.hpp"
#include "plan/transfer/bucket_transfer.hpp"
#include "unit/plan/declarations.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::plan {

/// A value in memory of a format. `write_value` rounds once, from float32 (float64 for float64).
inline void write_value(DType dtype, std::byte* at, double value) {
  const auto single = static_cast<float>(value);
  const std::uint16_t half =
      dtype == DType::BFloat16 ? arithmetic::float_to_bfloat16(single) : arithmetic::float_to_float16(single);
  const void* from = dtype == DType::Float64   ? static_cast<const void*>(&value)
                     : dtype == DType::Float32 ? static_cast<const void*>(&single)
                                               : &half;
  std::memcpy(at, from, size_of(dtype));
}

inline double read_value(DType dtype, const std::byte* at) {
  double wide = 0;
  float single = 0;
  std::uint16_t half = 0;
  void* to = dtype == DType::Float64   ? static_cast<void*>(&wide)
             : dtype == DType::Float32 ? static_cast<void*>(&single)
                                       : &half;
  std::memcpy(to, at, size_of(dtype));
  return dtype == DType::Float64    ? wide
         : dtype == DType::Float32  ? single
         : dtype == DType::BFloat16 ? arithmetic::bfloat16_to_float(half)
                                    : arithmetic::float16_to_float(half);
}

inline double rounded_to(DType dtype, double value) {
  std::byte memory[8];
  write_value(dtype, memory, value);
  return read_value(dtype, memory);
}

/// One tensor on one rank.
using Memory = std::pair<std::uint32_t, std::uint32_t>;  ///< tensor, rank

/// Declares tensors on the ranks that their `only` placements name, cut by their `shard` placements.
class TransferJob {
 public:
  explicit TransferJob(Mesh mesh) : meshes_{std::move(mesh)} {
    ranks_.resize(static_cast<std::size_t>(meshes_[0].size()));
  }

  /// Whether the declaration is one that a job may make.
  bool add(TensorDeclaration tensor) {
    const PlacedRanks placed = place_ranks(tensor, meshes_[0]);
    std::vector<RankDeclaration> added = ranks_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (placed.ranks[rank].holds) {
        tensor.local_shape = input_box_of(tensor, placed, placed.ranks[rank]).extent;
        added[rank].tensors.own().push_back(tensor);
        if (!validate_declaration(added[rank], meshes_)) {
          return false;
        }
      }
    }
    ranks_ = std::move(added);
    return true;
  }

  [[nodiscard]] Plan plan(BucketSizes sizes = {}) const {
    std::vector<const RankDeclaration*> pointers;
    for (const RankDeclaration& rank : ranks_) {
      pointers.push_back(&rank);
    }
    Result<Plan> made = plan_job(pointers, meshes_, sizes);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return made ? std::move(*made) : Plan{};
  }

  [[nodiscard]] const std::vector<RankDeclaration>& ranks() const { return ranks_; }

 private:
  std::vector<Mesh> meshes_;
  std::vector<RankDeclaration> ranks_;
};

/// A job with gradients.
struct TransferWorld {
  Plan plan;
  std::vector<TransferNode> node_of_rank;
  std::map<Memory, std::vector<double>> inputs;  ///< values that the tensor's format can hold
  std::set<Memory> unused;

  [[nodiscard]] std::uint32_t nodes() const { return 1 + *std::ranges::max_element(node_of_rank); }

  /// The memory of a member of one of the sums of `tensor`.
  [[nodiscard]] Memory memory(std::uint32_t tensor, const SumMember& member) const {
    return {member.copy == 0 ? tensor : plan.tensors[tensor].copies[member.copy - 1], member.rank};
  }

  [[nodiscard]] const PlannedPart& part(std::uint32_t tensor, std::uint32_t part) const {
    return plan.tensors[tensor].parts[part];
  }

  [[nodiscard]] const RankSum& sum(std::uint32_t tensor, std::uint32_t of_part, std::uint32_t number) const {
    return plan.sums[part(tensor, of_part).sums][number];
  }

  /// The members of a sum that contribute and are on this node; on any node if it is −1.
  [[nodiscard]] std::vector<Memory> contributors(std::uint32_t tensor, const RankSum& of, std::int64_t node = -1)
      const {
    std::vector<Memory> found;
    for (const SumMember& source : of.sources) {
      if ((node < 0 || node_of_rank[source.rank] == node) && !unused.contains(memory(tensor, source))) {
        found.push_back(memory(tensor, source));
      }
    }
    return found;
  }

  /// Element `element` of a part in the input of a rank.
  [[nodiscard]] double input(const Memory& of, const PlannedPart& part, std::uint64_t element) const {
    std::uint64_t at = part.first + element % part.run;
    element /= part.run;
    for (const Stride& stride : part.strides) {
      at += element % stride.count * stride.distance;
      element /= stride.count;
    }
    return inputs.at(of).at(at);
  }

  /// Fills the inputs of all ranks.
  template <typename Value>
  void fill(const TransferJob& job, Value value) {
    for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
      for (const Holding& holding : plan.tensors[tensor].holdings) {
        const TensorDeclaration& declared = job.ranks()[holding.rank].tensors[holding.row];
        std::vector<double>& input = inputs[{tensor, holding.rank}];
        input.resize(static_cast<std::size_t>(numel_of(declared.local_shape)));
        for (double& each : input) {
          each = rounded_to(declared.dtype, value());
        }
      }
    }
  }
};

}  // namespace gradsync::plan
