#include "rpc/dispatcher.hpp"

#include "base/text.hpp"
#include "rpc/core.hpp"
#include "rpc/envelope.hpp"
#include "rpc/error_codes.hpp"
#include "rpc/handlers/method.hpp"

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
  explicit State(std::shared_ptr<Core> core_) : core(std::move(core_)), tapes(core->limits.depth) {}

  /// Shared with completions, which may outlive the dispatcher inside the engine.
  std::shared_ptr<Core> core;

  // These belong to the message being read; the next one uses their memory again.
  TapeReader tapes;
  Envelope envelope;
  FieldReader fields;

  /// Whether a method was called.
  bool handle(Caller caller, std::string_view text, PostReply* post);
  bool dispatch(Caller& caller, const Request& request, std::size_t index, const std::shared_ptr<ReplyGroup>& group);
  void refuse(const Error& error, const Asker& asker);
  void pump(Connection& connection);
};

void Dispatcher::State::refuse(const Error& error, const Asker& asker) {
  core->metrics.request_done(methods().size(), &error, 0);
  asker.deliver(error_reply(std::nullopt, error), row_of(error.code).http);
}

bool Dispatcher::State::handle(Caller caller, std::string_view text, PostReply* post) {
  Asker asker{core, caller.connection != nullptr ? std::optional(caller.connection->id) : std::nullopt, post};
  if (text.size() > core->limits.message_bytes) {
    refuse(
        make_error(
            ErrorCode::LimitExceeded,
            fmt::format(
                "a message of {} bytes; at most {} (limits.message_bytes)", text.size(), core->limits.message_bytes
            )
        ),
        asker
    );
    return false;
  }
  const Result<Value> root = tapes.read(text);
  if (!root) {
    refuse(root.error(), asker);
    return false;
  }
  if (const auto read = read_envelope(*root, core->limits.batch_items, envelope); !read) {
    refuse(read.error(), asker);
    return false;
  }
  const auto group = std::make_shared<ReplyGroup>(
      envelope.batch, envelope.requests.size(), core->limits.message_bytes, std::move(asker)
  );
  bool called = false;
  for (std::size_t i = 0; i < envelope.requests.size(); ++i) {
    called = dispatch(caller, envelope.requests[i], i, group) || called;
  }
  return called;
}

bool Dispatcher::State::dispatch(
    Caller& caller, const Request& request, std::size_t index, const std::shared_ptr<ReplyGroup>& group
) {
  Counted counted{find_method(request.method), false, core->moment().now};
  const std::size_t method = counted.method;
  std::optional<Error> error = request.error;
  std::optional<std::string> id = request.id;
  if (!error && id && caller.connection != nullptr) {
    if (caller.connection->ids.in_flight() >= kCallsInFlight) {
      error = make_error(ErrorCode::LimitExceeded, fmt::format("{} calls of this connection wait", kCallsInFlight));
    } else if (!caller.connection->ids.begin(*id)) {
      // Answered with a null id: with its own it would look like the answer to the first use.
      error = make_error(ErrorCode::InvalidRequest, fmt::format("id {} was used before", *id), "use a fresh id");
      id.reset();
    } else {
      counted.id_in_use = true;
    }
  }
  if (!error && method == methods().size()) {
    error = unknown_method(request.method);
  }
  if (!error) {
    error = refusal(methods()[method], caller);
  }
  if (!error && request.answered() && group->full()) {
    error = make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "the replies before this one in the batch fill a message (limits.message_bytes {}): it was not called",
            core->limits.message_bytes
        ),
        "send the call again, alone or in a shorter batch"
    );
  }
  auto completion = std::make_shared<Completion>(group, index, request.answered(), std::move(id), counted);
  if (error) {
    completion->fail(*error);
    return false;
  }
  methods()[method].call(*core, caller, fields, request.params, std::move(completion));
  return true;
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
    : state_(std::make_unique<State>(std::make_shared<Core>(Core{
          engine, outbox, std::move(identity), limits, std::move(set_log_level), metrics}))) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::on_open(ConnectionId connection, const Peer& peer) {
  state_->core->connections.try_emplace(connection, connection, peer, state_->core->limits);
}

bool Dispatcher::on_text(ConnectionId connection, std::string_view text) {
  const auto at = state_->core->connections.find(connection);
  if (at == state_->core->connections.end()) {
    return false;
  }
  return state_->handle(Caller{at->second.peer, &at->second}, text, nullptr);
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
  core.subscribed.erase(connection);
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
  state_->handle(Caller{peer, nullptr}, body, &reply);
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
  for (const ConnectionId id : core.subscribed) {
    Connection& connection = core.connections.at(id);
    const auto uid = Core::visible_uid(connection.peer);
    if (uid && *uid != event.uid) {
      continue;
    }
    core.metrics.events_dropped.Increment(static_cast<double>(connection.subscriptions.offer(event, render_once)));
    state_->pump(connection);
  }
}

}  // namespace gradsync::rpc
