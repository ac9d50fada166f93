#include "device/memory/mapped_buffer.hpp"

#include "device/device_error.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>

#include <algorithm>
#include <atomic>
#include <cerrno>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace gradsync::device {

namespace {

DeviceError system_error(const char* what) {
  const int error = errno;
  return DeviceError(
      fmt::format("{}: {}", what, std::generic_category().message(error)),
      error == ENOMEM ? DeviceError::Kind::OutOfMemory : DeviceError::Kind::Failed
  );
}

void check_is_arena(int fd, std::uint64_t size_bytes) {
  struct stat status {};

  if (::fstat(fd, &status) != 0) {
    throw system_error("fstat of a buffer");
  }
  if (static_cast<std::uint64_t>(status.st_size) != size_bytes || size_bytes == 0) {
    throw DeviceError(fmt::format("the buffer has {} bytes, {} were registered", status.st_size, size_bytes));
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw DeviceError(
        fmt::format("the buffer has seals {:#x}, SHRINK|GROW|SEAL ({:#x}) are needed", std::max(seals, 0), kSeals)
    );
  }
}

/// Page table entries for every page, so that no step takes a fault.
class Populate final : public PoolJob {
 public:
  Populate(std::byte* data, std::uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    const std::uint64_t from = task * kBytes;
    const std::uint64_t length = std::min(kBytes, size_bytes_ - from);
    if (::madvise(data_ + from, length, MADV_POPULATE_WRITE) == 0) {
      return;
    }
    if (errno != EINVAL) {
      error_.store(errno, std::memory_order_relaxed);
      return;
    }
    for (std::uint64_t at = from; at < from + length; at += 4096) {  // a kernel before 5.14
      // Writes without changing what a client wrote.
      std::atomic_ref(reinterpret_cast<unsigned char&>(data_[at])).fetch_or(0, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] std::uint32_t tasks() const { return static_cast<std::uint32_t>((size_bytes_ + kBytes - 1) / kBytes); }

  [[nodiscard]] int error() const { return error_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kBytes = 16U << 20;
  std::byte* data_;
  std::uint64_t size_bytes_;
  std::atomic<int> error_{0};
};

}  // namespace

MappedBuffer::MappedBuffer(UniqueFd fd, std::uint64_t size_bytes, WorkerPool& pool)
    : fd_(std::move(fd)), size_bytes_(size_bytes) {
  check_is_arena(fd_.get(), size_bytes);
  void* address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) {
    throw system_error("mapping a buffer");
  }
  data_ = static_cast<std::byte*>(address);
  Populate populate(data_, size_bytes);
  pool.run(populate.tasks(), populate);
  if (populate.error() != 0) {
    ::munmap(address, size_bytes);
    data_ = nullptr;
    errno = populate.error() == EFAULT ? ENOMEM : populate.error();  // EFAULT: a page could not be charged
    throw system_error(fmt::format("populating {} bytes of a buffer", size_bytes).c_str());
  }
}

MappedBuffer::MappedBuffer(MappedBuffer&& other) noexcept
    : fd_(std::move(other.fd_)), size_bytes_(other.size_bytes_), data_(std::exchange(other.data_, nullptr)) {}

MappedBuffer::~MappedBuffer() {
  if (data_ != nullptr) {
    ::munmap(data_, size_bytes_);
  }
}

void MappedBuffer::punch_out() const { device::punch_out(fd_.get(), size_bytes_); }

}  // namespace gradsync::device
