#include "net/listener.hpp"

#include "base/descriptors.hpp"
#include "base/error_page.hpp"
#include "net/fd/fd_session.hpp"
#include "net/http/http_session.hpp"
#include "net/socket/peer.hpp"
#include "net/socket/peer_socket.hpp"

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

/// Said without waiting for the request: nothing is read of those who are turned away, and no state is kept.
void say(int socket, const std::string& answer) {
  if (::send(socket, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    spdlog::debug("could not tell a refused connection why");
  }
}

std::string http_refusal(const char* status, const Error& error) {
  const std::string body =
      fmt::format("{}: {}; {}\n", kind_of(error.code), error.message, with_page(error.hint, error.code));
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
      status,
      body.size(),
      body
  );
}

Error all_places_taken(Pool pool) {
  if (pool == Pool::Peer) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "{} links have not joined, or {} of this address", ConnectionPools::kPeer, ConnectionPools::kPeerOfAddress
        ),
        "try again later"
    );
  }
  const bool health = pool == Pool::Health;
  const std::size_t most = health ? ConnectionPools::kHealth : ConnectionPools::kTcp;
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format("{} connections {} are open, the limit is {}", most, health ? "for probes" : "over TCP", most),
      "close some, or try again later"
  );
}

Pool pool_of(Entrance entrance) {
  switch (entrance) {
    case Entrance::Health:
      return Pool::Health;
    case Entrance::Tcp:
      return Pool::Tcp;
    case Entrance::Peer:
      return Pool::Peer;
    case Entrance::Unix:
    case Entrance::Fd:
      break;
  }
  return Pool::Local;
}

}  // namespace

Listener::Listener(const ContextPtr& context, UniqueFd fd, Entrance entrance)
    : context_(context),
      listening_(context->io.get_executor(), fd.release()),
      pause_(context->io.get_executor()),
      entrance_(entrance) {
  const bool kernel_refuses = entrance == Entrance::Unix && context->options.kernel_refuses_descriptors &&
                              refuse_descriptors(listening_.native_handle());
  if ((entrance == Entrance::Unix && !kernel_refuses) || entrance == Entrance::Fd) {
    closer_ = context->closer;
  }
}

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
  if (listening_.is_open()) {  // what waits in its queue may have brought descriptors
    context_->closer->close(UniqueFd{listening_.release()}, context_->own_uid);
  }
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
  if ((error == EMFILE || error == ENFILE) && entrance_ == Entrance::Health &&
      close_one_of(context_->pools.of_largest_address(Pool::Health), "the daemon has no file descriptors left")) {
    return AcceptResult::Accepted;  // it waits in the queue, and there is room for it now
  }
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    context_->metrics.accept_pauses.Increment();
    context_->log->write(
        LimitedLog::Kind::Exhausted,
        spdlog::level::warn,
        fmt::format(
            "accepting pauses for {} ms: {} connections={}; raise LimitNOFILE or [limits] connections is too high",
            kExhaustedPause.count(),
            std::generic_category().message(error),
            context_->sessions.size()
        )
    );
    return AcceptResult::Exhausted;
  }
  // Anything else is the failure of one connection (ECONNABORTED and friends) or an empty queue.
  return error == EAGAIN ? AcceptResult::Empty : AcceptResult::Accepted;
}

void Listener::refuse(UniqueFd socket, const PeerIdentity& peer, const Error& error, bool forbidden) const {
  (forbidden ? context_->metrics.refused_uid : context_->metrics.refused_limit).Increment();
  context_->log->write(
      forbidden ? LimitedLog::Kind::RefusedUid : LimitedLog::Kind::RefusedLimit,
      spdlog::level::warn,
      fmt::format("connection refused uid={} pid={}: {}", peer.uid, peer.pid, error.message)
  );
  say(socket.get(),
      entrance_ == Entrance::Fd ? context_->fds.error_line(error) + "\n"
                                : http_refusal(forbidden ? "403 Forbidden" : "503 Service Unavailable", error));
  if (peer.local) {
    context_->closer->close_after_goodbye(std::move(socket), peer.uid);
  } else {
    ::shutdown(socket.get(), SHUT_WR);
  }
}

