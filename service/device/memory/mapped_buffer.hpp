#pragma once
// Move-only owner of a rank's arena as the lane sees it: the descriptor and a shared mapping of all of it. The memory
// belongs to others too and may change at any time; its size may not, which is checked before anything is mapped.

#include "base/unique_fd.hpp"
#include "device/host/worker_pool.hpp"

#include <cstddef>
#include <cstdint>

namespace gradsync::device {

class MappedBuffer {
 public:
  /// Maps and populates the page tables, with the pool's help. Throws DeviceError if the descriptor is not of this
  /// size, lacks a seal, or memory ran out.
  MappedBuffer(UniqueFd fd, std::uint64_t size_bytes, WorkerPool& pool);
  MappedBuffer(MappedBuffer&& other) noexcept;
  MappedBuffer& operator=(MappedBuffer&&) = delete;
  ~MappedBuffer();

  [[nodiscard]] std::byte* data() const { return data_; }

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

  void punch_out() const;  ///< frees the pages, also where others hold the descriptor

 private:
  UniqueFd fd_;
  std::uint64_t size_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace gradsync::device
