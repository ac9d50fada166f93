#include "net/fd/fd_session.hpp"

#include "net/fd/peeked_line.hpp"
#include "net/fd/token_line.hpp"
#include "net/limits/session_timer.hpp"
#include "net/socket/peer_socket.hpp"

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gradsync::net {

namespace {

/// For the rest of a line: twice as long from look to look, so that peers that send half a line cost little.
constexpr Milliseconds kLookAgain{10};
constexpr Milliseconds kLookAgainAtMost{500};

/// No sealing, no memfd: the only descriptors that a daemon takes.
bool is_memfd(int fd) { return ::fcntl(fd, F_GET_SEALS) >= 0; }

class FdSession final : public Session, public std::enable_shared_from_this<FdSession> {
 public:
  FdSession(const ContextPtr& context, Incoming incoming)
      : context_(context),
        peer_(incoming.peer),
        socket_(context->io.get_executor()),
        deadline_(context->io.get_executor()),
        look_again_(context->io.get_executor()) {
    socket_.take(std::move(incoming.socket), incoming.family, peer_.uid, context->closer);
  }

  void go_away() override { abort(); }

  void abort() override {
    socket_.end();
    deadline_.cancel();
    look_again_.cancel();
  }

  Task<void> run() {
    after(deadline_, context_->options.handshake_timeout, weak_from_this(), [](FdSession& session) {
      session.abort();
    });
    PeekedLine line(socket_.native_handle());
    std::optional<Result<std::string>> token;
    Milliseconds wait = kLookAgain;
    while (!(token = read_token_line(line.text()))) {
      // What was looked at stays in the socket, which therefore counts as readable: the rest is asked for.
      bool waited = false;
      if (line.text().empty()) {
        auto [error] = co_await socket_.async_wait(Socket::wait_read, use_task);
        waited = !error;
      } else {
        look_again_.expires_after(wait);
        wait = std::min(wait * 2, kLookAgainAtMost);
        auto [error] = co_await look_again_.async_wait(use_task);
        waited = !error;
      }
      if (!waited || !socket_.is_open() || !line.read_on()) {
        co_return;
      }
    }
    const Result<FdHandler::TakenFd> taken = token->has_error() ? token->error() : exchange(**token, line);
    if (taken.has_error()) {
      co_await answer(context_->fds.error_line(taken.error()), -1);
    } else {
      co_await answer(fmt::format("{{\"bytes\":{}}}", taken->size_bytes), taken->fd.get());
    }
  }

 private:
  Result<FdHandler::TakenFd> exchange(const std::string& token, PeekedLine& line) {
    UniqueFd given;
    if (line.carries_descriptor() && context_->fds.takes_descriptor(token, peer_)) {
      given = line.duplicate_descriptor();
      if (given.valid() && !is_memfd(given.get())) {
        context_->closer->close(std::move(given), peer_.uid);
      }
    }
    return context_->fds.on_fd_request(token, peer_, std::move(given));
  }

  /// The descriptor travels with the first byte; a line this short fits the socket buffer in one piece.
  Task<void> answer(std::string line, int fd) {
    line += '\n';
    iovec data{line.data(), line.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    for (;;) {
      const ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) {
        break;
      }
      if (errno != EAGAIN && errno != EINTR) {
        spdlog::debug("fd request: cannot answer pid={}: {}", peer_.pid, std::generic_category().message(errno));
        break;
      }
      auto [error] = co_await socket_.async_wait(Socket::wait_write, use_task);
      if (error) {
        break;
      }
    }
  }

  ContextPtr context_;
  PeerIdentity peer_;
  PeerSocket socket_;
  Timer deadline_;
  Timer look_again_;
};

Task<void> drive(std::shared_ptr<FdSession> session) {
  co_await session->run();
  session->abort();
}

}  // namespace

Serving serve_fd_request(const ContextPtr& context, Incoming incoming) {
  auto session = std::make_shared<FdSession>(context, std::move(incoming));
  return {session, drive(session)};
}

}  // namespace gradsync::net
