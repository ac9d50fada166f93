#pragma once
// A small job whose tensors are boxes of whole arrays, laid out as a lane's plan, with memory of exactly the bytes that
// the plan needs; and what a step of it must leave behind, by plain loops over indices in double. The numbers are small
// integers and divisors powers of two, so that every format holds every sum exactly.

#include "arithmetic/half.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace gradsync::device {

using Index = std::vector<std::uint64_t>;

inline std::uint64_t volume(const Index& extents) {
  return std::accumulate(extents.begin(), extents.end(), std::uint64_t{1}, std::multiplies<>());
}

struct ShardBox {
  Index begin;
  Index end;

  [[nodiscard]] Index extents() const {
    Index extents;
    for (std::size_t dim = 0; dim < begin.size(); ++dim) {
      extents.push_back(end[dim] - begin[dim]);
    }
    return extents;
  }
};

struct ShardPart {
  ShardBox box;  ///< of the input
  std::vector<LaneSum> sums;
};

struct ShardedTensor {
  Index shape;  ///< of the inputs
  std::vector<ShardPart> parts;
  std::uint32_t bucket = 0;
  std::uint32_t clip_group = 0;
  bool in_place = false;
  std::uint32_t copies = 0;  ///< tied to it; they get the tensor numbers after its own
};

/// Number `number` of the boxes that cut `shape` along `dim` into pieces of these lengths.
inline ShardBox slice(const Index& shape, std::size_t dim, const Index& lengths, std::size_t number) {
  ShardBox box{Index(shape.size(), 0), shape};
  for (std::size_t i = 0; i < number; ++i) {
    box.begin[dim] += lengths[i];
  }
  box.end[dim] = box.begin[dim] + lengths[number];
  return box;
}

inline ShardBox whole_box(const Index& shape) { return {Index(shape.size(), 0), shape}; }

inline std::vector<LaneMember> members(const std::vector<std::uint32_t>& ranks, std::uint32_t copy = 0) {
  std::vector<LaneMember> members;
  for (const std::uint32_t rank : ranks) {
    members.push_back({rank, copy});
  }
  return members;
}

inline LaneSum sum_to(const std::vector<std::uint32_t>& sources, const std::vector<std::uint32_t>& destinations) {
  return {members(sources), members(destinations)};
}

/// `partial → shard(dim)` over some ranks, the k-th of which gets the k-th piece.
inline ShardedTensor scattered(const Index& shape, std::size_t dim, const Index& lengths, const Index& ranks) {
  ShardedTensor tensor;
  tensor.shape = shape;
  const std::vector<std::uint32_t> sources(ranks.begin(), ranks.end());
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    if (lengths[k] != 0 || volume(shape) == 0) {
      tensor.parts.push_back({slice(shape, dim, lengths, k), {sum_to(sources, {sources[k]})}});
    }
  }
  return tensor;
}

/// All of it, summed by groups in place.
inline ShardedTensor replicated(const Index& shape, const std::vector<std::vector<std::uint32_t>>& groups) {
  ShardedTensor tensor;
  tensor.shape = shape;
  tensor.in_place = true;
  tensor.parts.push_back({whole_box(shape), {}});
  for (const auto& group : groups) {
    tensor.parts[0].sums.push_back(sum_to(group, group));
  }
  return tensor;
}

/// How the box lies in a row-major array.
inline LanePart part_of_box(const Index& shape, const ShardBox& box) {
  LanePart part;
  part.elements = volume(box.extents());
  part.run = 1;
  std::uint64_t inner = 1;
  bool together = true;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    const std::uint64_t extent = box.end[dim] - box.begin[dim];
    part.first += box.begin[dim] * inner;
    if (together) {
      part.run *= extent;
      together = extent == shape[dim];
    } else if (extent != 1) {
      part.strides.push_back({extent, inner});
    }
    inner *= shape[dim];
  }
  if (part.elements == 0) {
    part.first = part.run = 0;
    part.strides.clear();
  }
  return part;
}

