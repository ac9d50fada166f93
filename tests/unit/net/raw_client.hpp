#pragma once
// A client of plain system calls that can also misbehave: every byte of a frame is the test's own. Blocking, with a
// deadline on every read.

#include "base/unique_fd.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace gradsync::net {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< lower-case names
  std::string body;
};

struct Frame {
  bool fin = true;
  int opcode = 1;  ///< 1 text, 2 binary, 8 close, 9 ping, 10 pong; −1: the connection ended
  std::string payload;
  [[nodiscard]] int close_code() const;
};

class RawClient {
 public:
  explicit RawClient(UniqueFd fd);  ///< connected
  static RawClient unix_socket(const std::string& path);
  static RawClient tcp(const std::string& endpoint);  ///< "127.0.0.1:1234"

  [[nodiscard]] int fd() const { return fd_.get(); }

  void send(std::string_view bytes);  ///< a peer that closed early is not an error
  [[nodiscard]] std::string read_line();
  [[nodiscard]] bool at_end();  ///< waits for the peer's close; false: it sent something, or the deadline passed
  void shut_down_sending();

  /// One request on this connection; `headers` are lines ending in \r\n.
  [[nodiscard]] HttpAnswer request(
      std::string_view verb, std::string_view target, std::string_view headers = {}, std::string_view body = {}
  );
  [[nodiscard]] HttpAnswer read_answer(bool has_body = true);

  /// Sends an upgrade; status 101 when it is a WebSocket now.
  [[nodiscard]] HttpAnswer upgrade(
      std::string_view protocols, std::string_view target = "/", std::string_view headers = {}
  );
  void send_frame(int opcode, std::string_view payload, bool fin = true, bool masked = true, int reserved = 0);
  [[nodiscard]] Frame read_frame();

 private:
  [[nodiscard]] bool read_more();

  UniqueFd fd_;
  std::string buffer_;
};

}  // namespace gradsync::net
