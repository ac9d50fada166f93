#pragma once
// Files with a bearer token. Internal to net.

#include "net/socket/listening_socket.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gradsync::net {

/// The token, without the white space at its end. It has at least 16 bytes, and nobody but the daemon's user and root
/// may change the file; its group may read it, as in a mounted secret. `setting` names the file in messages, like
/// "[server] tcp_token_file", and `instead` says what to set where no token is wanted.
[[nodiscard]] Started<std::string> read_token_file(
    const std::string& path, const std::string& setting, const std::string& instead
);

/// The token of a file that may be replaced, or written anew, while the daemon runs: one look at the file (`stat`) for
/// each question, and a read where it is another one, was changed just now, or could not be used. Thread: io only.
class TokenFile {
 public:
  TokenFile(std::string path, std::string setting) : path_(std::move(path)), setting_(std::move(setting)) {}

  [[nodiscard]] const std::string& setting() const { return setting_; }

  /// Reads it for the first time. `instead` as above.
  [[nodiscard]] std::optional<StartFailure> start(const std::string& instead);

  /// The token that the file has now. Empty: the file cannot be used, the log says why, and nobody is let in by it.
  [[nodiscard]] const std::string& token();

  /// Another number after each change of the token that a look has found.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

  /// Reads the file if it may be another one.
  void look();

 private:
  std::string path_;
  std::string setting_;
  std::string token_;

  struct stat seen_ {};  ///< of the file that was read last

  bool settled_ = false;    ///< a change since then shows in `seen_`
  std::string complained_;  ///< what the log said last of a file that cannot be used
  std::uint64_t generation_ = 0;
};

}  // namespace gradsync::net
