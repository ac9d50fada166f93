#include "sim/trainers/gradients.hpp"

#include "plan/layout/arena_layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::uint64_t kDifferent = 257;  // values

constexpr std::size_t kNan = 0;  // the tensor that may have a value which is no number, in its first element

float value(std::uint64_t values, std::int64_t element) {
  return static_cast<float>((values + 31 * static_cast<std::uint64_t>(element)) % kDifferent) - 60;
}

bool uses(const Gift& gift, std::size_t tensor) { return (gift.unused >> tensor & 1u) == 0; }

std::uint32_t bits_of(float number) { return std::bit_cast<std::uint32_t>(number + 0.0F); }

bool differ(float one, float other) {
  return bits_of(one) != bits_of(other) && !(std::isnan(one) && std::isnan(other));
}

}  // namespace

Gradients::Gradients(std::int64_t nodes, std::int64_t ranks_per_node, bool copies)
    : nodes_(nodes), per_node_(ranks_per_node) {
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
  if (copies) {
    Tensor parts{"parts", 10 * per_node_, "grid", {{{"node"}, sum}, {{"local"}, plan::Shard{0}}}, false, per_node_};
    parts.parts = true;
    Tensor same{"same", 16 * per_node_, "grid", {{{"node"}, sum}, {{"local"}, plan::Replicate{}}}, false, per_node_};
    same.parts = same.copies = true;
    tensors_.push_back(std::move(parts));
    tensors_.push_back(std::move(same));
  }
}

std::vector<plan::Mesh> Gradients::meshes() const {
  return {{"default", {{"dp", nodes_ * per_node_}}, {}}, {"grid", {{"node", nodes_}, {"local", per_node_}}, {}}};
}

bool Gradients::holds(std::int64_t rank, const Tensor& tensor) const {
  return tensor.only == kAnyNode || tensor.only == rank / per_node_;
}

/// Copies are used by all ranks, or would differ.
std::uint32_t Gradients::all_unused() const {
  std::uint32_t all = 0;
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    all |= tensors_[tensor].copies ? 0 : 1u << tensor;
  }
  return all;
}

/// By rank of the world or of the node.
std::int64_t Gradients::part_of(std::int64_t rank, const Tensor& tensor) const {
  return tensor.cut == 1 ? 0 : tensor.cut == per_node_ ? rank % per_node_ : rank;
}

plan::RankDeclaration Gradients::declaration(std::int64_t rank) const {
  plan::RankDeclaration all;
  std::vector<plan::TensorDeclaration> declared;
  for (const Tensor& tensor : tensors_) {
    if (holds(rank, tensor)) {
      plan::TensorDeclaration one;
      one.name = tensor.name;
      one.shape = {tensor.copies ? tensor.elements / tensor.cut : tensor.elements};
      one.local_shape = {tensor.parts ? tensor.elements / tensor.cut : tensor.elements};
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
    const std::int64_t elements = tensor.parts ? tensor.elements / tensor.cut : tensor.elements;
    for (std::int64_t element = 0; element < elements; ++element) {
      at[element] = value(tensor.copies ? gift.copies : gift.values, element);
    }
    if (gift.nan && &tensor == &tensors_[kNan]) {
      at[0] = std::numeric_limits<float>::quiet_NaN();
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
      const std::int64_t size = tensor.parts ? tensor.elements / tensor.cut : tensor.elements;
      const std::int64_t begin = tensor.parts ? part_of(rank, tensor) * size : 0;
      for (std::int64_t element = 0; element < size; ++element) {
        sum[static_cast<std::size_t>(begin + element)] += value(tensor.copies ? gift.copies : gift.values, element);
      }
      if (gift.nan && number == kNan) {
        sum[0] = std::numeric_limits<float>::quiet_NaN();
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
  for (std::size_t number = 0; number < tensors_.size(); ++number) {
    const std::vector<float> all = sums[number].value_or(std::vector<float>());
    const std::size_t counted =
        all.size() / static_cast<std::size_t>(tensors_[number].copies ? tensors_[number].cut : 1);
    for (std::size_t i = 0; i < counted; ++i) {
      powers += static_cast<double>(all[i]) * all[i];
    }
  }
  return std::sqrt(powers);
}

std::string Gradients::findings_of(const Gifts& gifts, const Sums& sums) const {
  std::string found;
  for (const auto& [rank, gift] : gifts) {
    if (gift.nan) {
      found += found.empty() ? fmt::format("{}!{}", tensors_[kNan].name, rank) : fmt::format(",{}", rank);
    }
  }
  for (std::size_t number = 0; number < tensors_.size(); ++number) {
    if (tensors_[number].copies) {
      find_copies(tensors_[number], *sums[number], found);
    }
  }
  return found;
}

/// More than half of the ranks, with equal copies, leave the others as suspects.
void Gradients::find_copies(const Tensor& tensor, const std::vector<float>& sum, std::string& found) const {
  const auto size = tensor.elements / tensor.cut;
  const auto equal = [&](std::int64_t one, std::int64_t other) {
    return std::equal(sum.begin() + one * size, sum.begin() + (one + 1) * size, sum.begin() + other * size);
  };
  std::vector<std::int64_t> others;
  std::vector<std::int64_t> suspects;
  std::int64_t most = -1;
  for (std::int64_t one = 0; one < tensor.cut; ++one) {
    std::int64_t alike = 0;
    for (std::int64_t other = 0; other < tensor.cut; ++other) {
      alike += equal(one, other) ? 1 : 0;
    }
    most = 2 * alike > tensor.cut ? one : most;
  }
  for (std::int64_t rank = 0; rank < nodes_ * per_node_; ++rank) {
    if (!equal(part_of(rank, tensor), 0)) {
      others.push_back(rank);
    }
    if (most < 0 || !equal(part_of(rank, tensor), most)) {
      suspects.push_back(rank);
    }
  }
  if (!others.empty()) {
    found += fmt::format("/{}:{}~{}", tensor.name, fmt::join(others, ","), fmt::join(suspects, ","));
  }
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
    const std::int64_t place = part_of(rank, tensor);
    for (std::int64_t i = 0; sums[number] && i < size; ++i) {  // nobody reads what is absent everywhere
      const float wanted = (*sums[number])[static_cast<std::size_t>(place * size + i)] * multiplier;
      if (differ(is[i], wanted)) {
        return fmt::format("{} in '{}'[{}], and not {}", is[i], tensor.name, place * size + i, wanted);
      }
    }
  }
  return {};
}

std::string findings_of(const engine::StepReport& report) {
  std::string found;
  for (const engine::NonfiniteReport& each : report.nonfinite) {
    found += each.tensor;
    for (const engine::NonfiniteInput& input : each.inputs) {
      found += fmt::format("{}{}", &input == &each.inputs.front() ? "!" : ",", input.rank);
    }
  }
  for (const engine::DivergenceReport& each : report.divergence) {
    found += fmt::format("/{}:{}~{}", each.tensor, fmt::join(each.ranks, ","), fmt::join(each.suspects, ","));
  }
  return found;
}

}  // namespace gradsync::sim
