#pragma once
// What a WebSocket server has to make of the bytes of a client (RFC 6455, without extensions), in the plainest way: the
// whole stream at once, one frame after the other. And what a server may write, read as strictly.

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::fuzz {

[[nodiscard]] bool is_utf8(std::string_view text);

/// It is, or it breaks off within a character.
[[nodiscard]] bool may_become_utf8(const std::string& text);

/// One frame with the bit of its end, masked with the key of its length unless that is 0.
[[nodiscard]] std::string client_frame(unsigned opcode, bool fin, std::string_view payload);

/// What was read of a stream up to the first thing that ends the connection.
struct Heard {
  std::vector<std::string> texts;
  std::vector<std::string> pings;
  /// Codes of the close frame that are right then; 0: no close frame, or one without a code.
  std::set<unsigned> codes;
  bool ends = false;  ///< the server has to end the connection, whatever comes after
  bool alive = true;  ///< and it has not ended, nor broken off in a frame that may end it
};

/// Frames of a client. `message_bytes`: longer messages are refused.
[[nodiscard]] Heard heard_from_client(std::string_view stream, std::size_t message_bytes);

/// Frames of a server; ends the process where one is malformed.
struct Said {
  std::vector<std::string> texts;
  std::vector<std::string> pongs;
  bool closed = false;
  unsigned code = 0;
  std::string reason;
};

[[nodiscard]] Said said_by_server(std::string_view stream);

}  // namespace gradsync::fuzz