class ShardedJob {
 public:
  explicit ShardedJob(std::uint32_t world, double p = 2, bool alike = false) : alike_(alike) {
    layout.world_size = world;
    layout.norm_type = p;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      layout.rank_buffers.push_back(rank + 1);
    }
  }

  void add_bucket(plan::DType dtype, double divisor) { layout.buckets.push_back({dtype, {}, divisor}); }

  /// Its number.
  std::uint32_t add(const ShardedTensor& tensor) {
    const auto index = static_cast<std::uint32_t>(layout.tensors.size());
    LaneTensor entry{tensor.bucket, tensor.clip_group, -1, static_cast<std::uint32_t>(layout.parts.size()), 0, {}};
    entry.parts = static_cast<std::uint32_t>(tensor.parts.size());
    for (std::uint32_t copy = 1; copy <= tensor.copies; ++copy) {
      entry.copies.push_back(index + copy);
    }
    layout.tensors.push_back(entry);
    for (std::uint32_t copy = 0; copy < tensor.copies; ++copy) {
      layout.tensors.push_back({tensor.bucket, tensor.clip_group, -1, entry.first_part, 0, {}});
    }
    for (const ShardPart& part : tensor.parts) {
      layout.parts.push_back(part_of_box(tensor.shape, part.box));
      layout.parts.back().tensor = index;
      layout.parts.back().sums = static_cast<std::uint32_t>(layout.sums.size());
      layout.sums.push_back(part.sums);
    }
    for (std::uint32_t memory = index; memory < layout.tensors.size(); ++memory) {
      layout.buckets[tensor.bucket].tensors.push_back(memory);
    }
    layout.clip_groups = std::max(layout.clip_groups, tensor.clip_group + 1);
    specs.resize(layout.tensors.size());
    specs[index] = tensor;
    return index;
  }

  /// Places every tensor in every arena and loads the plan.
  LoadedPlan& load(std::size_t threads = 2) {
    lay_out();
    for (std::int64_t rank = 0; rank < layout.world_size; ++rank) {
      arenas.emplace_back(sizes_[layout.arena_of_rank[static_cast<std::size_t>(rank)]], std::byte{0x11});
    }
    plan.emplace(layout, views(), threads);
    return *plan;
  }

  [[nodiscard]] std::vector<BufferView> views() {
    std::vector<BufferView> views;
    for (std::vector<std::byte>& arena : arenas) {
      views.push_back({arena.data(), arena.size()});
    }
    return views;
  }

  /// Calls `take` with rank, tensor and number of elements of each input that some sum reads.
  template <typename Take>
  void for_each_source(Take take) const {
    for_each_member([&](const LaneMember& member, std::uint32_t memory, const LanePart& part, bool source) {
      if (source) {
        take(member.rank, memory, volume(specs[part.tensor].shape));
      }
    });
  }

  /// Small integers in every input, and something else in the outputs.
  void fill(std::mt19937_64& random) {
    for (std::vector<std::byte>& arena : arenas) {
      std::fill(arena.begin(), arena.end(), std::byte{0x11});
    }
    for_each_source([&](std::uint32_t rank, std::uint32_t memory, std::uint64_t elements) {
      for (std::uint64_t i = 0; i < elements; ++i) {
        set(rank, memory, i, static_cast<double>(random() % 17) - 8);
      }
    });
  }

  void set(std::uint32_t rank, std::uint32_t memory, std::uint64_t element, double value) {
    write(arenas[rank], arena(rank).input[memory], memory, element, value);
  }

  [[nodiscard]] double input(std::uint32_t rank, std::uint32_t memory, std::uint64_t element) const {
    return read(arenas[rank], arena(rank).input[memory], memory, element);
  }

  [[nodiscard]] std::vector<double> output(std::uint32_t rank, std::uint32_t memory, std::uint64_t elements) const {
    std::vector<double> values;
    for (std::uint64_t i = 0; i < elements; ++i) {
      values.push_back(read(arenas[rank], arena(rank).output[memory], memory, i));
    }
    return values;
  }

  [[nodiscard]] const LaneArena& arena(std::uint32_t rank) const { return layout.arenas[layout.arena_of_rank[rank]]; }

  [[nodiscard]] plan::DType dtype_of(std::uint32_t memory) const {
    return layout.buckets[layout.tensors[memory].bucket].dtype;
  }

  void write(
      std::vector<std::byte>& bytes, std::uint64_t offset, std::uint32_t memory, std::uint64_t element, double value
  ) const {
    const plan::DType dtype = dtype_of(memory);
    const auto single = static_cast<float>(value);
    const std::uint16_t half =
        dtype == plan::DType::BFloat16 ? arithmetic::float_to_bfloat16(single) : arithmetic::float_to_float16(single);
    const void* from = dtype == plan::DType::Float64   ? static_cast<const void*>(&value)
                       : dtype == plan::DType::Float32 ? static_cast<const void*>(&single)
                                                       : &half;
    std::memcpy(bytes.data() + offset + element * plan::size_of(dtype), from, plan::size_of(dtype));
  }

  [[nodiscard]] double read(
      const std::vector<std::byte>& bytes, std::uint64_t offset, std::uint32_t memory, std::uint64_t element
  ) const {
    const plan::DType dtype = dtype_of(memory);
    double value = 0;
    float single = 0;
    std::uint16_t half = 0;
    void* to = dtype == plan::DType::Float64   ? static_cast<void*>(&value)
               : dtype == plan::DType::Float32 ? static_cast<void*>(&single)
                                               : &half;
    std::memcpy(to, bytes.data() + offset + element * plan::size_of(dtype), plan::size_of(dtype));
    return dtype == plan::DType::Float64    ? value
           : dtype == plan::DType::Float32  ? single
           : dtype == plan::DType::BFloat16 ? arithmetic::bfloat16_to_float(half)
                                            : arithmetic::float16_to_float(half);
  }

  LanePlan layout;
  std::vector<ShardedTensor> specs;  ///< by tensor; of tied copies none
  std::vector<std::vector<std::byte>> arenas;
  std::optional<LoadedPlan> plan;

 private:
  template <typename Take>
  void for_each_member(Take take) const {
    for (const LanePart& part : layout.parts) {
      for (const LaneSum& sum : layout.sums[part.sums]) {
        for (const LaneMember& source : sum.sources) {
          take(source, part.tensor + source.copy, part, true);
        }
        for (const LaneMember& destination : sum.destinations) {
          take(destination, part.tensor + destination.copy, part, false);
        }
      }
    }
  }

  /// Bytes by arena and tensor: what lies there, and where. Arenas that are not alike have other gaps.
  void lay_out() {
    const std::size_t world = layout.rank_buffers.size();
    const std::size_t kinds = alike_ ? 1 : world;
    layout.arenas.assign(kinds, {});
    std::vector<std::vector<std::uint64_t>> inputs(kinds, std::vector<std::uint64_t>(layout.tensors.size()));
    auto outputs = inputs;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      layout.arena_of_rank.push_back(alike_ ? 0 : rank);
    }
    for_each_member([&](const LaneMember& member, std::uint32_t memory, const LanePart& part, bool source) {
      auto& bytes = (source ? inputs : outputs)[layout.arena_of_rank[member.rank]][memory];
      const std::uint64_t elements = source ? volume(specs[part.tensor].shape) : part.elements;
      bytes = std::max(bytes, elements * plan::size_of(dtype_of(memory)));
    });
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      std::uint64_t end = 8 * kind;
      const auto place = [&](std::uint64_t bytes) {
        const std::uint64_t offset = end;
        end += (bytes + 7) / 8 * 8 + 8 * kind;
        return bytes == 0 ? kNotHeld : offset;
      };
      std::uint32_t counted = 0;
      for (std::uint32_t memory = 0; memory < layout.tensors.size(); ++memory) {
        counted = layout.tensors[memory].parts != 0 ? memory : counted;
        layout.arenas[kind].input.push_back(place(inputs[kind][memory]));
        layout.arenas[kind].output.push_back(
            specs[counted].in_place ? layout.arenas[kind].input.back() : place(outputs[kind][memory])
        );
      }
      sizes_.push_back(std::max<std::uint64_t>(end, 8));
    }
  }

  bool alike_;
  std::vector<std::uint64_t> sizes_;  ///< by arena
};

}  // namespace gradsync::device
