#include "device/loaded/layout_check.hpp"

#include "device/device_error.hpp"
#include "device/stats/sums_check.hpp"
#include "device/transfer/transfer_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::device {

namespace {

class LayoutCheck {
 public:
  LayoutCheck(const LanePlan& layout, const std::vector<BufferView>& buffers)
      : layout_(layout), buffers_(buffers), bucketed_(layout.tensors.size()), tied_(layout.tensors.size()) {}

  void run() {
    const bool over_nodes = !layout_.nodes.node_of_rank.empty();
    if (over_nodes) {
      check_nodes(layout_, buffers_);
    }
    check_arenas();
    for (std::size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
      check_bucket(bucket);
    }
    for (std::size_t tensor = 0; tensor < layout_.tensors.size(); ++tensor) {
      check_tensor(tensor);
      check_copies(tensor);
    }
    uses_ = uses_of_sums(layout_, buffers_);
    std::size_t owned = 0;
    for (std::size_t tensor = 0; tensor < layout_.tensors.size(); ++tensor) {
      check_parts(tensor);
      owned += layout_.tensors[tensor].parts;
    }
    check_fit(owned == layout_.parts.size(), [&] {
      return fmt::format("{} parts of {} belong to tensors", owned, layout_.parts.size());
    });
    if (over_nodes) {
      check_transfers(layout_);
    }
  }

 private:
  void check_arenas() const {
    check_fit(layout_.arena_of_rank.size() == buffers_.size(), [&] {
      return fmt::format("{} ranks of {} have an arena", layout_.arena_of_rank.size(), buffers_.size());
    });
    for (std::size_t rank = 0; rank < buffers_.size(); ++rank) {
      check_fit(layout_.arena_of_rank[rank] < layout_.arenas.size(), [&] {
        return fmt::format("rank {} has arena {} of {}", rank, layout_.arena_of_rank[rank], layout_.arenas.size());
      });
    }
    for (std::size_t arena = 0; arena < layout_.arenas.size(); ++arena) {
      const LaneArena& places = layout_.arenas[arena];
      const std::size_t tensors = layout_.tensors.size();
      check_fit(places.input.size() == tensors && places.output.size() == tensors, [&] {
        return fmt::format(
            "arenas[{}] place {} inputs and {} outputs of {} tensors",
            arena,
            places.input.size(),
            places.output.size(),
            tensors
        );
      });
    }
  }

  void check_bucket(std::size_t index) {
    const LaneBucket& bucket = layout_.buckets[index];
    check_fit(std::isfinite(bucket.divisor) && bucket.divisor > 0, [&] {
      return fmt::format("buckets[{}].divisor is {}, it must be finite and positive", index, bucket.divisor);
    });
    for (const std::uint32_t tensor : bucket.tensors) {
      check_fit(tensor < layout_.tensors.size() && !bucketed_[tensor] && layout_.tensors[tensor].bucket == index, [&] {
        return fmt::format("tensor {} is not in bucket {} once and alone", tensor, index);
      });
      bucketed_[tensor] = true;
    }
  }

  void check_tensor(std::size_t index) const {
    const LaneTensor& tensor = layout_.tensors[index];
    check_fit(bucketed_[index], [&] { return fmt::format("tensor {} is in no bucket", index); });
    check_fit(tensor.clip_group < layout_.clip_groups, [&] {
      return fmt::format("tensor {} is in clip group {}", index, tensor.clip_group);
    });
    check_fit(tensor.layer >= -1 && tensor.layer < static_cast<std::int64_t>(layout_.layers), [&] {
      return fmt::format("tensor {} is in layer {} of {}", index, tensor.layer, layout_.layers);
    });
  }

  void check_copies(std::size_t index) {
    for (const std::uint32_t copy : layout_.tensors[index].copies) {
      check_fit(copy < layout_.tensors.size() && copy != index && !tied_[copy], [&] {
        return fmt::format("tensor {} is tied to tensor {} and is not another one, once", copy, index);
      });
      const LaneTensor& tensor = layout_.tensors[copy];
      check_fit(tensor.parts == 0 && tensor.copies.empty() && tensor.bucket == layout_.tensors[index].bucket, [&] {
        return fmt::format("tensor {}, tied to tensor {}, has parts, copies or a bucket of its own", copy, index);
      });
      tied_[copy] = true;
    }
  }

  void check_parts(std::size_t index) {
    const LaneTensor& tensor = layout_.tensors[index];
    check_fit(tensor.parts != 0 || tied_[index], [&] {
      return fmt::format("tensor {} has no part and is tied to no other", index);
    });
    const std::size_t parts = layout_.parts.size();
    check_fit(tensor.first_part <= parts && tensor.parts <= parts - tensor.first_part, [&] {
      return fmt::format(
          "tensor {} has parts {} to {} of {}",
          index,
          tensor.first_part,
          std::uint64_t{tensor.first_part} + tensor.parts,
          parts
      );
    });
    for (std::size_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
      check_part(index, part);
      if (tensor.parts > 1 && layout_.parts[part].elements != 0) {
        check_holders(index, part);
      }
    }
  }

  void check_part(std::size_t index, std::size_t number) const {
    const LanePart& part = layout_.parts[number];
    check_fit(part.tensor == index, [&] {
      return fmt::format("part {} of tensor {} names tensor {}", number, index, part.tensor);
    });
    check_fit(part.sums < layout_.sums.size() && !layout_.sums[part.sums].empty(), [&] {
      return fmt::format("part {} has sums {} of {}, or those are none", number, part.sums, layout_.sums.size());
    });
    const SumsUse& use = uses_[part.sums];
    check_fit(use.copies <= layout_.tensors[index].copies.size(), [&] {
      return fmt::format(
          "sums[{}] name copy {}, tensor {} has {}", part.sums, use.copies, index, layout_.tensors[index].copies.size()
      );
    });
    const std::optional<std::uint64_t> end = end_in_input(part);
    check_fit(end.has_value(), [&] {
      return fmt::format(
          "part {} of tensor {} has {} elements, which its runs of {} from element {} on do not make",
          number,
          index,
          part.elements,
          part.run,
          part.first
      );
    });
    if (part.elements == 0) {
      return;  // nothing of it is anywhere
    }
    for (const ArenaUse& arena : use.arenas) {
      check_use(number, arena, *end);
    }
  }

