#pragma once
// The decisions of the HTTP side that need no socket: pure functions over header texts.

#include <string>
#include <string_view>

namespace gradsync::net {

struct Target {
  std::string_view path;
  std::string_view query;  ///< without the question mark
};

[[nodiscard]] Target split_target(std::string_view target);

/// `application/json` or `application/json-rpc`, parameters allowed.
[[nodiscard]] bool is_json_content_type(std::string_view content_type);

/// Whether a comma-separated `Sec-WebSocket-Protocol` offers `protocol`.
[[nodiscard]] bool offers_subprotocol(std::string_view offered, std::string_view protocol);

/// A browser's Origin must be the page this very Host served; scheme and case do not matter.
[[nodiscard]] bool origin_matches_host(std::string_view origin, std::string_view host);

/// Whether a page that is served on loopback only may answer to this Host: no name that a stranger's DNS can lead here.
[[nodiscard]] bool is_loopback_host(std::string_view host);

/// Time does not depend on where the texts differ.
[[nodiscard]] bool constant_time_equal(std::string_view a, std::string_view b);

/// `Authorization: Bearer <token>` with the right token.
[[nodiscard]] bool bearer_matches(std::string_view authorization, std::string_view token);

}  // namespace gradsync::net
