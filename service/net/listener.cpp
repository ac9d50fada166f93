#include "net/listener.hpp"

#include "net/fd/fd_session.hpp"
#include "net/http/http_session.hpp"
#include "net/socket/peer.hpp"

#include <boost/asio/co_spawn.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <sys/socket.h>

#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace gradsync::net {

namespace {

constexpr int kBurst = 4;  // connections, and then those that are open have a turn
constexpr Milliseconds kBurstPause{1};
constexpr Milliseconds kExhaustedPause{100};
constexpr std::size_t kSpareForHealth = 64;

/// Said without waiting for the request: a daemon at its limit keeps no state for those it turns away.
void turn_away(int socket, const std::string& answer) {
  if (::send(socket, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    spdlog::debug("could not tell a refused connection why");
  }
  ::shutdown(socket, SHUT_WR);
}

Error too_many(std::size_t limit) {
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format("the daemon has {} connections open ([limits] connections)", limit),
      "try again later, or raise the limit"
  );
}

std::string http_503(const Error& error) {
  const std::string body = fmt::format("{}: {}; {}\n", kind_of(error.code), error.message, error.hint);
  return fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(),
      body
  );
}

}  // namespace

Listener::Listener(const ContextPtr& context, UniqueFd fd, Entrance entrance)
    : context_(context),
      listening_(context->io.get_executor(), fd.release()),
      pause_(context->io.get_executor()),
      entrance_(entrance) {}

void Listener::start() {
  asio::co_spawn(
      context_->io.get_executor(),
      [self = shared_from_this()] { return self->run(); },
      [](std::exception_ptr failure) {
        if (failure) {
          std::rethrow_exception(failure);  // accepting is ours alone: a throw is a defect, and main reports it
        }
      }
  );
}

void Listener::close() {
  closed_ = true;
  boost::system::error_code ignored;
  listening_.close(ignored);
  pause_.cancel();
}

Task<void> Listener::run() {
  while (!closed_) {
    auto [error] = co_await listening_.async_wait(Descriptor::wait_read, use_task);
    if (error || closed_) {
      break;
    }
    const AcceptResult result = accept_burst();
    if (result != AcceptResult::Empty) {
      pause_.expires_after(result == AcceptResult::Exhausted ? kExhaustedPause : kBurstPause);
      auto [paused] = co_await pause_.async_wait(use_task);
      static_cast<void>(paused);
    }
  }
}

Listener::AcceptResult Listener::accept_burst() {
  const IoWatch::Turn turn{context_->metrics.io_watch, "accepting connections"};
  AcceptResult result = AcceptResult::Accepted;
  for (int burst = 0; burst < kBurst && result == AcceptResult::Accepted; ++burst) {
    result = accept_one();
  }
  return result;
}

Listener::AcceptResult Listener::none_accepted(int error) const {
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    context_->metrics.accept_pauses.Increment();
    spdlog::warn(
        "accepting pauses for {} ms: {} connections={}; raise LimitNOFILE or [limits] connections is too high",
        kExhaustedPause.count(),
        std::generic_category().message(error),
        context_->sessions.size()
    );
    return AcceptResult::Exhausted;
  }
  // Anything else is the failure of one connection (ECONNABORTED and friends) or an empty queue.
  return error == EAGAIN ? AcceptResult::Empty : AcceptResult::Accepted;
}

void Listener::refuse_beyond_limit(int socket) const {
  context_->metrics.refused_limit.Increment();
  spdlog::warn("connection refused: limit [limits] connections={} is reached", context_->options.connections);
  const Error error = too_many(context_->options.connections);
  turn_away(socket, entrance_ == Entrance::Fd ? context_->fds.error_line(error) + "\n" : http_503(error));
}

bool Listener::identify(Incoming& incoming) const {
  const auto peer = local_peer(incoming.socket.get());
  if (!peer) {
    return false;
  }
  incoming.peer = *peer;
  if (!uid_allowed(peer->uid, context_->own_uid, context_->options)) {
    incoming.refused = true;
    context_->metrics.refused_uid.Increment();
    spdlog::warn("connection refused uid={} pid={}: not in [server] allowed_uids", peer->uid, peer->pid);
  } else if (entrance_ == Entrance::Unix) {
    incoming.process = open_peer_process(incoming.socket.get(), peer->pid);
  }
  return true;
}

Listener::AcceptResult Listener::accept_one() {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  UniqueFd socket{
      ::accept4(listening_.native_handle(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket.valid()) {
    return none_accepted(errno);
  }
  context_->metrics.accepted.Increment();
  // Probes get in when the daemon is full: a busy daemon is not a dead one.
  const std::size_t spare = entrance_ == Entrance::Health ? kSpareForHealth : 0;
  if (context_->sessions.size() >= context_->options.connections + spare) {
    refuse_beyond_limit(socket.get());
    return AcceptResult::Accepted;
  }
  Incoming incoming;
  incoming.id = ++context_->last_id;
  incoming.entrance = entrance_;
  incoming.family = from.ss_family;
  incoming.socket = std::move(socket);
  if (from.ss_family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(incoming.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else if (!identify(incoming)) {
    return AcceptResult::Accepted;  // gone already
  }
  try {
    serve(std::move(incoming));
  } catch (const std::exception& problem) {  // no memory, or no room in epoll (fs.epoll.max_user_watches is per uid)
    context_->metrics.accept_pauses.Increment();
    spdlog::warn("a connection is dropped, accepting pauses for {} ms: {}", kExhaustedPause.count(), problem.what());
    return AcceptResult::Exhausted;
  }
  return AcceptResult::Accepted;
}

void Listener::serve(Incoming incoming) {
  const ConnectionId id = incoming.id;
  // An exception ends this connection and no other.
  auto ended = [context = context_, id](std::exception_ptr failure) {
    context->remove_session(id);
    if (failure) {
      try {
        std::rethrow_exception(failure);
      } catch (const std::exception& problem) {
        spdlog::error("connection failed connection={}: {}", id, problem.what());
      }
    }
  };
  Serving serving = incoming.entrance == Entrance::Fd ? serve_fd_request(context_, std::move(incoming))
                                                      : serve_http(context_, std::move(incoming));
  context_->sessions.emplace(id, std::move(serving.session));
  context_->metrics.connections.Set(static_cast<double>(context_->sessions.size()));
  asio::co_spawn(context_->io.get_executor(), std::move(serving.task), std::move(ended));
}

}  // namespace gradsync::net
