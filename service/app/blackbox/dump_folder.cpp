#include "app/blackbox/dump_folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <vector>

namespace gradsync::app {

namespace {

constexpr mode_t kOwnerOnly = 0700;
constexpr mode_t kFileMode = 0600;
constexpr mode_t kOthersWrite = 0022;
constexpr std::size_t kNameBytes = 60;  ///< of a job or a node
constexpr std::string_view kSuffix = ".jsonl";

std::string plain(const std::string& name) {
  std::string text = name.substr(0, kNameBytes);
  std::ranges::replace_if(
      text,
      [](char c) {
        const bool kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
        return !kept;
      },
      '_'
  );
  return text;
}

/// ".1000.", between the time and the name of the job; empty where the file is not a dump.
std::string_view owner_in(std::string_view name) {
  const std::size_t first = name.find('.');
  const std::size_t second = first == std::string_view::npos ? first : name.find('.', first + 1);
  const bool dump = second != std::string_view::npos && name.ends_with(kSuffix) && name.find("Z-") < first;
  return dump ? name.substr(first, second - first + 1) : std::string_view();
}

}  // namespace

std::string DumpName::file() const {
  constexpr std::int64_t kMicrosOfSecond = 1'000'000;
  constexpr std::int64_t kMicrosOfMilli = 1'000;
  const auto whole = static_cast<std::time_t>(unix_us / kMicrosOfSecond);
  return fmt::format(
      "{:%Y%m%dT%H%M%S}{:03}Z-{:04}.{}.{}.{}{}",
      fmt::gmtime(whole),
      unix_us % kMicrosOfSecond / kMicrosOfMilli,
      number,
      uid,
      plain(job),
      plain(node),
      kSuffix
  );
}

Error DumpFolder::failed(std::string_view what, int error) const {
  std::string message = fmt::format("{} in '{}': {}", what, path_, std::generic_category().message(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG
             ? make_error(
                   ErrorCode::InsufficientMemory,
                   std::move(message),
                   "free space where blackbox.folder lies, or raise the limit that holds there"
               )
             : make_error(ErrorCode::InternalError, std::move(message), "look at blackbox.folder");
}

Result<void> DumpFolder::open() {
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  if (!parent.empty()) {
    ::mkdir(parent.c_str(), kOwnerOnly);  // what is wrong with it shows below
  }
  if (::mkdir(path_.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    return failed("making the folder", errno);
  }
  UniqueFd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));

  struct stat found {};

  if (!folder.valid() || ::fstat(folder.get(), &found) != 0) {
    return failed("opening the folder", errno);
  }
  if (found.st_uid != ::geteuid() || (found.st_mode & kOthersWrite) != 0) {
    return make_error(
        ErrorCode::InternalError,
        fmt::format(
            "'{}' is of uid {} with mode {:04o}: others may write to it", path_, found.st_uid, found.st_mode & 07777
        ),
        "give blackbox.folder one that only the daemon's user may write"
    );
  }
  folder_ = std::move(folder);
  return {};
}

Result<void> DumpFolder::write(const std::string& name, std::string_view text) {
  if (const Result<void> opened = open(); !opened) {
    return opened;
  }
  const Result<void> written = write_new(name, text);
  if (written) {
    remove_old(name);
  }
  folder_ = {};
  return written;
}

Result<void> DumpFolder::write_new(const std::string& name, std::string_view text) const {
  const std::string beside = fmt::format(".{}.new", ::getpid());
  const UniqueFd fd(
      ::openat(folder_.get(), beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kFileMode)
  );
  if (!fd.valid()) {
    return failed("making a dump", errno);
  }
  while (!text.empty()) {
    const ssize_t written = ::write(fd.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const int error = errno;
      ::unlinkat(folder_.get(), beside.c_str(), 0);
      return failed("writing a dump", error);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::renameat(folder_.get(), beside.c_str(), folder_.get(), name.c_str()) != 0) {
    const int error = errno;
    ::unlinkat(folder_.get(), beside.c_str(), 0);
    return failed("naming a dump", error);
  }
  return {};
}

void DumpFolder::remove_old(const std::string& newest) const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at(path_, ignored), end; !ignored && at != end; at.increment(ignored)) {
    std::string name = at->path().filename().string();
    if (name != newest && owner_in(name) == owner_in(newest)) {
      names.push_back(std::move(name));
    }
  }
  std::ranges::sort(names);
  const std::size_t others = kept_files_ - 1;
  for (std::size_t old = 0; old + others < names.size(); ++old) {
    ::unlinkat(folder_.get(), names[old].c_str(), 0);
  }
}

}  // namespace gradsync::app
