#include "engine/policies/policy_file.hpp"

#include "engine/job/retried.hpp"
#include "engine/policies/policy_folder.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace gradsync::engine {

namespace {

constexpr int kOpenFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr mode_t kOthersWrite = 0022;
constexpr int kOpenAttempts = 8;
constexpr std::chrono::milliseconds kLockPatience{10};  // of the io thread
constexpr int kMostDamaged = 1000;
constexpr std::size_t kMostFileBytes = kPolicyFilePage + 2 * slot_bytes_for(PolicyFile::kMostStateBytes);

/// Retries, because a process that makes room locks a file for a moment before it removes it. Returns 0, or the error.
int lock(int fd) {
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  do {
    if (retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) {
      return 0;
    }
    if (errno != EWOULDBLOCK) {
      return errno;
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return EWOULDBLOCK;
}

}  // namespace

PolicyFile::PolicyFile(const std::string& directory, std::uint32_t uid, const std::string& job)
    : uid_(uid), job_(job), directory_(directory), name_(policy_file_name(uid, job)) {}

Error PolicyFile::failed(const char* call, int error) const {
  std::string message = fmt::format(
      "{} of '{}/{}', the policies of job '{}': {}",
      call,
      directory_,
      name_,
      job_,
      std::generic_category().message(error)
  );
  if (error == ENOMEM || error == ENOSPC || error == EDQUOT) {
    return make_error(
        ErrorCode::InsufficientMemory, std::move(message), "free space where engine.policy_directory lies"
    );
  }
  if (error == EMFILE || error == ENFILE) {
    return make_error(ErrorCode::LimitExceeded, std::move(message), "raise LimitNOFILE of the daemon");
  }
  if (error == EFBIG) {
    return make_error(ErrorCode::LimitExceeded, std::move(message), "raise LimitFSIZE of the daemon");
  }
  return make_error(ErrorCode::InternalError, std::move(message), "look at engine.policy_directory and what is in it");
}

std::string PolicyFile::new_name() const { return name_ + ".new"; }

Result<PolicyFile> PolicyFile::open(const std::string& directory, std::uint32_t uid, const std::string& job) {
  PolicyFile file(directory, uid, job);
  if (policy_file_header(uid, job, 0).empty()) {
    return invalid_params(
        "job", fmt::format("the name of the job has {} bytes", job.size()), "give it one of 512 bytes at most"
    );
  }
  if (const Result<void> opened = file.open_directory(); !opened) {
    return opened.error();
  }
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    const Result<bool> locked = file.open_locked();
    if (!locked) {
      return locked.error();
    }
    if (!*locked) {
      continue;
    }
    const Result<std::string> bytes = file.read_all();
    if (!bytes) {
      return bytes.error();
    }
    Result<PolicyFileContents> contents = read_policy_file(*bytes, uid, job);
    if (contents) {
      file.slot_bytes_ = contents->slot_bytes;
      file.slots_ = std::move(contents->slots);
      file.current_ = file.slots_[0].sequence < file.slots_[1].sequence ? 1 : 0;
      file.sequence_ = file.slots_[file.current_].sequence;
      if (file.slots_[file.current_].pending) {
        file.current_ = 1 - file.current_;
      }
      return file;
    }
    if (contents.error().code == ErrorCode::VersionMismatch) {
      return make_error(
          ErrorCode::VersionMismatch,
          fmt::format(
              "'{}/{}' is of a newer gradsyncd and stays as it is: {}", directory, file.name_, contents.error().message
          ),
          "go back to that release, or move the file away"
      );
    }
    if (const Result<void> aside = file.set_aside(contents.error().message); !aside) {
      return aside.error();
    }
  }
  return file.failed("opening", EBUSY);
}

Result<void> PolicyFile::open_directory() {
  constexpr mode_t kOwnerOnly = 0700;
  if (::mkdir(directory_.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    return failed("making the directory", errno);
  }
  directory_fd_.reset(retried([&] { return ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));

  struct stat found {};

  if (!directory_fd_.valid() || ::fstat(directory_fd_.get(), &found) != 0) {
    return failed("opening the directory", errno);
  }
  if (found.st_uid != ::geteuid() || (found.st_mode & kOthersWrite) != 0) {
    return make_error(
        ErrorCode::InternalError,
        fmt::format(
            "'{}' is of uid {} with mode {:04o}: others may write what the daemon would trust",
            directory_,
            found.st_uid,
            found.st_mode & 07777
        ),
        "give engine.policy_directory one that only the daemon's user may write"
    );
  }
  return {};
}

Result<void> PolicyFile::lock_file() const {
  const int error = lock(fd_.get());
  if (error == EWOULDBLOCK) {
    return make_error(
        ErrorCode::InternalError,
        fmt::format("another daemon has '{}/{}', the policies of job '{}'", directory_, name_, job_),
        "give each daemon its own engine.policy_directory"
    );
  }
  return error == 0 ? Result<void>{} : failed("locking", error);
}

Result<void> PolicyFile::check_trusted(const struct ::stat& opened) const {
  if (S_ISREG(opened.st_mode) && opened.st_uid == ::geteuid() && (opened.st_mode & kOthersWrite) == 0) {
    return {};
  }
  return make_error(
      ErrorCode::InternalError,
      fmt::format(
          "'{}/{}' is of uid {} with type and mode {:06o}: a file is expected that only the daemon's user may write",
          directory_,
          name_,
          opened.st_uid,
          opened.st_mode
      ),
      "see who made it, and remove it"
  );
}

/// False when another file has taken the name before this one was locked.
Result<bool> PolicyFile::open_locked() {
  fd_.reset(retried([&] { return ::openat(directory_fd_.get(), name_.c_str(), kOpenFlags, 0600); }));
  const bool missing = !fd_.valid() && errno == ENOENT;
  if (missing) {
    fd_.reset(retried([&] { return ::openat(directory_fd_.get(), name_.c_str(), kOpenFlags | O_CREAT | O_EXCL, 0600); })
    );
  }
  if (!fd_.valid()) {
    if (missing && errno == EEXIST) {
      return false;
    }
    return failed("opening", errno);
  }
  if (const Result<void> locked = lock_file(); !locked) {
    return locked.error();
  }

  struct stat opened {};

  if (::fstat(fd_.get(), &opened) != 0) {
    return failed("looking", errno);
  }
  if (!has_name(directory_fd_.get(), name_, fd_.get())) {
    return false;
  }
  if (const Result<void> trusted = check_trusted(opened); !trusted) {
    return trusted.error();
  }
  if (::unlinkat(directory_fd_.get(), new_name().c_str(), 0) != 0 && errno != ENOENT) {
    return failed("removing what a killed daemon left", errno);
  }
  if (missing) {
    if (const Result<void> room = make_room(directory_fd_.get(), directory_, uid_, fd_.get()); !room) {
      ::unlinkat(directory_fd_.get(), name_.c_str(), 0);
      return room.error();
    }
  }
  return true;
}

Result<std::string> PolicyFile::read_all() const {
  struct stat found {};

  if (::fstat(fd_.get(), &found) != 0) {
    return failed("looking", errno);
  }
  const auto size = static_cast<std::size_t>(found.st_size);
  // A file that cannot be ours is not taken into memory; its first page is too few bytes, whatever it says.
  std::string bytes(size > kMostFileBytes ? kPolicyFilePage : size, '\0');
  std::size_t read = 0;
  while (read < bytes.size()) {
    const ssize_t more =
        retried([&] { return ::pread(fd_.get(), bytes.data() + read, bytes.size() - read, static_cast<off_t>(read)); });
    if (more < 0) {
      return failed("reading", errno);
    }
    if (more == 0) {
      bytes.resize(read);
    }
    read += static_cast<std::size_t>(more);
  }
  return bytes;
}

Result<void> PolicyFile::set_aside(const std::string& why) const {
  const int directory = directory_fd_.get();
  for (int number = 1; number <= kMostDamaged; ++number) {
    const std::string aside = fmt::format("{}.damaged-{}", name_, number);
    if (::renameat2(directory, name_.c_str(), directory, aside.c_str(), RENAME_NOREPLACE) == 0) {
      spdlog::warn(
          "policies begin anew, their file is set aside job={} uid={} file={}/{}: {}",
          job_,
          uid_,
          directory_,
          aside,
          why
      );
      return {};
    }
    if (errno != EEXIST) {
      return failed("setting aside", errno);
    }
  }
  return failed("setting aside", EEXIST);
}

std::string PolicyFile::found_in(std::size_t slot) {
  current_ = slot;
  return std::string(slots_[slot].state());
}

std::optional<std::string> PolicyFile::find(std::uint64_t word) {
  for (const std::size_t slot : {current_, 1 - current_}) {
    if (word != 0 && slots_[slot].word == word) {
      static_cast<void>(settle(slot));  // an error of the disk is told by the next `stage`
      return found_in(slot);
    }
  }
  return std::nullopt;
}

std::optional<PolicyFile::Stored> PolicyFile::newest() {
  const auto age = [this](std::size_t slot) {
    return slots_[slot].word == 0 || slots_[slot].pending ? 0 : slots_[slot].sequence;
  };
  const std::size_t slot = age(0) < age(1) ? 1 : 0;
  if (age(slot) == 0) {
    return std::nullopt;
  }
  return Stored{slots_[slot].word, found_in(slot)};
}

}  // namespace gradsync::engine