  /// Returns the end of the part in an input, in elements; nullopt: the numbers contradict each other, or do not fit 64
  /// bits.
  static std::optional<std::uint64_t> end_in_input(const LanePart& part) {
    std::uint64_t elements = part.run;
    std::uint64_t end = 0;
    bool lost = __builtin_add_overflow(part.first, part.run, &end);
    for (const LaneStride& stride : part.strides) {
      std::uint64_t reach = 0;
      lost = lost || stride.count == 0 || __builtin_mul_overflow(elements, stride.count, &elements) ||
             __builtin_mul_overflow(stride.count - 1, stride.distance, &reach) ||
             __builtin_add_overflow(end, reach, &end);
    }
    return lost || elements != part.elements ? std::nullopt : std::optional(end);
  }

  void check_use(std::size_t number, const ArenaUse& use, std::uint64_t end_in_input) const {
    const LanePart& part = layout_.parts[number];
    const LaneTensor& tensor = layout_.tensors[part.tensor];
    const std::uint32_t memory = use.copy == 0 ? part.tensor : tensor.copies[use.copy - 1];
    const LaneArena& arena = layout_.arenas[use.arena];
    const std::uint64_t offset = (use.writes ? arena.output : arena.input)[memory];
    const char* side = use.writes ? "output" : "input";
    check_fit(offset != kNotHeld, [&] {
      return fmt::format("the {} of tensor {} is not in the arena of rank {}", side, memory, use.rank);
    });
    const std::uint64_t width = plan::size_of(layout_.buckets[tensor.bucket].dtype);
    check_fit(offset % width == 0, [&] {
      return fmt::format(
          "the {} of tensor {} starts at byte {}, not a multiple of its element's {}", side, memory, offset, width
      );
    });
    const std::uint64_t end = use.writes ? part.elements : end_in_input;
    check_fit(offset <= use.size_bytes && end <= (use.size_bytes - offset) / width, [&] {
      return fmt::format(
          "the {} of tensor {}, part {} ({} elements of {} bytes at byte {}) ends outside the {} bytes of rank {}",
          side,
          memory,
          number,
          end,
          width,
          offset,
          use.size_bytes,
          use.rank
      );
    });
    if (arena.input[memory] == arena.output[memory]) {
      check_in_place(number, memory, use);
    }
  }

  void check_in_place(std::size_t number, std::uint32_t memory, const ArenaUse& use) const {
    const LanePart& part = layout_.parts[number];
    check_fit(!use.writes || (part.first == 0 && part.run == part.elements), [&] {
      return fmt::format(
          "the output of tensor {} is its input, of which part {} is {} elements from {} on in runs of {}, not all",
          memory,
          number,
          part.elements,
          part.first,
          part.run
      );
    });
    check_fit(!use.only_read, [&] {
      return fmt::format(
          "the output of tensor {} is its input, but rank {} is a source of part {} and no destination of the same sum",
          memory,
          *use.only_read,
          number
      );
    });
  }

  /// Checks that a rank holds one part of a tensor after sync, so that no two tasks write the same memory.
  void check_holders(std::size_t index, std::size_t number) {
    const std::size_t copies = layout_.tensors[index].copies.size() + 1;
    if (holder_of_.size() < buffers_.size() * copies) {
      holder_of_.resize(buffers_.size() * copies);
    }
    for (const LaneSum& sum : layout_.sums[layout_.parts[number].sums]) {
      for (const LaneMember& member : sum.destinations) {
        std::size_t& holder = holder_of_[member.rank * copies + member.copy];
        check_fit(holder != index + 1, [&] {
          return fmt::format("rank {} is the destination of two parts of tensor {}", member.rank, index);
        });
        holder = index + 1;
      }
    }
  }

  const LanePlan& layout_;
  const std::vector<BufferView>& buffers_;
  std::vector<bool> bucketed_;
  std::vector<bool> tied_;
  std::vector<SumsUse> uses_;
  std::vector<std::size_t> holder_of_;  ///< by rank and copy: 1 + the last tensor of which it was a destination
};

}  // namespace

void check_buffers(std::int64_t world_size, double norm_type, const std::vector<BufferView>& buffers) {
  check_fit(world_size >= 1 && static_cast<std::size_t>(world_size) == buffers.size(), [&] {
    return fmt::format("world_size is {}, {} buffers are given", world_size, buffers.size());
  });
  std::vector<std::pair<const void*, std::size_t>> held;
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    if (buffers[rank].data != nullptr) {
      held.emplace_back(buffers[rank].data, rank);
    }
  }
  std::ranges::sort(held);
  const auto shared = std::ranges::adjacent_find(held, {}, [](const auto& each) { return each.first; });
  check_fit(shared == held.end(), [&] {
    return fmt::format("ranks {} and {} share a buffer", shared->second, std::next(shared)->second);
  });
  check_fit(norm_type >= 1, [&] { return fmt::format("norm_type is {}, it must be at least 1", norm_type); });
}

void check_layout(const LanePlan& layout, const std::vector<BufferView>& buffers) {
  check_buffers(layout.world_size, layout.norm_type, buffers);
  LayoutCheck(layout, buffers).run();
}

}  // namespace gradsync::device
