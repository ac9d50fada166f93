#pragma once
// A table of sums in the memory of a GPU (kernels/tables/reduce_table.hpp): where its places lie, and what a pass over
// one of its buckets finds.

#include "device/gpu/release_on_gpu.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/transfer/node_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace gradsync::device {

/// What a table is made of: the lists of a `gradsync_reduce_plan`.
struct GpuTableLists {
  static constexpr std::size_t kNoSlot = std::numeric_limits<std::size_t>::max();

  /// What a chunk is of.
  struct ChunkOf {
    std::uint32_t tensor = 0;
    std::uint32_t counted = kNotCounted;  ///< where its statistics belong in ChunkTable::chunks
  };

  using Places = std::vector<std::uint32_t>;

  std::uint32_t add_place(std::size_t slot = kNoSlot);
  void begin_part();
  void add_sum(const Places& sources, const Places& destinations);  ///< to the last part
  void add_chunk(const gradsync_reduce_chunk& chunk, const ChunkOf& of);

  /// It has the chunks behind those of the bucket before. Returns its number.
  std::uint32_t add_bucket(double divisor, plan::DType results, plan::DType inputs, bool minus_zeros);

  std::vector<std::size_t> slots;  ///< by place: of the plan, where it is the input of a rank
  std::vector<gradsync_reduce_part> parts = {};
  std::vector<gradsync_reduce_sum> sums = {};
  std::vector<std::uint32_t> members = {};
  std::vector<gradsync_reduce_chunk> chunks = {};
  std::vector<ChunkOf> of_chunk = {};
  std::vector<gradsync_reduce_bucket> buckets = {};
};

class GpuTable {
 public:
  /// Throws DeviceError where the device has no memory for it; `what` it is.
  GpuTable(const KernelLibrary& library, GpuTableLists lists, const char* what);

  /// Until it is placed anew. Null: it is left out.
  void place(std::uint32_t place, const std::byte* memory) { addresses_[place] = gpu_address(memory); }

  /// Makes the sums of a bucket, and notes whose inputs are not finite. True: sums that are compared differ.
  bool run(LoadedPlan& plan, std::uint32_t bucket, double p, bool compare, const char* what);

  [[nodiscard]] bool differs(std::uint32_t sum) const { return differs_[sum] != 0; }

  /// Those of the last pass over the bucket; `replicas`: also of sums that the norm does not count.
  void take_statistics(LoadedPlan& plan, std::uint32_t bucket, bool replicas) const;

  /// As StepPasses::sum_again, of the chunks that are counted.
  void sum_again(LoadedPlan& plan);

 private:
  void note_inputs(LoadedPlan& plan) const;

  const KernelLibrary& library_;
  GpuTableLists lists_;
  std::unique_ptr<gradsync_reduction, ReleaseOnGpu> reduction_;
  std::vector<std::uint64_t> addresses_;         ///< by place
  std::vector<gradsync_reduced_chunk> results_;  ///< by chunk; scratch, as the next three
  std::vector<std::uint64_t> nonfinite_;
  std::vector<std::uint32_t> differs_;
  std::vector<double> scales_;
};

}  // namespace gradsync::device
