// Writes a policy file: a slot at a time, or a larger file in its place.

#include "base/assert.hpp"
#include "engine/job/retried.hpp"
#include "engine/policies/policy_file.hpp"
#include "engine/policies/policy_folder.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace gradsync::engine {

namespace {

constexpr std::size_t kMostSlotBytes = slot_bytes_for(PolicyFile::kMostStateBytes);
static_assert(2 * slot_offset(2, kMostSlotBytes) <= kMostPolicyBytes, "no job alone has states without room");

/// 0, or the error that kept some of the bytes from being written.
int write_all(int fd, std::string_view bytes, std::size_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        retried([&] { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (written <= 0) {
      return written < 0 ? errno : EIO;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
  return 0;
}

/// Room for all that is stored later, so that no step finds the disk full. Returns 0, or the error.
int allocate(int fd, std::size_t size) {
  int error = ::posix_fallocate(fd, 0, static_cast<off_t>(size));
  while (error == EINTR) {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(size));
  }
  return error;
}

}  // namespace

Result<void> PolicyFile::stage(std::uint64_t word, std::string_view state, Vote vote) {
  GRADSYNC_ASSERT(word != 0, "0 stands for a slot that is empty");
  if (state.size() > kMostStateBytes) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format("the policies of job '{}' remember {} bytes, {} are kept", job_, state.size(), kMostStateBytes),
        "declare shorter windows, or fewer policies that watch"
    );
  }
  const std::size_t slot = 1 - current_;
  next_.word = word;
  next_.pending = vote == Vote::Pending;
  next_.sequence = ++sequence_;
  next_.fill(state);
  if (next_.image.size() > slot_bytes_) {
    // Twice the room, because states grow by a norm a step until their windows are full.
    const std::size_t slot_bytes = std::min(std::max(slot_bytes_for(state.size()), 2 * slot_bytes_), kMostSlotBytes);
    if (Result<void> written = write_new_file(slot_bytes, slot); !written) {
      return written;
    }
    slots_[slot].word = 0;
  } else {
    slots_[slot].word = 0;
    if (const int error = write_all(fd_.get(), next_.image, slot_offset(slot, slot_bytes_)); error != 0) {
      return failed("writing", error);
    }
  }
  return {};
}

void PolicyFile::keep() {
  GRADSYNC_ASSERT(next_.word != 0, "what is kept was staged");
  current_ = 1 - current_;
  std::swap(slots_[current_], next_);
  next_.word = 0;
}

Result<void> PolicyFile::settle() { return settle(current_); }

/// The slot is what the job goes on with.
Result<void> PolicyFile::settle(std::size_t slot) {
  StateSlot& settled = slots_[slot];
  if (settled.word == 0 || !settled.pending) {
    return {};
  }
  settled.settle();
  const std::size_t at = settled.image.size() - kDoneMarkBytes;
  const int error =
      write_all(fd_.get(), std::string_view(settled.image).substr(at), slot_offset(slot, slot_bytes_) + at);
  settled.pending = error != 0;
  return error == 0 ? Result<void>{} : failed("writing", error);
}

Result<void> PolicyFile::write_new_file(std::size_t slot_bytes, std::size_t slot) {
  const std::string name = new_name();
  const int directory = directory_fd_.get();
  UniqueFd fd(retried([&] {
    return ::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  }));
  if (!fd.valid()) {
    return failed("making a larger one", errno);
  }
  Result<void> made = fill_new_file(fd.get(), slot_bytes, slot);
  if (made && ::renameat(directory, name.c_str(), directory, name_.c_str()) != 0) {
    made = failed("making a larger one", errno);
  }
  if (!made) {
    ::unlinkat(directory, name.c_str(), 0);
    return made;
  }
  fd_ = std::move(fd);
  slot_bytes_ = slot_bytes;
  return {};
}

/// Writes the slot that is kept, and `next_` into the other one. Locks before all else, so that no process finds the
/// file free.
Result<void> PolicyFile::fill_new_file(int fd, std::size_t slot_bytes, std::size_t slot) const {
  const std::size_t size = slot_offset(slots_.size(), slot_bytes);
  if (retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0 ||
      retried([&] { return ::ftruncate(fd, static_cast<off_t>(size)); }) != 0) {
    return failed("making a larger one", errno);
  }
  if (Result<void> room = make_room(directory_fd_.get(), directory_, uid_, fd); !room) {
    return room;
  }
  int error = allocate(fd, size);
  if (error == 0) {
    error = write_all(fd, policy_file_header(uid_, job_, slot_bytes), 0);
  }
  if (error == 0 && slots_[1 - slot].word != 0) {
    error = write_all(fd, slots_[1 - slot].image, slot_offset(1 - slot, slot_bytes));
  }
  if (error == 0) {
    error = write_all(fd, next_.image, slot_offset(slot, slot_bytes));
  }
  return error == 0 ? Result<void>{} : failed("making a larger one", error);
}

Result<void> PolicyFile::wipe() {
  if (retried([&] { return ::ftruncate(fd_.get(), 0); }) != 0) {
    return failed("wiping", errno);
  }
  slot_bytes_ = 0;
  slots_ = {};
  next_.word = 0;
  return {};
}

}  // namespace gradsync::engine
