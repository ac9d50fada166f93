#pragma once
// Memory of the emulated GPU that this process owns and exports, as a trainer does.

#include "device/lane.hpp"
#include "kernels/simt/exported_memory.hpp"

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace gradsync::device {

/// What a worker has mapped of exported memory.
inline int mappings_of(pid_t worker) {
  std::ifstream maps("/proc/" + std::to_string(worker) + "/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    found += line.find(simt::kMemoryName) != std::string::npos ? 1 : 0;
  }
  return found;
}

class ExportedAllocation {
 public:
  explicit ExportedAllocation(std::size_t bytes) : fd_(::memfd_create(simt::kMemoryName, MFD_CLOEXEC)), bytes_(bytes) {
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) {
      throw std::runtime_error("no memory for an allocation");
    }
    data_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    if (data_ == MAP_FAILED) {
      throw std::runtime_error("an allocation cannot be mapped");
    }
  }

  ExportedAllocation(const ExportedAllocation&) = delete;
  ExportedAllocation& operator=(const ExportedAllocation&) = delete;

  ~ExportedAllocation() { ::munmap(data_, bytes_); }

  [[nodiscard]] std::byte* data() const { return data_; }

  /// `number`: of the allocation, as the daemon counts; `refused`: a CUDA error that opening it gives.
  [[nodiscard]] ExportedMemory exported(std::uint64_t number, std::uint64_t offset = 0, int refused = 0) const {
    simt::MemoryHandle handle = simt::handle_of(fd_.get());
    handle.refused = refused;
    return {number, std::string(reinterpret_cast<const char*>(&handle), sizeof(handle)), bytes_, offset};
  }

  [[nodiscard]] int descriptor() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace gradsync::device
