#include "engine/policies/policy_folder.hpp"

#include "base/text/hash.hpp"
#include "base/unique_fd.hpp"
#include "engine/job/retried.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace gradsync::engine {

namespace {

constexpr std::string_view kSuffix = ".policies";
constexpr std::string_view kHash = "0123456789abcdef";

struct Found {
  std::string name;
  std::int64_t written_s = 0;
  std::int64_t written_ns = 0;
  std::size_t bytes = 0;

  /// A file that takes the place of another does not count as one more.
  [[nodiscard]] std::size_t files() const { return name.ends_with(".new") ? 0 : 1; }
};

bool is_of(std::uint32_t uid, std::string_view name) {
  const std::string prefix = fmt::format("{}-", uid);
  return name.starts_with(prefix) && name.substr(prefix.size()).find_first_not_of(kHash) == kHash.size() &&
         name.substr(prefix.size() + kHash.size()).starts_with(kSuffix);
}

/// The oldest first.
Result<std::vector<Found>> files_of(std::uint32_t uid, int directory_fd, const std::string& directory) {
  std::vector<Found> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();

    struct stat found {};

    if (is_of(uid, name) && ::fstatat(directory_fd, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(found.st_mode)) {
      files.push_back({name, found.st_mtim.tv_sec, found.st_mtim.tv_nsec, static_cast<std::size_t>(found.st_size)});
    }
  }
  if (error) {
    return make_error(
        ErrorCode::InternalError,
        fmt::format("reading '{}': {}", directory, error.message()),
        "look at engine.policy_directory"
    );
  }
  std::sort(files.begin(), files.end(), [](const Found& a, const Found& b) {
    return std::tie(a.written_s, a.written_ns, a.name) < std::tie(b.written_s, b.written_ns, b.name);
  });
  return files;
}

/// The lock is held until the name is gone, so that no process takes the file meanwhile.
bool removed(int directory_fd, const std::string& name) {
  const UniqueFd fd(retried([&] {
    return ::openat(directory_fd, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  }));
  if (!fd.valid()) {
    return errno == ENOENT;
  }
  return retried([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) == 0 && has_name(directory_fd, name, fd.get()) &&
         ::unlinkat(directory_fd, name.c_str(), 0) == 0;
}

}  // namespace

std::string policy_file_name(std::uint32_t uid, const std::string& job) {
  return fmt::format("{}-{}{}", uid, digest(job), kSuffix);
}

bool has_name(int directory_fd, const std::string& name, int fd) {
  struct stat opened {};

  struct stat named {};

  return ::fstat(fd, &opened) == 0 && ::fstatat(directory_fd, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

namespace {

Error no_room(const std::string& directory, std::uint32_t uid, std::size_t files, std::size_t bytes) {
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "'{}' would have {} policy files of uid {} with {} bytes, and jobs have them open: {} files with {} bytes "
          "may be there",
          directory,
          files,
          uid,
          bytes,
          kMostPolicyFiles,
          kMostPolicyBytes
      ),
      "end jobs that are done, or declare shorter windows and fewer policies that watch"
  );
}

}  // namespace

Result<void> make_room(int directory_fd, const std::string& directory, std::uint32_t uid, int made) {
  // The file that was written last tells the time, by the clock of the others.
  struct stat newest {};

  const Result<std::vector<Found>> files = files_of(uid, directory_fd, directory);
  if (!files) {
    return files.error();
  }
  if (::fstat(made, &newest) != 0) {
    return make_error(
        ErrorCode::InternalError,
        fmt::format("looking at a file in '{}': {}", directory, std::generic_category().message(errno))
    );
  }
  std::size_t count = 0;
  std::size_t bytes = 0;
  for (const Found& file : *files) {
    count += file.files();
    bytes += file.bytes;
  }
  const auto too_many = [&] { return count > kMostPolicyFiles || bytes > kMostPolicyBytes; };
  for (const Found& file : *files) {
    const bool idle = newest.st_mtim.tv_sec - file.written_s > kMostIdleS;
    if ((idle || too_many()) && removed(directory_fd, file.name)) {
      count -= file.files();
      bytes -= file.bytes;
      spdlog::info("policy file removed uid={} file={}/{} size_bytes={}", uid, directory, file.name, file.bytes);
    }
  }
  if (too_many()) {
    return no_room(directory, uid, count, bytes);
  }
  return {};
}

}  // namespace gradsync::engine
