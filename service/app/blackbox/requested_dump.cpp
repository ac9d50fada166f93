#include "app/blackbox/requested_dump.hpp"

#include "base/text/text.hpp"
#include "base/unique_fd.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>

namespace gradsync::app {

namespace {

/// Far more than the rings of a recorder take (ADR 0035).
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

Error not_taken(const std::string& path, const std::string& why) {
  return invalid_params(
      path, fmt::format("it is left as it is: {}", why), "ask a daemon that you trust; nothing was removed"
  );
}

Error not_readable(const std::string& path, int error) {
  return invalid_params(
      path,
      fmt::format("the daemon has written a dump that cannot be read: {}", std::generic_category().message(error)),
      "run this where the daemon runs, in its container for instance, as its user or as root"
  );
}

/// nullopt where it is longer than any dump, or reading fails.
std::optional<std::string> read_all(int fd) {
  std::string text;
  std::array<char, 65536> piece{};
  for (;;) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got == 0) {
      return text;
    }
    if (got < 0 || text.size() + static_cast<std::size_t>(got) > kMostBytes) {
      return std::nullopt;
    }
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

/// Why this is not the dump that was asked for; empty where it is.
std::string difference(const rpc::DumpHead& head, const DumpRequest& request) {
  if (head.why != rpc::DumpReason::Request) {
    return "nobody asked for this dump, it is of a failure or a signal";
  }
  if (head.job != request.job) {
    return fmt::format("it is a dump of job '{}' and not of '{}'", head.job, request.job);
  }
  if (head.incarnation != request.incarnation) {
    return "another daemon has written this dump";
  }
  return head.taken_unix_us < request.asked_unix_us ? "this dump was taken before it was asked for" : "";
}

bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

Result<rpc::DumpFile> take_requested_dump(const std::string& path, const DumpRequest& request) {
  const std::filesystem::path whole(path);
  const std::string name = whole.filename().string();
  // What is removed is in the folder as it is now, whatever takes the folder's place meanwhile.
  const UniqueFd folder(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const UniqueFd file(folder.valid() ? ::openat(folder.get(), name.c_str(), flags) : -1);
  if (!file.valid()) {
    return not_readable(path, errno);
  }

  struct stat read {};

  struct stat named {};

  if (::fstat(file.get(), &read) != 0 || !S_ISREG(read.st_mode)) {
    return not_taken(path, "it is no file");
  }
  const std::optional<std::string> text = read_all(file.get());
  if (!text) {
    return not_taken(path, fmt::format("it is longer than {}, or cannot be read", human_bytes(kMostBytes)));
  }
  std::istringstream lines(*text);
  Result<rpc::DumpFile> dump = rpc::read_dump_file(lines);
  if (!dump) {
    return not_taken(path, fmt::format("it is no dump: {}", dump.error().message));
  }
  if (const std::string why = difference(dump->head, request); !why.empty()) {
    return not_taken(path, why);
  }
  // One that cannot be removed is among the daemon's `blackbox.kept_files`.
  if (::fstatat(folder.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && is_same_file(read, named)) {
    ::unlinkat(folder.get(), name.c_str(), 0);
  }
  return dump;
}

}  // namespace gradsync::app
