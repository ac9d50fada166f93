#include "net/socket/closing.hpp"

#include "net/limits/read_pace.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include <string>
#include <vector>

namespace gradsync::net {

namespace {

constexpr std::chrono::microseconds kRead{5};
constexpr unsigned char kMasked = 0x80;
constexpr std::string_view kNoMask("\0\0\0\0", 4);  // a key that changes no byte: what is written is no secret

}  // namespace

Task<bool> say_close(PeerSocket& socket, WebSocketEnd end, std::uint16_t code, std::string_view reason) {
  const bool masks = end == WebSocketEnd::Client;
  std::string frame{'\x88', static_cast<char>((masks ? kMasked : 0) | (2 + reason.size()))};
  frame += masks ? kNoMask : std::string_view();
  frame += static_cast<char>(code >> 8);
  frame += static_cast<char>(code & 0xff);
  frame += reason;
  auto [error, bytes] = co_await asio::async_write(socket, asio::buffer(frame), use_task);
  if (!error) {
    boost::system::error_code ignored;
    socket.shutdown(Socket::shutdown_send, ignored);
  }
  co_return !error;
}

Task<Duration> read_off(PeerSocket& socket, std::size_t most_bytes, std::function<bool()> wanted) {
  std::vector<char> sink(16 * 1024);
  std::size_t read = 0;
  Duration cost{};
  while (read < most_bytes && wanted()) {
    auto [error, bytes] = co_await socket.async_read_some(asio::buffer(sink), use_task);
    if (error) {
      break;
    }
    read += bytes;
    cost += kRead + bytes * ReadPace::kByte;
  }
  co_return cost;
}

}  // namespace gradsync::net
