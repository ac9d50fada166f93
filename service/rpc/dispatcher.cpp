#include "rpc/dispatcher.hpp"

#include "base/text.hpp"
#include "rpc/core.hpp"
#include "rpc/envelope.hpp"
#include "rpc/error_codes.hpp"
#include "rpc/method.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace gradsync::rpc {

namespace {

constexpr std::size_t kCallsInFlight = 1024;  ///< per connection; a trainer has one or two
constexpr std::size_t kOrphans = 4096;        ///< the oldest have run out of time to come back long ago

Error unknown_method(const std::string& name) {
  std::vector<std::string> known;
  for (const Method& method : methods()) {
    known.emplace_back(method.name);
  }
  const std::string shown = name.size() > 64 ? fmt::format("a name of {} bytes", name.size()) : "\"" + name + "\"";
  const std::string nearest = name.size() > 64 ? "" : nearest_name(name, known);
  return make_error(
      ErrorCode::MethodNotFound,
      "no method " + shown,
      nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest)
  );
}

std::optional<Error> refusal(const Method& method, const Caller& caller) {
  if (method.needs == Needs::Nothing) {
    return std::nullopt;
  }
  if (caller.connection == nullptr || !caller.peer.local) {
    return make_error(ErrorCode::LocalOnly, fmt::format("{} needs a WebSocket on the unix socket", method.name));
  }
  if (method.needs >= Needs::Initialize && !caller.connection->client) {
    return make_error(ErrorCode::NotInitialized, fmt::format("{} before session.initialize", method.name));
  }
  if (method.needs == Needs::Attach && caller.connection->session == 0) {
    return make_error(ErrorCode::NotAttached, fmt::format("{} without a rank", method.name));
  }
  return std::nullopt;
}

}  // namespace

struct Dispatcher::State {
  /// Shared with completions, which may outlive the dispatcher inside the engine.
  std::shared_ptr<Core> core;

  void handle(Caller caller, std::string_view text, ReplyGroup::Deliver deliver);
  void dispatch(Caller& caller, const Request& request, std::size_t index, const std::shared_ptr<ReplyGroup>& group);
  void refuse(const Error& error, const ReplyGroup::Deliver& deliver);
  void pump(Connection& connection);

  /// Metrics when the request is done, and its id is free for the in-flight set. `id` empty: none was begun.
  [[nodiscard]] Completion::Done done_of(const Caller& caller, std::size_t method, std::string id);
};

Completion::Done Dispatcher::State::done_of(const Caller& caller, std::size_t method, std::string id) {
  return [weak = std::weak_ptr(core),
          connection = caller.connection != nullptr ? std::optional(caller.connection->id) : std::nullopt,
          method,
          id = std::move(id),
          start = core->moment().now](const Error* error) {
    const auto alive = weak.lock();
    if (!alive) {
      return;
    }
    alive->metrics.request_done(method, error, seconds(alive->moment().now - start));
    const auto at = connection ? alive->connections.find(*connection) : alive->connections.end();
    if (at != alive->connections.end() && !id.empty()) {
      at->second.ids.end(id);
    }
  };
}

void Dispatcher::State::refuse(const Error& error, const ReplyGroup::Deliver& deliver) {
  core->metrics.request_done(methods().size(), &error, 0);
  deliver(error_reply(std::nullopt, error), row_of(error.code).http);
}

void Dispatcher::State::handle(Caller caller, std::string_view text, ReplyGroup::Deliver deliver) {
  if (text.size() > core->limits.message_bytes) {
    refuse(
        make_error(
            ErrorCode::LimitExceeded,
            fmt::format(
                "a message of {} bytes; at most {} (limits.message_bytes)", text.size(), core->limits.message_bytes
            )
        ),
        deliver
    );
    return;
  }
  const Result<Tape> tape = read_json(text, core->limits.depth);
  if (!tape) {
    refuse(tape.error(), deliver);
    return;
  }
  const Result<Envelope> envelope = read_envelope(tape->root(), core->limits.batch_items);
  if (!envelope) {
    refuse(envelope.error(), deliver);
    return;
  }
  const auto group = std::make_shared<ReplyGroup>(
      envelope->batch, envelope->requests.size(), core->limits.message_bytes, std::move(deliver)
  );
  for (std::size_t i = 0; i < envelope->requests.size(); ++i) {
    dispatch(caller, envelope->requests[i], i, group);
  }
}

