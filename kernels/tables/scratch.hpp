#pragma once
// How the memory of `ChunkTable::scratch_bytes` is used. Invariant: the counters are zero between passes.

#include "kernels/tables/chunk_table.hpp"

namespace gradsync::kernels {

struct PassCounters {
  std::uint32_t next[kDTypes];  ///< items claimed in the launch of each dtype
  std::uint32_t arrived;        ///< blocks that have nothing left to do, over all launches of the pass
  std::uint32_t reserved[3];
};

/// The result that one piece leaves for the block that adds the pieces of a tensor.
struct alignas(16) Record {
  double high;
  double low;
  double maximum;
  std::uint32_t nonfinite;
  std::uint32_t nan;
};

struct Scratch {
  PassCounters* counters;
  Record* records;
  std::uint64_t* fingerprints;  ///< of each record
};

inline constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

inline std::size_t scratch_size(const DeviceTable& table) {
  return sizeof(PassCounters) + std::size_t{table.records} * (sizeof(Record) + sizeof(std::uint64_t));
}

inline Scratch scratch_at(void* memory, const DeviceTable& table) {
  auto* bytes = static_cast<std::byte*>(memory);
  auto* records = bytes + sizeof(PassCounters);
  return {
      reinterpret_cast<PassCounters*>(bytes),
      reinterpret_cast<Record*>(records),
      reinterpret_cast<std::uint64_t*>(records + table.records * sizeof(Record))};
}

}  // namespace gradsync::kernels
