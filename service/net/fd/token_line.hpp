#pragma once
// The message that comes in over the fd socket: one line with a token. Pure. Internal to net.

#include "base/error.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::net {

inline constexpr std::size_t kTokenLineBytes = 64;

/// The token, once the line is complete; a refusal, once it is too long; nullopt: more is needed.
[[nodiscard]] std::optional<Result<std::string>> read_token_line(std::string_view received);

}  // namespace gradsync::net
