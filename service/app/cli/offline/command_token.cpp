#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "base/unique_fd.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::app {

namespace {

constexpr std::size_t kTokenBytes = 32;

/// 256 random bits, 6 of them a character, in letters that no header, file or shell gives a meaning (RFC 4648, section
/// 5, without padding). nullopt: the system has none.
std::optional<std::string> new_token() {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::array<unsigned char, kTokenBytes> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;  // so few come at once or not at all
  }
  std::string token;
  std::uint32_t bits = 0;
  int count = 0;
  for (const unsigned char byte : bytes) {
    bits = bits << 8 | byte;
    for (count += 8; count >= 6; count -= 6) {
      token += kLetters[bits >> (count - 6) & 0x3fU];
    }
  }
  return token + kLetters[bits << (6 - count) & 0x3fU];
}

int cannot_write(const std::string& path) {
  const int error = errno;
  complain(
      fmt::format("cannot write a token to '{}': {}", path, std::generic_category().message(error)),
      error == EEXIST ? "its users would lose access: --force replaces it" : "give --out a file in a folder of yours"
  );
  return kExitFailure;
}

bool write_whole(int fd, std::string_view text) {
  return ::fchmod(fd, S_IRUSR | S_IWUSR) == 0 &&
         ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
}

/// A new file; one that is there stays.
int create(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.valid()) {
    return cannot_write(path);
  }
  if (!write_whole(file.get(), text)) {
    const int code = cannot_write(path);
    ::unlink(path.c_str());
    return code;
  }
  return kExitOk;
}

/// In place of a file: a daemon that reads meanwhile finds one of the two as a whole.
int replace(const std::string& path, std::string_view text) {
  std::string beside = path + ".XXXXXX";
  const UniqueFd file(::mkostemp(beside.data(), O_CLOEXEC));
  if (!file.valid()) {
    return cannot_write(path);
  }
  if (!write_whole(file.get(), text) || std::rename(beside.c_str(), path.c_str()) != 0) {
    const int code = cannot_write(path);
    ::unlink(beside.c_str());
    return code;
  }
  return kExitOk;
}

}  // namespace

int execute(const TokenNewCommand& command) {
  const std::optional<std::string> token = new_token();
  if (!token) {
    complain("the system gives no random numbers", "try again, when it has run for a moment");
    return kExitFailure;
  }
  const std::string line = *token + "\n";
  if (command.out.empty()) {
    std::cout << line;
    return kExitOk;
  }
  const int code = command.force ? replace(command.out, line) : create(command.out, line);
  if (code == kExitOk) {
    std::cerr << fmt::format("wrote a token to '{}', mode 0600\n", command.out);
  }
  return code;
}

}  // namespace gradsync::app
