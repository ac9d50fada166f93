#include "net/http/token_file.hpp"

#include "base/unique_fd.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>
#include <utility>

namespace gradsync::net {

namespace {

/// Others may neither read nor change a token. The file that is looked at is the one that is read.
std::optional<StartFailure> refuse_token_file(int fd, const std::string& path, const std::string& setting) {
  struct stat found {};

  if (::fstat(fd, &found) != 0) {
    return std::nullopt;  // reading it fails, too
  }
  if (found.st_uid != ::geteuid() && found.st_uid != 0) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        fmt::format(
            "the token file '{}' belongs to uid {}, this daemon is uid {}: another user may change it",
            path,
            found.st_uid,
            ::geteuid()
        ),
        fmt::format("give it to the daemon's user or to root ({}), and a new token", setting)};
  }
  if ((found.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        fmt::format("the token file '{}' has mode {:04o}: others may use it", path, found.st_mode & 07777U),
        fmt::format("give it mode 0600 or 0640 ({}), and a new token if others could read the old one", setting)};
  }
  return std::nullopt;
}

/// The beginning of the file, which is all of a token.
std::optional<std::string> read_beginning(int fd) {
  std::string text(4096, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t bytes = ::read(fd, text.data() + size, text.size() - size);
    if (bytes < 0 && errno == EINTR) {
      continue;
    }
    if (bytes < 0) {
      return std::nullopt;
    }
    if (bytes == 0) {
      break;
    }
    size += static_cast<std::size_t>(bytes);
  }
  text.resize(size);
  return text;
}

/// nullptr: it can be used.
const char* fault_of(const std::string& token) {
  constexpr std::size_t kShortest = 16;
  if (token.size() < kShortest) {
    return "the token is shorter than 16 bytes";
  }
  const bool one_line =
      std::none_of(token.begin(), token.end(), [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; });
  return one_line ? nullptr : "the token is not one line of text, as a header of HTTP needs it";
}

bool equal(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/// Whether both are of one file that nobody has written to, or given another mode, in between.
bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size && equal(a.st_mtim, b.st_mtim) &&
         equal(a.st_ctim, b.st_ctim);
}

/// File systems count time in ticks, of up to two seconds: a file that is younger may change again within its tick.
bool is_settled(const struct stat& found) {
  constexpr std::time_t kTick = 2;
  return std::max(found.st_mtim.tv_sec, found.st_ctim.tv_sec) + kTick < std::time(nullptr);
}

}  // namespace

Started<std::string> read_token_file(const std::string& path, const std::string& setting, const std::string& instead) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.valid()) {
    if (auto refused = refuse_token_file(file.get(), path, setting)) {
      return *refused;
    }
  }
  const std::optional<std::string> read = file.valid() ? read_beginning(file.get()) : std::nullopt;
  std::string token = read.value_or("");
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) {
    token.pop_back();
  }
  if (const char* fault = !read ? "cannot read it" : fault_of(token)) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        fmt::format("cannot use the token file '{}': {}", path, fault),
        fmt::format(
            "set {} to a file with a long random token (`gradsyncd token new --out FILE` makes one), or {}",
            setting,
            instead
        )};
  }
  return token;
}

std::optional<StartFailure> TokenFile::start(const std::string& instead) {
  look();
  auto read = read_token_file(path_, setting_, instead);
  if (auto* failure = std::get_if<StartFailure>(&read)) {
    return *failure;
  }
  return std::nullopt;
}

const std::string& TokenFile::token() {
  look();
  return token_;
}

void TokenFile::look() {
  struct stat found {};

  const bool there = ::stat(path_.c_str(), &found) == 0;  // one that is gone differs from every other
  if (settled_ && is_same(found, seen_)) {
    return;
  }
  seen_ = found;
  auto read = read_token_file(path_, setting_, "have the daemon serve without it");
  auto* const failure = std::get_if<StartFailure>(&read);
  std::string token = failure != nullptr ? std::string() : std::get<std::string>(std::move(read));
  settled_ = there && failure == nullptr && is_settled(found);  // a failure may pass, like that of too many open files
  if (failure != nullptr && generation_ > 0 && complained_ != failure->message) {
    spdlog::warn("nobody is let in by {}: {}; {}", setting_, failure->message, failure->hint);
  }
  complained_ = failure != nullptr ? failure->message : "";
  if (token == token_ && generation_ > 0) {
    return;
  }
  if (generation_ > 0 && !token.empty()) {
    spdlog::info("the token of {} is another one now file='{}'", setting_, path_);
  }
  token_ = std::move(token);
  ++generation_;
}

}  // namespace gradsync::net
