#include "sim/trainers/gradients.hpp"

#include "plan/layout/arena_layout.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::uint64_t kDifferent = 257;  // values

float value(const Gift& gift, std::int64_t element) {
  return static_cast<float>((gift.values + 31 * static_cast<std::uint64_t>(element)) % kDifferent) - 60;
}

bool uses(const Gift& gift, std::size_t tensor) { return (gift.unused >> tensor & 1u) == 0; }

std::uint32_t bits_of(float number) { return std::bit_cast<std::uint32_t>(number + 0.0F); }

}  // namespace

Gradients::Gradients(std::int64_t nodes, std::int64_t ranks_per_node) : nodes_(nodes), per_node_(ranks_per_node) {
  const std::int64_t world = nodes * ranks_per_node;
  const plan::Partial sum{plan::ReduceOp::Sum, std::nullopt};
  const plan::Partial mean{plan::ReduceOp::Mean, std::nullopt};
  const plan::Partial scattered{plan::ReduceOp::Sum, plan::Shard{0}};
  tensors_ = {
      {"all", 70, "default", {{{"dp"}, sum}}},
      {"mean", 24, "default", {{{"dp"}, mean}}, true},
      {"cut", 8 * world, "default", {{{"dp"}, scattered}}, false, world},
      {"rows", 12 * ranks_per_node, "grid", {{{"node"}, sum}, {{"local"}, scattered}}, false, ranks_per_node},
      {"first", 5, "grid", {{{"node"}, plan::Only{{0}}}, {{"local"}, sum}}, false, 1, 0},
  };
}

std::vector<plan::Mesh> Gradients::meshes() const {
  return {{"default", {{"dp", nodes_ * per_node_}}, {}}, {"grid", {{"node", nodes_}, {"local", per_node_}}, {}}};
}

bool Gradients::holds(std::int64_t rank, const Tensor& tensor) const {
  return tensor.only == kAnyNode || tensor.only == rank / per_node_;
}

plan::RankDeclaration Gradients::declaration(std::int64_t rank) const {
  plan::RankDeclaration all;
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

std::uint64_t Gradients::arena_bytes(std::int64_t rank) const {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors_) {
    bytes += holds(rank, tensor) ? 2 * plan::align_up(4 * static_cast<std::uint64_t>(tensor.elements)) : 0;
  }
  return bytes;
}

void Gradients::write(std::int64_t rank, const Gift& gift, const plan::ArenaLayout& layout, std::byte* arena) const {
  std::size_t row = 0;
  for (const Tensor& tensor : tensors_) {
    if (!holds(rank, tensor)) {
      continue;
    }
    auto* const at = reinterpret_cast<float*>(arena + layout.input_offsets[row++]);
    for (std::int64_t element = 0; element < tensor.elements; ++element) {
      at[element] = value(gift, element);
    }
  }
}

std::vector<std::uint32_t> Gradients::rows_unused(std::int64_t rank, const Gift& gift) const {
  std::vector<std::uint32_t> rows;
  std::uint32_t row = 0;
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (holds(rank, tensors_[tensor])) {
      if (!uses(gift, tensor)) {
        rows.push_back(row);
      }
      ++row;
    }
  }
  return rows;
}

Gradients::Sums Gradients::sums_of(const Gifts& gifts) const {
  Sums sums(tensors_.size());
  for (std::size_t number = 0; number < tensors_.size(); ++number) {
    const Tensor& tensor = tensors_[number];
    for (const auto& [rank, gift] : gifts) {
      if (!holds(rank, tensor) || !uses(gift, number)) {
        continue;
      }
      std::vector<float>& sum =
          sums[number] ? *sums[number] : sums[number].emplace(static_cast<std::size_t>(tensor.elements), 0.0F);
      for (std::int64_t element = 0; element < tensor.elements; ++element) {
        sum[static_cast<std::size_t>(element)] += value(gift, element);
      }
    }
    if (sums[number] && tensor.mean) {
      for (float& element : *sums[number]) {
        element /= static_cast<float>(nodes_ * per_node_);
      }
    }
  }
  return sums;
}

double Gradients::norm_of(const Sums& sums) const {
  double powers = 0;
  for (const auto& tensor : sums) {
    for (const double element : tensor.value_or(std::vector<float>())) {
      powers += element * element;
    }
  }
  return std::sqrt(powers);
}

std::string Gradients::difference(
    std::int64_t rank, const Sums& sums, float multiplier, const plan::ArenaLayout& layout, const std::byte* arena
) const {
  std::size_t row = 0;
  for (std::size_t number = 0; number < tensors_.size(); ++number) {
    const Tensor& tensor = tensors_[number];
    if (!holds(rank, tensor)) {
      continue;
    }
    const auto* const is = reinterpret_cast<const float*>(arena + layout.output_offsets[row++]);
    const std::int64_t size = tensor.elements / tensor.cut;
    const std::int64_t place = tensor.cut == 1 ? 0 : tensor.cut == per_node_ ? rank % per_node_ : rank;
    for (std::int64_t i = 0; sums[number] && i < size; ++i) {  // nobody reads what is absent everywhere
      const float wanted = (*sums[number])[static_cast<std::size_t>(place * size + i)] * multiplier;
      if (bits_of(is[i]) != bits_of(wanted)) {
        return fmt::format("{} in '{}'[{}], and not {}", is[i], tensor.name, place * size + i, wanted);
      }
    }
  }
  return {};
}

}  // namespace gradsync::sim
