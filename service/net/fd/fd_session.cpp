#include "net/fd/fd_session.hpp"

#include "net/fd/token_line.hpp"
#include "net/limits/session_timer.hpp"
#include "net/socket/peer.hpp"

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gradsync::net {

namespace {

class FdSession final : public Session, public std::enable_shared_from_this<FdSession> {
 public:
  FdSession(const ContextPtr& context, Incoming incoming)
      : context_(context),
        peer_(incoming.peer),
        refused_(incoming.refused),
        socket_(context->io.get_executor()),
        deadline_(context->io.get_executor()) {
    socket_.assign(asio::generic::stream_protocol(incoming.family, 0), incoming.socket.get());
    static_cast<void>(incoming.socket.release());  // the socket's now
  }

  void go_away() override { abort(); }

  void abort() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
  }

  Task<void> run() {
    after(deadline_, context_->options.handshake_timeout, weak_from_this(), [](FdSession& session) {
      session.abort();
    });
    if (refused_) {
      co_await answer(context_->fds.error_line(uid_refused(peer_.uid, context_->own_uid)), UniqueFd{});
      co_return;
    }
    std::string line;
    UniqueFd given;
    std::optional<Result<std::string>> token;
    while (!(token = read_token_line(line))) {
      auto [error] = co_await socket_.async_wait(Socket::wait_read, use_task);
      if (error || !receive(line, given)) {
        co_return;
      }
    }
    if (token->has_error()) {
      co_await answer(context_->fds.error_line(token->error()), UniqueFd{});
      co_return;
    }
    Result<FdHandler::TakenFd> taken = context_->fds.on_fd_request(**token, peer_, std::move(given));
    if (taken.has_error()) {
      co_await answer(context_->fds.error_line(taken.error()), UniqueFd{});
    } else {
      co_await answer(fmt::format("{{\"bytes\":{}}}", taken->size_bytes), std::move(taken->fd));
    }
    deadline_.cancel();
  }

 private:
  /// Appends what has arrived; of descriptors it keeps the first. False: the peer is gone.
  bool receive(std::string& line, UniqueFd& given) {
    char chunk[kTokenLineBytes];
    iovec data{chunk, sizeof chunk};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one; the kernel closes the others
    const ssize_t bytes = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len >= CMSG_LEN(sizeof(int))) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(header), sizeof value);
      UniqueFd arrived(value);
      if (!given.valid()) {
        given = std::move(arrived);
      }
    }
    line.append(chunk, static_cast<std::size_t>(bytes));
    return bytes > 0;
  }

  /// The descriptor travels with the first byte; a line this short fits the socket buffer in one piece.
  Task<void> answer(std::string line, UniqueFd fd) {
    line += '\n';
    iovec data{line.data(), line.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (fd.valid()) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int value = fd.get();
      std::memcpy(CMSG_DATA(header), &value, sizeof value);
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
  bool refused_;
  Socket socket_;
  Timer deadline_;
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
