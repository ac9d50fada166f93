#include "sim/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::size_t kSlotsAt = 4'096;

}  // namespace

Mapping::Mapping(UniqueFd fd, std::size_t bytes, bool writes)
    : fd_(std::move(fd)),
      bytes_(bytes),
      memory_(::mmap(nullptr, bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd_.get(), 0)) {
  if (memory_ == MAP_FAILED) {
    throw std::runtime_error("mmap failed");
  }
  if (!writes) {
    fd_.reset();
  }
}

Mapping::~Mapping() { ::munmap(memory_, bytes_); }

UniqueFd Mapping::descriptor() const { return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }

std::uint64_t SeenRecord::word_at(std::size_t offset) const {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory_->data() + offset)).load(std::memory_order_acquire);
}

std::optional<Told> SeenRecord::told(std::int64_t rank) const {
  std::uint32_t slot_bytes = 0;
  std::memcpy(&slot_bytes, memory_->data() + 12, sizeof slot_bytes);
  const std::byte* slot = memory_->data() + kSlotsAt + static_cast<std::size_t>(rank) * slot_bytes;
  std::uint64_t length = 0;
  std::memcpy(&length, slot, sizeof length);
  return told_by(std::string_view(reinterpret_cast<const char*>(slot + sizeof length), length));
}

}  // namespace gradsync::sim
