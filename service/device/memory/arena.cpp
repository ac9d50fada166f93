#include "device/memory/arena.hpp"

#include "base/descriptors.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace gradsync::device {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

#ifdef MFD_NOEXEC_SEAL
constexpr unsigned kNeverExecuted = MFD_NOEXEC_SEAL;
#else
constexpr unsigned kNeverExecuted = 0x0008U;  // since Linux 6.3
#endif

Result<void> check_size(std::uint64_t size_bytes) {
  if (size_bytes == 0 || size_bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return invalid_params(
        "bytes", fmt::format("an arena of {} bytes cannot be made", size_bytes), "ask for at least 1"
    );
  }
  return {};
}

}  // namespace

UniqueFd open_memfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name, kFlags | kNeverExecuted));
  if (!fd.valid() && errno == EINVAL) {
    fd.reset(::memfd_create(name, kFlags));
  }
  return fd;
}

std::uint64_t populated_bytes(int fd) {
  struct stat status {};

  if (::fstat(fd, &status) != 0) {
    return 0;
  }
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  return std::min(size_bytes, static_cast<std::uint64_t>(status.st_blocks) * 512);
}

Result<void> check_headroom(std::uint64_t size_bytes, const MemoryHeadroom& with_it) {
  if (Result<void> possible = check_size(size_bytes); !possible) {
    return possible;
  }
  if (with_it.short_bytes == 0) {
    return {};
  }
  return make_error(
      ErrorCode::InsufficientMemory,
      fmt::format(
          "an arena needs {} bytes, {} are free (limit {}, without what other arenas may need)",
          size_bytes,
          size_bytes - std::min(size_bytes, with_it.short_bytes),
          with_it.limit_bytes
      ),
      "free memory, or raise the memory limit of the container or cgroup"
  );
}

Result<UniqueFd> create_arena(std::uint64_t size_bytes) {
  if (const Result<void> possible = check_size(size_bytes); !possible) {
    return possible.error();
  }
  const auto failed = [](const char* call) {
    const int error = errno;
    const bool memory = error == ENOMEM || error == ENOSPC;
    return make_error(
        memory ? ErrorCode::InsufficientMemory : ErrorCode::InternalError,
        fmt::format("{} for an arena: {}", call, std::generic_category().message(error))
    );
  };
  UniqueFd fd = open_memfd("gradsync-arena");
  if (!fd.valid()) {
    return failed("memfd_create");
  }
  if (is_kept_back(fd.get())) {
    return no_descriptors_left("for an arena");
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return failed("ftruncate");
  }
  // Without SEAL a client could add F_SEAL_FUTURE_WRITE and break the daemon's own mapping.
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return failed("sealing");
  }
  return fd;
}

Result<void> check_arena(int fd, std::uint64_t size_bytes) {
  const auto refused = [](std::string found) {
    return invalid_params("fd", std::move(found), "hand back the descriptor that buffers.allocate led to");
  };

  struct stat status {};

  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || ::fstat(fd, &status) != 0) {
    return refused("the descriptor is no memfd");
  }
  // A kernel may add seals of its own (against execution); those against writing would break the daemon's mapping.
  if ((seals & kSeals) != kSeals || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return refused(fmt::format("the memfd has the seals {:#x}, not {:#x}", seals, kSeals));
  }
  if (static_cast<std::uint64_t>(status.st_size) != size_bytes) {
    return refused(fmt::format("the memfd has {} bytes, {} were said", status.st_size, size_bytes));
  }
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return refused("the descriptor of the memfd is not open for reading and writing");
  }
  if (status.st_uid != ::geteuid()) {
    return refused(fmt::format("the memfd belongs to uid {}, this daemon is uid {}", status.st_uid, ::geteuid()));
  }
  return {};
}

std::pair<std::uint64_t, std::uint64_t> memory_of(int fd) {
  struct stat status {};

  if (::fstat(fd, &status) != 0) {
    return {};
  }
  return {status.st_dev, status.st_ino};
}

void punch_out(int fd, std::uint64_t size_bytes) {
  // Fails only for descriptors that are no arena; there is nothing to free then.
  (void)::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_bytes));
}

}  // namespace gradsync::device
