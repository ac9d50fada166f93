#include "device/transfer/staging.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace gradsync::device {

StagingMemory::StagingMemory(std::uint64_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes_ == 0) {
    return;
  }
  void* memory =
      ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw DeviceError(
        fmt::format("{} bytes of staging memory cannot be had: {}", size_bytes_, std::strerror(errno)),
        DeviceError::Kind::OutOfMemory
    );
  }
  memory_ = static_cast<std::byte*>(memory);
}

StagingMemory::~StagingMemory() {
  if (memory_ != nullptr) {
    ::munmap(memory_, size_bytes_);
  }
}

std::optional<std::uint64_t> StagingRing::place_for(std::uint64_t bytes) const {
  if (pieces_.empty()) {
    return bytes <= size_bytes_ ? std::optional<std::uint64_t>(0) : std::nullopt;
  }
  const std::uint64_t oldest = pieces_.front().at;
  const std::uint64_t end = pieces_.back().at + pieces_.back().bytes;
  if (pieces_.back().at < oldest) {  // the newest began anew at the front
    return bytes <= oldest - end ? std::optional(end) : std::nullopt;
  }
  if (bytes <= size_bytes_ - end) {
    return end;
  }
  return bytes <= oldest ? std::optional<std::uint64_t>(0) : std::nullopt;
}

std::byte* StagingRing::take(std::uint64_t bytes) {
  const std::optional<std::uint64_t> place = place_for(bytes);
  if (!place) {
    return nullptr;
  }
  pieces_.push_back({*place, bytes});
  taken_ += bytes;
  return memory_ + *place;
}

void StagingRing::give_back() {
  taken_ -= pieces_.front().bytes;
  pieces_.pop_front();
}

void StagingRing::clear() {
  pieces_.clear();
  taken_ = 0;
}

}  // namespace gradsync::device
