#pragma once
// The workloads of the GPU benchmark: lists of tensors in one allocation.

#include "gpu/clip_step.hpp"

#include <string>

namespace gradsync::kernels {

struct BenchCase {
  std::string name;
  std::string what;
  std::vector<std::uint64_t> counts;  ///< elements of each tensor
  DType dtype = DType::BFloat16;
  std::uint64_t skipped = 0;  ///< elements between an aligned place and the tensor that begins behind it
};

/// bfloat16, a: one of 1.5 G elements; b: 500 of 450 k; c: 10,000 of 1 k; d: 8 GB of mixed sizes; m: as b, each one
/// element behind an aligned place, as FSDP2 cuts shards. float32, e: one of 750 M; f: 500 of 450 k. `shrink` divides
/// all counts of elements (of c: the number of tensors), for a short run under a tool.
std::vector<BenchCase> bench_cases(std::uint64_t shrink);

[[nodiscard]] std::uint64_t bytes_of(const BenchCase& bench);

/// Tensors of a case, filled with gradient-like values, and a second allocation of the same size to copy to.
class BenchMemory {
 public:
  explicit BenchMemory(const BenchCase& bench);

  [[nodiscard]] const std::vector<PlacedTensor>& tensors() const { return tensors_; }

  void enqueue_copy(cudaStream_t stream) const;

  /// What one copy copies: the tensors and the gaps between them.
  [[nodiscard]] double copied_bytes() const { return static_cast<double>(source_.bytes()); }

 private:
  DeviceMemory source_;
  DeviceMemory destination_;
  std::vector<PlacedTensor> tensors_;
};

}  // namespace gradsync::kernels
