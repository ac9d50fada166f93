#pragma once
// Tensors of a test or benchmark that lie on the device, and the table of them there.

#include "kernels/device_memory.hpp"
#include "kernels/tables/chunk_table.hpp"

#include <vector>

namespace gradsync::kernels {

struct PlacedTensor {
  void* address = nullptr;
  std::uint64_t count = 0;
  DType dtype = DType::Float32;
  std::uint32_t norm_group = 0;
  std::uint32_t clip_group = 0;
};

inline std::vector<TensorSpec> specs_of(const std::vector<PlacedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const PlacedTensor& tensor : tensors) {
    specs.push_back({tensor.count, tensor.dtype, tensor.norm_group, tensor.clip_group});
  }
  return specs;
}

inline std::vector<void*> addresses_of(const std::vector<PlacedTensor>& tensors) {
  std::vector<void*> addresses;
  for (const PlacedTensor& tensor : tensors) {
    addresses.push_back(tensor.address);
  }
  return addresses;
}

class PlacedTable {
 public:
  PlacedTable(const std::vector<PlacedTensor>& tensors, std::uint32_t norm_groups, std::uint32_t clip_groups)
      : chunks_(specs_of(tensors), norm_groups, clip_groups),
        image_(chunks_.image().size()),
        addresses_(uploaded(chunks_.addresses(addresses_of(tensors)))),
        scratch_(chunks_.scratch_bytes()) {
    image_.upload(chunks_.image().data(), chunks_.image().size());
    scratch_.zero();
    must(cudaStreamSynchronize(nullptr), "zeroing the scratch memory");
  }

  [[nodiscard]] DeviceTable table() const { return chunks_.at(image_.get(), addresses_.get()); }

  [[nodiscard]] const DeviceMemory& scratch() const { return scratch_; }

 private:
  ChunkTable chunks_;
  DeviceMemory image_;
  DeviceMemory addresses_;
  DeviceMemory scratch_;
};

}  // namespace gradsync::kernels
