#include "app/cli/ask/rpc_client.hpp"

#include "base/unique_fd.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <vector>

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

/// A connection, or why there is none: what `refuse_place` says, or a number of the system.
struct Attempt {
  UniqueFd fd;
  std::optional<Error> refused;
  int error = 0;
};

/// Where others own the folder, or may write to it, the one who listens has to be its owner, root or this user.
std::optional<Error> refuse_server(int fd, const std::string& path, std::uint32_t uid) {
  std::error_code ignored;
  const std::string folder = std::filesystem::absolute(path, ignored).parent_path().string();

  struct stat found {};

  ucred server{};
  socklen_t size = sizeof server;
  if (::stat(folder.c_str(), &found) != 0) {
    return std::nullopt;  // it may be passed through and not looked at
  }
  if (found.st_uid == uid && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return std::nullopt;
  }
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &size) != 0 || server.uid == uid || server.uid == 0 ||
      server.uid == found.st_uid) {
    return std::nullopt;
  }
  return make_error(
      ErrorCode::Unauthorized,
      fmt::format(
          "'{}' is not connected to: uid {} listens there, and the folder '{}' belongs to uid {}",
          path,
          server.uid,
          folder,
          found.st_uid
      ),
      fmt::format("start gradsyncd as uid {}, as root or as yourself", found.st_uid)
  );
}

Attempt connect_to(const std::string& path) {
  Attempt attempt;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    attempt.error = ENAMETOOLONG;
    return attempt;
  }
  path.copy(address.sun_path, path.size());
  attempt.refused = refuse_place(path, ::geteuid());
  if (attempt.refused) {
    return attempt;
  }
  attempt.fd.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval deadline{kDeadlineSeconds, 0};
  ::setsockopt(attempt.fd.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  ::setsockopt(attempt.fd.get(), SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline);
  if (::connect(attempt.fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    attempt.error = errno;
  } else {
    attempt.refused = refuse_server(attempt.fd.get(), path, ::geteuid());
  }
  return attempt;
}

}  // namespace

Result<std::string> find_daemon(const std::string& address, const Environment& environment, const Caller& caller) {
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
  const std::vector<std::string> places = socket_places(environment, caller);
  std::optional<Error> first;
  for (const std::string& place : places) {
    const Attempt attempt = connect_to(place);
    const bool gone = attempt.error == ECONNREFUSED;
    if (!attempt.refused && !gone && attempt.error != ENOENT) {
      return place;  // a daemon that refuses ends the search too
    }
    if (!first && (attempt.refused || gone)) {
      first = attempt.refused ? *attempt.refused : unavailable(place, attempt.error);
    }
  }
  return first ? *first
               : make_error(
                     ErrorCode::Unauthorized,
                     fmt::format("no daemon answers; tried {}", fmt::join(places, ", ")),
                     "start one with `gradsyncd serve`, or name its socket with --address or GRADSYNC_ADDRESS"
                 );
}

Result<HttpReplyText> post_rpc(const std::string& socket_path, const std::string& body) {
  const Attempt attempt = connect_to(socket_path);
  if (attempt.refused || attempt.error != 0) {
    return attempt.refused ? *attempt.refused : unavailable(socket_path, attempt.error);
  }
  const UniqueFd& fd = attempt.fd;
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
