#pragma once
// The tokens of HTTP over TCP, and what the holder of each may do. Thread: io only. Internal to net.

#include "net/http/token_file.hpp"
#include "net/types.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::net {

class Tokens {
 public:
  explicit Tokens(const ServerOptions& options);

  /// Reads the files; why one of them cannot be used.
  [[nodiscard]] std::optional<StartFailure> start();

  /// A file is configured, so that somebody may have a token.
  [[nodiscard]] bool any() const { return full_ || reading_; }

  /// What the holder of a header `Authorization` may do, by the files as they are now. The time it takes does not tell
  /// how much of a wrong token is right.
  [[nodiscard]] TokenRole role_of(std::string_view authorization);

  /// The number of the tokens that `role_of` compared with last: another one after each change.
  [[nodiscard]] std::uint64_t generation() const;

  /// That of the tokens that the files have now.
  [[nodiscard]] std::uint64_t generation_now();

  /// Where the tokens are, for messages: "[server] tcp_token_file".
  [[nodiscard]] std::string settings() const;

 private:
  std::optional<TokenFile> full_;
  std::optional<TokenFile> reading_;
};

}  // namespace gradsync::net
