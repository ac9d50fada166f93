#pragma once
// "HOST" or "HOST:PORT" as people write it. Pure: no name is resolved.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync {

struct HostPort {
  std::string host;  ///< a name, or a numeric address without brackets
  std::optional<std::uint16_t> port;
};

/// A name has 1 to 253 letters, digits, '-', '.' and '_'. A numeric IPv6 address is in brackets where a port follows
/// it. A port has 1 to 5 digits, and is 65535 at most. nullopt: the text is nothing of this.
[[nodiscard]] std::optional<HostPort> parse_host_port(std::string_view text);

/// "node0:9478", "[::1]:9478".
[[nodiscard]] std::string join_host_port(std::string_view host, std::uint16_t port);

}  // namespace gradsync
