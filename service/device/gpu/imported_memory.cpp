#include "device/gpu/imported_memory.hpp"

#include "base/clock.hpp"
#include "base/text/text.hpp"
#include "device/device_error.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace gradsync::device {

namespace {

constexpr std::size_t kHandleBytes = 64;
constexpr std::uint64_t kAlignment = 16;  // of the kernels' vectors

void throw_unless(bool holds, const std::string& message, const char* hint) {
  if (!holds) {
    throw DeviceError(message, hint);
  }
}

void check_declared(const ExportedMemory& memory, std::uint64_t size_bytes) {
  throw_unless(
      memory.handle.size() == kHandleBytes,
      fmt::format("a handle has {} bytes, this one {}", kHandleBytes, memory.handle.size()),
      "export the memory by cuIpcGetMemHandle"
  );
  throw_unless(
      memory.offset % kAlignment == 0,
      fmt::format("the buffer begins {} bytes into its allocation, not at a multiple of {}", memory.offset, kAlignment),
      "gradsync.alloc_grad_buffer() aligns buffers"
  );
  throw_unless(
      memory.offset <= memory.allocation_bytes && size_bytes <= memory.allocation_bytes - memory.offset,
      fmt::format(
          "{} at offset {} reach beyond the allocation, which has {}",
          human_bytes(size_bytes),
          memory.offset,
          human_bytes(memory.allocation_bytes)
      ),
      "send the base and size of the allocation that cuMemGetAddressRange returns"
  );
}

void check_mapped(const ExportedMemory& memory, std::uint64_t mapped_bytes) {
  throw_unless(
      memory.allocation_bytes <= mapped_bytes,
      fmt::format(
          "the allocation has {}, and {} of it can be mapped",
          human_bytes(memory.allocation_bytes),
          human_bytes(mapped_bytes)
      ),
      "export it anew: this handle is of other memory than was said of it"
  );
}

double seconds_since(TimePoint begin) { return seconds(std::chrono::steady_clock::now() - begin); }

}  // namespace

/// One opened handle.
class ImportedMemory::Allocation {
 public:
  Allocation(const KernelLibrary& library, const ExportedMemory& memory) : library_(library) {
    library_.must(library_.import_memory(memory.handle.data(), &base_, &bytes_), "mapping another process's memory");
  }

  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  ~Allocation() {
    if (base_ != nullptr && library_.close_imported(base_) != 0) {
      spdlog::error("a mapping of another process's memory could not be closed: {}", library_.said());
    }
  }

  /// Throws DeviceError.
  void close() { library_.must(library_.close_imported(std::exchange(base_, nullptr)), "closing the mapping"); }

  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return static_cast<std::byte*>(base_) + offset; }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  const KernelLibrary& library_;
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

class ImportedMemory::Buffer final : public LaneBuffer {
 public:
  Buffer(std::shared_ptr<const Allocation> allocation, std::uint64_t offset, std::uint64_t size_bytes)
      : allocation_(std::move(allocation)), offset_(offset), size_bytes_(size_bytes) {}

  [[nodiscard]] BufferView for_passes() const override { return {allocation_->at(offset_), size_bytes_}; }

  [[nodiscard]] BufferView for_host() const override { return {nullptr, size_bytes_}; }

  void punch_out() const override {}

 private:
  std::shared_ptr<const Allocation> allocation_;
  std::uint64_t offset_;
  std::uint64_t size_bytes_;
};

std::unique_ptr<LaneBuffer> ImportedMemory::map(const ExportedMemory& memory, std::uint64_t size_bytes) {
  check_declared(memory, size_bytes);
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<const Allocation> allocation = open_[memory.allocation].lock();
  if (!allocation) {
    allocation = std::make_shared<const Allocation>(library_, memory);
    open_[memory.allocation] = allocation;
  }
  check_mapped(memory, allocation->bytes());
  return std::make_unique<Buffer>(std::move(allocation), memory.offset, size_bytes);
}

Probe ImportedMemory::probe(const ExportedMemory& memory, std::uint64_t size_bytes) const {
  check_declared(memory, size_bytes);
  Probe found;
  TimePoint begin = std::chrono::steady_clock::now();
  Allocation allocation(library_, memory);
  found.open_s = seconds_since(begin);
  found.mapped_bytes = allocation.bytes();
  check_mapped(memory, found.mapped_bytes);
  begin = std::chrono::steady_clock::now();
  found.read.resize(size_bytes);
  std::byte* const place = allocation.at(memory.offset);
  library_.must(library_.read(found.read.data(), place, size_bytes), "reading another process's memory");
  std::string written = found.read;
  std::ranges::transform(written, written.begin(), [](char byte) { return static_cast<char>(~byte); });
  library_.must(library_.write(place, written.data(), size_bytes), "writing another process's memory");
  found.copy_s = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  allocation.close();
  found.close_s = seconds_since(begin);
  return found;
}

}  // namespace gradsync::device