void Dispatcher::State::dispatch(
    Caller& caller, const Request& request, std::size_t index, const std::shared_ptr<ReplyGroup>& group
) {
  const std::size_t method = find_method(request.method);
  std::optional<Error> error = request.error;
  std::optional<std::string> id = request.id;
  std::string begun;  // the id, once it counts as used
  if (!error && id && caller.connection != nullptr) {
    if (caller.connection->ids.in_flight() >= kCallsInFlight) {
      error = make_error(ErrorCode::LimitExceeded, fmt::format("{} calls of this connection wait", kCallsInFlight));
    } else if (!caller.connection->ids.begin(*id)) {
      // Answered with a null id: with its own it would look like the answer to the first use.
      error = make_error(ErrorCode::InvalidRequest, fmt::format("id {} was used before", *id), "use a fresh id");
      id.reset();
    } else {
      begun = *id;
    }
  }
  if (!error && method == methods().size()) {
    error = unknown_method(request.method);
  }
  if (!error) {
    error = refusal(methods()[method], caller);
  }
  const auto completion =
      std::make_shared<Completion>(group, index, request.answered(), std::move(id), done_of(caller, method, begun));
  if (error) {
    completion->fail(*error);
    return;
  }
  methods()[method].call(*core, caller, request.params, completion);
}

void Dispatcher::State::pump(Connection& connection) {
  while (core->outbox.drained(connection.id)) {
    const std::optional<std::string> params = connection.subscriptions.next();
    if (!params) {
      return;
    }
    core->outbox.send(connection.id, notification("events.notification", *params));
  }
}

Dispatcher::Dispatcher(
    engine::Engine& engine,
    Outbox& outbox,
    ServerIdentity identity,
    RpcLimits limits,
    SetLogLevel set_log_level,
    RpcMetrics& metrics
)
    : state_(std::make_unique<State>()) {
  state_->core = std::make_shared<Core>(Core{
      engine, outbox, std::move(identity), limits, std::move(set_log_level), metrics, {}, {}});
}

Dispatcher::~Dispatcher() = default;

void Dispatcher::on_open(ConnectionId connection, const Peer& peer) {
  state_->core->connections.try_emplace(connection, connection, peer, state_->core->limits);
}

void Dispatcher::on_text(ConnectionId connection, std::string_view text) {
  const auto at = state_->core->connections.find(connection);
  if (at == state_->core->connections.end()) {
    return;
  }
  const auto deliver = [weak = std::weak_ptr(state_->core), connection](std::string reply, int) {
    const auto alive = weak.lock();
    if (!reply.empty() && alive && alive->connections.contains(connection)) {
      alive->outbox.send(connection, std::move(reply));
    }
  };
  state_->handle(Caller{at->second.peer, &at->second}, text, deliver);
}

void Dispatcher::on_drained(ConnectionId connection) {
  const auto at = state_->core->connections.find(connection);
  if (at != state_->core->connections.end()) {
    state_->pump(at->second);
  }
}

bool Dispatcher::initialized(ConnectionId connection) const {
  const auto at = state_->core->connections.find(connection);
  return at != state_->core->connections.end() && at->second.client.has_value();
}

bool Dispatcher::on_close(ConnectionId connection) {
  Core& core = *state_->core;
  const auto at = core.connections.find(connection);
  if (at == core.connections.end()) {
    return false;
  }
  const engine::SessionId session = at->second.session;
  core.metrics.subscriptions.Decrement(static_cast<double>(at->second.subscriptions.size()));
  if (at->second.client) {
    core.metrics.sessions.Decrement();
  }
  core.connections.erase(at);
  if (session != 0) {
    if (core.orphans.size() >= kOrphans) {
      core.orphans.erase(core.orphans.begin());
    }
    core.orphans[connection] = session;
    core.engine.connection_lost(session);
  }
  return session != 0;
}

void Dispatcher::on_process_exit(ConnectionId connection) {
  Core& core = *state_->core;
  engine::SessionId session = 0;
  if (const auto at = core.connections.find(connection); at != core.connections.end()) {
    session = std::exchange(at->second.session, 0);
  } else if (const auto orphan = core.orphans.find(connection); orphan != core.orphans.end()) {
    session = orphan->second;
    core.orphans.erase(orphan);
  }
  if (session != 0) {
    core.engine.process_exited(session);
  }
}

PostReply Dispatcher::on_post(const Peer& peer, std::string_view body) {
  PostReply reply;
  state_->handle(Caller{peer, nullptr}, body, [&reply](std::string text, int http_status) {
    reply.status = text.empty() ? 204 : http_status;
    reply.body = std::move(text);
  });
  return reply;
}

void Dispatcher::on_event(const engine::Event& event) {
  Core& core = *state_->core;
  std::string json;
  const auto render_once = [&]() -> const std::string& {
    if (json.empty()) {
      json = event_json(event, core.limits.message_bytes - core.limits.message_bytes / 16);
    }
    return json;
  };
  for (auto& [id, connection] : core.connections) {
    const auto uid = Core::visible_uid(connection.peer);
    if (connection.subscriptions.size() == 0 || (uid && *uid != event.uid)) {
      continue;
    }
    core.metrics.events_dropped.Increment(static_cast<double>(connection.subscriptions.offer(event, render_once)));
    state_->pump(connection);
  }
}

}  // namespace gradsync::rpc
