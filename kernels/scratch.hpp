#pragma once
// How the memory of `ChunkTable::scratch_bytes` is used. Invariant: all counters are zero between passes.

#include "kernels/chunk_table.hpp"
#include "kernels/power_sum.hpp"

namespace gradsync::kernels {

/// Launches of one pass: at most one per dtype, twice.
inline constexpr std::size_t kPassLaunches = 2 * kDTypes;

struct PassCounters {
  std::uint32_t next[kPassLaunches];  ///< claimed items of each launch
  std::uint32_t arrived;              ///< blocks that have nothing left to do, over all launches of the pass
  std::uint32_t reserved[7];
};

struct Scratch {
  PassCounters* counters;
  std::uint32_t* tickets;  ///< one per tensor: its pieces that are done
  PowerSum* records;       ///< one per piece of tensors with more than one
};

inline constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

inline std::size_t records_offset(const DeviceTable& table) {
  return align_up(sizeof(PassCounters) + table.tensor_count * sizeof(std::uint32_t), 64);
}

inline Scratch scratch_at(void* memory, const DeviceTable& table) {
  auto* bytes = static_cast<std::byte*>(memory);
  return {
      reinterpret_cast<PassCounters*>(bytes),
      reinterpret_cast<std::uint32_t*>(bytes + sizeof(PassCounters)),
      reinterpret_cast<PowerSum*>(bytes + records_offset(table))};
}

}  // namespace gradsync::kernels
