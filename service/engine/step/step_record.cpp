#include "engine/step/step_record.hpp"

#include "base/descriptors.hpp"
#include "base/text/text.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

namespace gradsync::engine {

namespace {

static_assert(std::endian::native == std::endian::little, "the record is little endian");
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

constexpr std::size_t kPage = 4096;
constexpr std::string_view kRecordMagic = "gsrecrd1";
constexpr std::size_t kWorldSizeAt = 8;
constexpr std::size_t kRecordSlotBytesAt = 12;
constexpr std::size_t kBegunAt = 16;
constexpr std::size_t kDoneAt = 24;
constexpr std::size_t kVotedAt = 32;
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
// FUTURE_WRITE leaves the daemon's mapping as it is, and forbids write, punching holes and every later mapping for
// writing; so it comes when the memory is mapped.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Error failed(const char* call, int error) {
  const std::string reason = std::generic_category().message(error);
  if (error == ENOMEM || error == ENOSPC) {
    return make_error(
        ErrorCode::InsufficientMemory,
        fmt::format("{} for a step record: {}", call, reason),
        "free memory, or raise the memory limit of the container or cgroup"
    );
  }
  if (error == EMFILE || error == ENFILE) {
    return no_descriptors_left("for a step record");
  }
  return make_error(
      ErrorCode::InternalError, fmt::format("{} for a step record: {}", call, reason), "see the daemon's log"
  );
}

void put(std::byte* at, std::uint32_t value) { std::memcpy(at, &value, sizeof value); }

Error record_too_large(const LocalRanks& ranks, std::uint64_t needed_bytes, const device::MemoryHeadroom& headroom) {
  return make_error(
      ErrorCode::InsufficientMemory,
      fmt::format(
          "a step record of {} ranks needs {} bytes, {} are free (limit {})",
          ranks.size(),
          needed_bytes,
          headroom.free_bytes,
          headroom.limit_bytes
      ),
      "free memory, or raise the memory limit of the container or cgroup"
  );
}

}  // namespace

Result<std::shared_ptr<StepRecord>> StepRecord::create(
    std::string plan_digest, const LocalRanks& ranks, std::size_t text_bytes, const device::MemoryHeadroom& headroom
) {
  const std::size_t slot_bytes = whole_pages(text_bytes + kLengthBytes);
  const std::uint64_t needed_bytes = kPage + static_cast<std::uint64_t>(ranks.size()) * slot_bytes;
  const std::uint64_t size_bytes = kPage + static_cast<std::uint64_t>(ranks.world_size()) * slot_bytes;
  if (needed_bytes > headroom.free_bytes || slot_bytes > std::numeric_limits<std::uint32_t>::max()) {
    return record_too_large(ranks, needed_bytes, headroom);
  }
  UniqueFd fd = device::open_memfd("gradsync-record");
  if (!fd.valid()) {
    return failed("memfd_create", errno);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return failed("ftruncate", errno);
  }
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(kPage)); error != 0) {
    return failed("posix_fallocate", error);
  }
  // Not populated: the pages are there, and most of what is reserved for findings is never touched.
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return failed("mmap", errno);
  }
  auto* const bytes = static_cast<std::byte*>(memory);
  std::shared_ptr<StepRecord> record(
      new StepRecord(std::move(plan_digest), std::move(fd), bytes, size_bytes, slot_bytes)
  );
  std::memcpy(bytes, kRecordMagic.data(), kRecordMagic.size());
  put(bytes + kWorldSizeAt, static_cast<std::uint32_t>(ranks.world_size()));
  put(bytes + kRecordSlotBytesAt, static_cast<std::uint32_t>(slot_bytes));
  if (::fcntl(record->fd_.get(), F_ADD_SEALS, kSeals) != 0) {
    return failed("sealing", errno);
  }
  if (Result<void> room = record->make_room(ranks); !room) {
    return room.error();
  }
  return record;
}

Result<void> StepRecord::make_room(const LocalRanks& ranks) {
  std::size_t seat = 0;
  while (seat < ranks.size()) {  // one call for ranks that follow each other
    const std::int64_t first = ranks.rank_of(seat);
    std::size_t count = 1;
    while (seat + count < ranks.size() && ranks.rank_of(seat + count) == first + static_cast<std::int64_t>(count)) {
      ++count;
    }
    const std::size_t begin = kPage + static_cast<std::size_t>(first) * slot_bytes_;
    const int error = ::posix_fallocate(fd_.get(), static_cast<off_t>(begin), static_cast<off_t>(count * slot_bytes_));
    if (error != 0) {
      return failed("posix_fallocate", error);
    }
    seat += count;
  }
  return {};
}

StepRecord::StepRecord(
    std::string plan_digest, UniqueFd fd, std::byte* memory, std::uint64_t size_bytes, std::size_t slot_bytes
)
    : plan_digest_(std::move(plan_digest)),
      fd_(std::move(fd)),
      memory_(memory),
      size_bytes_(size_bytes),
      slot_bytes_(slot_bytes) {}

StepRecord::~StepRecord() { close(); }

void StepRecord::close() {
  if (memory_ != nullptr) {
    ::munmap(memory_, size_bytes_);
    memory_ = nullptr;
  }
}

std::size_t StepRecord::room() const { return slot_bytes_ - kLengthBytes; }

void StepRecord::store(std::size_t offset, std::uint64_t word) {
  if (memory_ != nullptr) {
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory_ + offset)).store(word, std::memory_order_release);
  }
}

void StepRecord::begin(std::uint64_t word) { store(kBegunAt, word); }

void StepRecord::keep(std::size_t rank, std::string_view text) {
  if (memory_ == nullptr) {
    return;
  }
  std::byte* const slot = memory_ + kPage + rank * slot_bytes_;
  const std::uint64_t length = text.size() <= room() ? text.size() : 0;
  std::memcpy(slot, &length, sizeof length);
  std::memcpy(slot + kLengthBytes, text.data(), length);
}

void StepRecord::vote(std::uint64_t word) { store(kVotedAt, word); }

void StepRecord::finish(std::uint64_t word) { store(kDoneAt, word); }

UniqueFd StepRecord::descriptor() const { return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }

}  // namespace gradsync::engine
