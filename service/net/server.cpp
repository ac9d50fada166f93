#include "net/server.hpp"

#include "base/assert.hpp"
#include "net/http/token_file.hpp"
#include "net/listener.hpp"
#include "net/peer/link_context.hpp"
#include "net/peer_links.hpp"
#include "net/server_context.hpp"
#include "net/socket/listening_socket.hpp"
#include "net/socket/process_watch.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

namespace gradsync::net {

namespace {

constexpr std::chrono::seconds kPoliteClose{1};

}  // namespace

struct Server::State {
  ContextPtr context;
  SocketFile rpc_file;
  SocketFile fd_file;
  std::shared_ptr<Listener> rpc;
  std::shared_ptr<Listener> fds;
  std::shared_ptr<Listener> tcp;
  std::shared_ptr<Listener> peers;
  std::shared_ptr<Listener> health;
  std::string tcp_endpoint;
  std::string peer_endpoint;
  std::string health_endpoint;

  std::optional<StartFailure> start_unix();
  std::optional<StartFailure> start_tcp();
  std::optional<StartFailure> start_peers();
  std::optional<StartFailure> start_health();
  std::shared_ptr<Listener> listen(UniqueFd fd, Entrance entrance) const;
};

std::shared_ptr<Listener> Server::State::listen(UniqueFd fd, Entrance entrance) const {
  auto listener = std::make_shared<Listener>(context, std::move(fd), entrance);
  listener->start();
  return listener;
}

std::optional<StartFailure> Server::State::start_unix() {
  const ServerOptions& options = context->options;
  auto main_socket = listen_unix(options.socket_path, options.socket_mode);
  if (auto* failure = std::get_if<StartFailure>(&main_socket)) {
    return *failure;
  }
  auto& rpc_listener = std::get<UnixListener>(main_socket);
  auto fd_socket = listen_unix(fd_socket_path(options.socket_path), options.socket_mode);
  if (auto* failure = std::get_if<StartFailure>(&fd_socket)) {
    rpc_listener.file.remove_if_ours();
    return *failure;
  }
  auto& fd_listener = std::get<UnixListener>(fd_socket);
  rpc_file = rpc_listener.file;
  fd_file = fd_listener.file;
  rpc = listen(std::move(rpc_listener.fd), Entrance::Unix);
  fds = listen(std::move(fd_listener.fd), Entrance::Fd);
  return std::nullopt;
}

std::optional<StartFailure> Server::State::start_tcp() {
  if (auto failure = context->tokens.start()) {
    return failure;
  }
  if (context->options.tcp_address.empty()) {
    return std::nullopt;
  }
  GRADSYNC_ASSERT(context->tokens.any(), "a listener for RPC over TCP has a token, by the check of the settings");
  auto bound = listen_tcp(context->options.tcp_address);
  if (auto* failure = std::get_if<StartFailure>(&bound)) {
    failure->message += " ([server] tcp)";
    return *failure;
  }
  tcp_endpoint = std::get<TcpListener>(bound).endpoint;
  tcp = listen(std::move(std::get<TcpListener>(bound).fd), Entrance::Tcp);
  return std::nullopt;
}

std::optional<StartFailure> Server::State::start_peers() {
  if (context->options.peer_address.empty()) {
    return std::nullopt;
  }
  GRADSYNC_ASSERT(context->peers != nullptr, "links of other daemons are taken by somebody");
  auto token = read_token_file(context->options.peer_token_file, "[peer] token_file", "[peer] listen to \"off\"");
  if (auto* failure = std::get_if<StartFailure>(&token)) {
    return *failure;
  }
  context->peers->token = std::get<std::string>(token);
  auto bound = listen_tcp(context->options.peer_address, kPeerPort);
  if (auto* failure = std::get_if<StartFailure>(&bound)) {
    failure->message += " ([peer] listen)";
    return *failure;
  }
  peer_endpoint = std::get<TcpListener>(bound).endpoint;
  peers = listen(std::move(std::get<TcpListener>(bound).fd), Entrance::Peer);
  return std::nullopt;
}

std::optional<StartFailure> Server::State::start_health() {
  if (context->options.health_address.empty()) {
    return std::nullopt;
  }
  auto bound = listen_tcp(context->options.health_address);
  if (auto* failure = std::get_if<StartFailure>(&bound)) {
    if (failure->kind == StartFailure::Kind::Configuration) {
      failure->message += " ([server] health)";
      return *failure;
    }
    spdlog::warn("no health listener: {}; serving on without ([server] health)", failure->message);
    return std::nullopt;
  }
  health_endpoint = std::get<TcpListener>(bound).endpoint;
  health = listen(std::move(std::get<TcpListener>(bound).fd), Entrance::Health);
  return std::nullopt;
}

Server::Server(
    boost::asio::io_context& io,
    ServerOptions options,
    MessageHandler& messages,
    PageHandler& pages,
    FdHandler& fds,
    NetMetrics& metrics,
    PeerLinks* links
)
    : state_(std::make_shared<State>()) {
  Tokens tokens{options};
  const std::size_t most_partial_bytes = options.partial_bytes;
  const std::size_t most_unread_bytes = options.unread_bytes;
  const std::size_t most_connections = options.connections;
  state_->context = std::shared_ptr<ServerContext>(new ServerContext{
      .io = io,
      .options = std::move(options),
      .messages = messages,
      .pages = pages,
      .fds = fds,
      .metrics = metrics,
      .peers = links == nullptr ? nullptr : links->context(),
      .tokens = std::move(tokens),
      .own_uid = ::geteuid(),
      .last_id = 0,
      .sessions = {},
      .websockets = {},
      .watches = {},
      .half_sent = HeldBytes{most_partial_bytes, ::geteuid()},
      .unread_answers = HeldBytes{most_unread_bytes, ::geteuid()},
      .fair_share = {},
      .turns = std::make_shared<ProcessTurns>([&io](std::function<void()> later) { asio::post(io, std::move(later)); }),
      .pools = ConnectionPools{most_connections, ::geteuid()},
      .log = std::make_shared<LimitedLog>(io.get_executor()),
      .closing_all = false,
      .force_close = Timer{io.get_executor()},
      .closer = std::make_shared<Closer>()});
}

Server::~Server() {
  stop_accepting();
  if (state_->health) {
    state_->health->close();
  }
  // Sessions hold the context and the context holds them. Those that never ended, because the io context was stopped,
  // are now held by their coroutines alone, which end with the io context.
  state_->context->log->stop();
  state_->context->watches.clear();
  state_->context->websockets.clear();
  state_->context->sessions.clear();
}

std::optional<StartFailure> Server::start() {
  if (auto failure = state_->start_unix()) {
    return failure;
  }
  auto failure = state_->start_tcp();
  if (!failure) {
    failure = state_->start_peers();
  }
  if (!failure) {
    failure = state_->start_health();
  }
  if (failure) {
    stop_accepting();
  }
  return failure;
}

std::string Server::health_endpoint() const { return state_->health_endpoint; }

std::string Server::tcp_endpoint() const { return state_->tcp_endpoint; }

std::string Server::peer_endpoint() const { return state_->peer_endpoint; }

void Server::send(ConnectionId connection, std::string text) {
  const auto found = state_->context->websockets.find(connection);
  if (found != state_->context->websockets.end()) {
    found->second->send(std::move(text));
  }
}

void Server::note_waiting(ConnectionId connection, std::size_t bytes) {
  const auto found = state_->context->websockets.find(connection);
  if (found != state_->context->websockets.end()) {
    found->second->note_waiting(bytes);
  }
}

bool Server::drained(ConnectionId connection) const {
  const auto found = state_->context->websockets.find(connection);
  return found != state_->context->websockets.end() && found->second->drained();
}

void Server::close(ConnectionId connection, std::string reason) {
  const auto found = state_->context->websockets.find(connection);
  if (found != state_->context->websockets.end()) {
    found->second->close(reason);
  }
}

void Server::stop_accepting() {
  state_->rpc_file.remove_if_ours();
  state_->fd_file.remove_if_ours();
  for (auto* listener : {&state_->rpc, &state_->fds, &state_->tcp, &state_->peers}) {
    if (*listener) {
      (*listener)->close();
      listener->reset();
    }
  }
}

void Server::close_all() {
  stop_accepting();
  if (state_->health) {
    state_->health->close();
    state_->health.reset();
  }
  const ContextPtr context = state_->context;
  if (context->closing_all) {
    return;
  }
  context->closing_all = true;
  context->log->stop();
  for (const auto& [id, watch] : context->watches) {
    watch->stop();
  }
  context->watches.clear();
  const auto sessions = context->sessions;  // they leave the map as they end
  for (const auto& [id, session] : sessions) {
    session->go_away();
  }
  if (sessions.empty()) {
    return;
  }
  context->force_close.expires_after(kPoliteClose);
  context->force_close.async_wait([context](boost::system::error_code error) {
    if (error) {
      return;
    }
    const auto left = context->sessions;
    for (const auto& [id, session] : left) {
      session->abort();
    }
  });
}

}  // namespace gradsync::net
