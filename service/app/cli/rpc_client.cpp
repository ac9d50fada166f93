#include "app/cli/rpc_client.hpp"

#include "base/unique_fd.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <system_error>

#include <cerrno>
#include <charconv>
#include <filesystem>

namespace gradsync::app {

namespace {

constexpr int kDeadlineSeconds = 10;

Error unavailable(const std::string& path, int error) {
  std::string hint = "start one with `gradsyncd serve`, or name its socket with --address or GRADSYNC_ADDRESS";
  if (error == EACCES) {
    hint = "check the mode and group of the socket ([server] socket_mode)";
  } else if (error == ECONNREFUSED) {
    hint = "the daemon that made this socket is gone; start it again";
  }
  return make_error(
      ErrorCode::Unauthorized,
      fmt::format("no daemon answers at '{}': {}", path, std::generic_category().message(error)),
      hint
  );
}

}  // namespace

std::string find_daemon(const std::string& address, const Environment& environment, bool root) {
  std::string found = address;
  if (found.empty()) {
    const auto variable = environment.find("GRADSYNC_ADDRESS");
    found = variable == environment.end() ? "" : variable->second;
  }
  if (found.starts_with("unix:")) {
    found = found.substr(5);
  }
  if (!found.empty()) {
    return found;
  }
  const std::string own = default_socket(environment, root);
  std::error_code ignored;
  return std::filesystem::exists(own, ignored) ? own : default_socket({}, true);
}

Result<HttpReplyText> post_rpc(const std::string& socket_path, const std::string& body) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) {
    return unavailable(socket_path, ENAMETOOLONG);
  }
  socket_path.copy(address.sun_path, socket_path.size());
  const UniqueFd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const timeval deadline{kDeadlineSeconds, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return unavailable(socket_path, errno);
  }
  const std::string request = fmt::format(
      "POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
      "{}\r\n\r\n{}",
      body.size(),
      body
  );
  std::string_view left{request};
  while (!left.empty()) {
    const ssize_t sent = ::send(fd.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      break;  // the answer may say why
    }
    left.remove_prefix(static_cast<std::size_t>(sent));
  }
  std::string answer;
  char chunk[65536];
  for (ssize_t got = 0; (got = ::recv(fd.get(), chunk, sizeof chunk, 0)) > 0;) {
    answer.append(chunk, static_cast<std::size_t>(got));
  }
  const std::size_t head_end = answer.find("\r\n\r\n");
  HttpReplyText reply;
  if (head_end == std::string::npos || answer.size() < 12 ||
      std::from_chars(answer.data() + 9, answer.data() + 12, reply.status).ec != std::errc{}) {
    return unavailable(socket_path, answer.empty() ? ETIMEDOUT : EPROTO);
  }
  reply.body = answer.substr(head_end + 4);
  return reply;
}

}  // namespace gradsync::app
