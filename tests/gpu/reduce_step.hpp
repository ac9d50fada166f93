#pragma once
// A bucket of one tensor on several ranks, all on one device, reduced in place: what a lane does for each bucket.

#include "kernels/device_memory.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace gradsync::kernels {

class ReduceStep {
 public:
  static constexpr std::uint64_t kChunk = 16'384;  ///< elements, as the CPU engine cuts

  ReduceStep(DType dtype, std::uint32_t ranks, std::uint64_t elements)
      : bytes_of_rank_((elements * size_of(dtype) + 511) / 512 * 512),
        memory_(ranks * bytes_of_rank_),
        table_(ranks, parts(ranks), chunks(elements), buckets(dtype, ranks, elements)),
        image_(table_.image().size()),
        addresses_(uploaded(addresses(ranks))),
        chunks_(table_.chunks() * sizeof(ReducedChunk)),
        nonfinite_(ranks * sizeof(std::uint64_t)),
        differs_(sizeof(std::uint32_t)) {
    image_.upload(table_.image().data(), table_.image().size());
    memory_.zero();
    nonfinite_.zero();
    differs_.zero();
  }

  void enqueue(cudaStream_t stream) const {
    const ReduceMemory memory{
        image_.get(),
        reinterpret_cast<const std::uint64_t*>(addresses_.get()),
        reinterpret_cast<ReducedChunk*>(chunks_.get()),
        reinterpret_cast<std::uint64_t*>(nonfinite_.get()),
        reinterpret_cast<std::uint32_t*>(differs_.get())};
    must(reduce(table_, {0, 2, false}, memory, stream), "reduce");
  }

  /// Copies one half of the memory over the other.
  void enqueue_copy(cudaStream_t stream) const {
    const std::size_t half = memory_.bytes() / 2;
    must(cudaMemcpyAsync(memory_.get() + half, memory_.get(), half, cudaMemcpyDeviceToDevice, stream), "copy");
  }

  /// What a pass reads and writes, and what the copy does. One rank alone is only read: nothing changes its bucket.
  [[nodiscard]] double moved_bytes() const {
    return (table_.places() == 1 ? 1.0 : 2.0) * static_cast<double>(memory_.bytes());
  }

  [[nodiscard]] double copied_bytes() const { return static_cast<double>(memory_.bytes()); }

 private:
  static std::vector<ReducePart> parts(std::uint32_t ranks) {
    std::vector<std::uint32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0U);
    return {{{{all, all}}}};
  }

  static std::vector<ReduceChunk> chunks(std::uint64_t elements) {
    std::vector<ReduceChunk> chunks;
    for (std::uint64_t first = 0; first < elements; first += kChunk) {
      chunks.push_back({first, first, 0, static_cast<std::uint32_t>(std::min(kChunk, elements - first)), 1, 0});
    }
    return chunks;
  }

  static std::vector<ReduceBucket> buckets(DType dtype, std::uint32_t ranks, std::uint64_t elements) {
    return {{dtype, static_cast<double>(ranks), 0, static_cast<std::uint32_t>((elements + kChunk - 1) / kChunk)}};
  }

  [[nodiscard]] std::vector<std::uint64_t> addresses(std::uint32_t ranks) const {
    std::vector<std::uint64_t> addresses;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      addresses.push_back(reinterpret_cast<std::uint64_t>(memory_.get()) + rank * bytes_of_rank_);
    }
    return addresses;
  }

  std::uint64_t bytes_of_rank_;
  DeviceMemory memory_;
  ReduceTable table_;
  DeviceMemory image_;
  DeviceMemory addresses_;
  DeviceMemory chunks_;
  DeviceMemory nonfinite_;
  DeviceMemory differs_;
};

}  // namespace gradsync::kernels
