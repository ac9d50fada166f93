#include "net/fd/token_line.hpp"

#include <fmt/format.h>

namespace gradsync::net {

std::optional<Result<std::string>> read_token_line(std::string_view received) {
  if (received.size() > kTokenLineBytes) {
    return make_error(
        ErrorCode::BadToken,
        fmt::format("the request line has more than {} bytes", kTokenLineBytes),
        "send the token of buffers.allocate and a newline"
    );
  }
  const std::size_t end = received.find('\n');
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  return std::string(received.substr(0, end));
}

}  // namespace gradsync::net