bool Listener::admit_local(Incoming& incoming) const {
  const auto peer = local_peer(incoming.socket.get());
  if (!peer) {
    context_->closer->close(std::move(incoming.socket), context_->own_uid);
    return false;
  }
  incoming.peer = *peer;
  if (!uid_allowed(peer->uid, context_->own_uid, context_->options)) {
    refuse(std::move(incoming.socket), *peer, uid_refused(peer->uid, context_->own_uid), true);
    return false;
  }
  std::optional<Error> full = context_->pools.refuse_local(*peer, context_->closer->pending(peer->uid));
  if (!full && entrance_ == Entrance::Unix) {
    incoming.process = open_peer_process(incoming.socket.get(), peer->pid);
  }
  if (!full && (is_kept_back(incoming.socket.get()) || is_kept_back(incoming.process.get()))) {
    full = no_descriptors_left();
  }
  if (full) {
    refuse(std::move(incoming.socket), *peer, *full, false);
    return false;
  }
  incoming.closer = closer_;
  return true;
}

std::optional<Error> Listener::refuse_tcp(const Incoming& incoming) const {
  const Pool pool = pool_of(entrance_);
  if (pool != Pool::Health && is_kept_back(incoming.socket.get())) {
    return no_descriptors_left();
  }
  const std::list<ConnectionId> candidates = context_->pools.in_the_way(pool, incoming.address);
  if (!candidates.empty() && !close_one_of(candidates, "all places are taken")) {
    return all_places_taken(pool);
  }
  return std::nullopt;
}

bool Listener::close_one_of(const std::list<ConnectionId>& candidates, std::string_view why) const {
  for (const ConnectionId id : candidates) {
    const auto session = context_->sessions.find(id);
    if (session != context_->sessions.end() && session->second->expendable()) {
      context_->pools.remove(id);
      const std::shared_ptr<Session> leaves = session->second;
      leaves->abort();
      context_->metrics.refused_limit.Increment();
      context_->log->write(
          LimitedLog::Kind::RefusedLimit,
          spdlog::level::warn,
          fmt::format("a connection over TCP makes room for the next: {}", why)
      );
      return true;
    }
  }
  return false;
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
  Incoming incoming;
  incoming.id = ++context_->last_id;
  incoming.entrance = entrance_;
  incoming.family = from.ss_family;
  incoming.socket = std::move(socket);
  if (from.ss_family == AF_UNIX) {
    if (!admit_local(incoming)) {
      return AcceptResult::Accepted;
    }
  } else {
    const int on = 1;
    ::setsockopt(incoming.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    incoming.address = address_text(from);
    if (const std::optional<Error> refused = refuse_tcp(incoming)) {
      refuse(std::move(incoming.socket), incoming.peer, *refused, false);
      return AcceptResult::Accepted;
    }
  }
  try {
    serve(std::move(incoming));
  } catch (const std::exception& problem) {  // no memory, or no room in epoll (fs.epoll.max_user_watches is per uid)
    context_->metrics.accept_pauses.Increment();
    context_->log->write(
        LimitedLog::Kind::Exhausted,
        spdlog::level::warn,
        fmt::format("a connection is dropped, accepting pauses for {} ms: {}", kExhaustedPause.count(), problem.what())
    );
    return AcceptResult::Exhausted;
  }
  return AcceptResult::Accepted;
}

void Listener::serve(Incoming incoming) {
  const ConnectionId id = incoming.id;
  const PeerIdentity peer = incoming.peer;
  const std::string address = incoming.address;
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
  context_->pools.add(id, pool_of(entrance_), peer, address);
  context_->metrics.connections.Set(static_cast<double>(context_->sessions.size()));
  asio::co_spawn(context_->io.get_executor(), std::move(serving.task), std::move(ended));
}

}  // namespace gradsync::net
