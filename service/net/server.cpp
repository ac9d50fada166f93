#include "net/server.hpp"

#include "net/listener.hpp"
#include "net/server_context.hpp"
#include "net/socket/listening_socket.hpp"
#include "net/socket/process_watch.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace gradsync::net {

namespace {

constexpr std::chrono::seconds kPoliteClose{1};

/// Others may neither read nor change a token. Its group may read it, as in a mounted secret. The file that is looked
/// at is the one that is read.
std::optional<StartFailure> refuse_token_file(int fd, const std::string& path) {
  struct stat found {};

  if (::fstat(fd, &found) != 0) {
    return std::nullopt;  // reading it fails, too
  }
  if (found.st_uid != ::geteuid() && found.st_uid != 0) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        fmt::format(
            "the token file '{}' belongs to uid {}, this daemon is uid {}: another user may change it",
            path,
            found.st_uid,
            ::geteuid()
        ),
        "give it to the daemon's user or to root ([server] tcp_token_file), and a new token"};
  }
  if ((found.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        fmt::format("the token file '{}' has mode {:04o}: others may use it", path, found.st_mode & 07777U),
        "give it mode 0600 or 0640 ([server] tcp_token_file), and a new token if others could read the old one"};
  }
  return std::nullopt;
}

/// The beginning of the file, which is all of a token.
std::optional<std::string> read_beginning(int fd) {
  std::string text(4096, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t bytes = ::read(fd, text.data() + size, text.size() - size);
    if (bytes < 0 && errno == EINTR) {
      continue;
    }
    if (bytes < 0) {
      return std::nullopt;
    }
    if (bytes == 0) {
      break;
    }
    size += static_cast<std::size_t>(bytes);
  }
  text.resize(size);
  return text;
}

Started<std::string> read_token(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.valid()) {
    if (auto refused = refuse_token_file(file.get(), path)) {
      return *refused;
    }
  }
  const std::optional<std::string> read = file.valid() ? read_beginning(file.get()) : std::nullopt;
  std::string token = read.value_or("");
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) {
    token.pop_back();
  }
  constexpr std::size_t kShortest = 16;
  if (!read || token.size() < kShortest) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        "cannot use the token file '" + path + "': " + (read ? "the token is shorter than 16 bytes" : "cannot read it"),
        "set [server] tcp_token_file to a file with a long random token, or leave [server] tcp empty"};
  }
  return token;
}

}  // namespace

struct Server::State {
  ContextPtr context;
  SocketFile rpc_file;
  SocketFile fd_file;
  std::shared_ptr<Listener> rpc;
  std::shared_ptr<Listener> fds;
  std::shared_ptr<Listener> tcp;
  std::shared_ptr<Listener> health;
  std::string tcp_endpoint;
  std::string health_endpoint;

  std::optional<StartFailure> start_unix();
  std::optional<StartFailure> start_tcp();
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
  if (context->options.tcp_address.empty()) {
    return std::nullopt;
  }
  auto token = read_token(context->options.tcp_token_file);
  if (auto* failure = std::get_if<StartFailure>(&token)) {
    return *failure;
  }
  context->bearer_token = std::get<std::string>(token);
  auto bound = listen_tcp(context->options.tcp_address);
  if (auto* failure = std::get_if<StartFailure>(&bound)) {
    failure->message += " ([server] tcp)";
    return *failure;
  }
  tcp_endpoint = std::get<TcpListener>(bound).endpoint;
  tcp = listen(std::move(std::get<TcpListener>(bound).fd), Entrance::Tcp);
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
    NetMetrics& metrics
)
    : state_(std::make_shared<State>()) {
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
      .bearer_token = {},
      .own_uid = ::geteuid(),
      .last_id = 0,
      .sessions = {},
      .websockets = {},
      .watches = {},
      .partial_messages = PartialMessages{most_partial_bytes},
      .unread_answers = UnreadAnswers{most_unread_bytes, ::geteuid()},
      .fair_share = {},
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
    failure = state_->start_health();
  }
  if (failure) {
    stop_accepting();
  }
  return failure;
}

std::string Server::health_endpoint() const { return state_->health_endpoint; }

std::string Server::tcp_endpoint() const { return state_->tcp_endpoint; }

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
  for (auto* listener : {&state_->rpc, &state_->fds, &state_->tcp}) {
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
