#include "rpc/dispatcher.hpp"

#include "base/text/text.hpp"
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
constexpr Milliseconds kBatchTurn{1};         ///< of a batch; then other connections have a turn

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
    return caller.peer.reads_only && method.form != Form::Read
               ? std::optional(make_error(
                     ErrorCode::Unauthorized,
                     fmt::format("{} changes something, and this token only reads", method.name),
                     "send the token of [server] tcp_token_file, or ask who has it"
                 ))
               : std::nullopt;
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
  explicit State(std::shared_ptr<Core> core_) : core(std::move(core_)) {}

  /// Shared with completions, which may outlive the dispatcher inside the engine.
  std::shared_ptr<Core> core;

  // The next message uses the memory of the last one again.
  std::unique_ptr<Message> spare;
  FieldReader fields;

  /// None: it was answered with an error.
  std::unique_ptr<Message> read(const Caller& caller, std::string_view text, PostReply* post);
  /// Calls the methods of a message in order, for one turn; true: that was the last one.
  bool work(Caller caller, Message& message);
  void note_waiting(const Peer& peer, Message& message) const;
  void keep(std::unique_ptr<Message> message);
  bool dispatch(Caller& caller, const Request& request, std::size_t index, const std::shared_ptr<ReplyGroup>& group);
  void refuse(const Error& error, const Asker& asker);
  void pump(Connection& connection);
};

void Dispatcher::State::refuse(const Error& error, const Asker& asker) {
  core->metrics.request_done(methods().size(), &error, 0);
  asker.deliver(error_reply(std::nullopt, error), row_of(error.code).http);
}

std::unique_ptr<Message> Dispatcher::State::read(const Caller& caller, std::string_view text, PostReply* post) {
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
    return nullptr;
  }
  std::unique_ptr<Message> message = spare ? std::move(spare) : std::make_unique<Message>(core->limits.depth);
  Envelope& envelope = message->envelope;
  const Result<Value> root = message->tapes.read(text);
  const Result<void> read = root ? read_envelope(*root, core->limits.batch_items, envelope) : root.error();
  if (!read) {
    refuse(read.error(), asker);
    keep(std::move(message));
    return nullptr;
  }
  message->group = std::make_shared<ReplyGroup>(
      envelope.batch, envelope.requests.size(), core->limits.message_bytes, std::move(asker)
  );
  message->text_bytes = text.size();
  return message;
}

bool Dispatcher::State::work(Caller caller, Message& message) {
  std::vector<Request>& requests = message.envelope.requests;
  const TimePoint end = requests.size() > 1 ? core->moment().now + kBatchTurn : TimePoint{};
  while (message.next < requests.size()) {
    Request& request = requests[message.next];
    if (message.cut) {
      request.error = message.cut;
    }
    message.called = dispatch(caller, request, message.next, message.group) || message.called;
    ++message.next;
    if (message.next < requests.size() && core->moment().now >= end) {
      note_waiting(caller.peer, message);
      return false;
    }
  }
  return true;
}

/// Batches that wait hold memory, which is limited. Where it is used up, the items that are left are refused.
void Dispatcher::State::note_waiting(const Peer& peer, Message& message) const {
  if (message.waits || message.cut) {
    return;
  }
  const Holder holder{peer.uid, peer.pid};
  const auto refused = core->waiting_batches.refuse(holder, message.text_bytes);
  if (!refused) {
    message.waits.emplace(core->waiting_batches, holder, message.text_bytes);
    return;
  }
  message.cut = make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "batches of {} that wait for their turn hold {}, the limit is {}",
          refused->whose,
          human_bytes(refused->held),
          human_bytes(refused->most)
      ),
      "send the calls that were refused again, in shorter batches"
  );
}

void Dispatcher::State::keep(std::unique_ptr<Message> message) {
  message->group.reset();
  message->next = 0;
  message->called = false;
  message->waits.reset();
  message->cut.reset();
  spare = std::move(message);
}

bool Dispatcher::State::dispatch(
    Caller& caller, const Request& request, std::size_t index, const std::shared_ptr<ReplyGroup>& group
) {
  Counted counted{find_method(request.method), false, core->moment().now};
  const std::size_t method = counted.method;
  if (method < methods().size() && methods()[method].audit == Audit::Yes) {
    counted.audited = audited_call(methods()[method].name, caller, request.params);
  }
  std::optional<Error> error = request.error;
  std::optional<std::string> id = request.id;
  if (!error && id && caller.connection != nullptr) {
    if (caller.connection->ids.in_flight() >= kCallsInFlight) {
      error = make_error(
          ErrorCode::LimitExceeded,
          fmt::format("{} calls of this connection wait, and no more may", kCallsInFlight),
          "read the answers to these before you call again"
      );
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
  auto completion = std::make_shared<Completion>(group, index, request.answered(), std::move(id), std::move(counted));
  if (!error && !request.answered() && methods()[method].form == Form::Read) {
    completion->succeed({});  // its answer is all that it is for
    return false;
  }
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
      break;
    }
    core->outbox.send(connection.id, notification("events.notification", *params));
  }
  if (const std::size_t bytes = connection.subscriptions.queued_bytes(); bytes != connection.waiting_bytes) {
    connection.waiting_bytes = bytes;
    core->outbox.note_waiting(connection.id, bytes);
  }
}

Dispatcher::Dispatcher(
    engine::Engine& engine,
    Outbox& outbox,
    ServerIdentity identity,
    RpcLimits limits,
    SetLogLevel set_log_level,
    ExamineNode examine_node,
    DumpJobs dump_jobs,
    RpcMetrics& metrics
)
    : state_(std::make_unique<State>(std::make_shared<Core>(Core{
          engine,
          outbox,
          std::move(identity),
          limits,
          std::move(set_log_level),
          std::move(examine_node),
          std::move(dump_jobs),
          metrics}))) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::on_open(ConnectionId connection, const Peer& peer) {
  state_->core->connections.try_emplace(connection, connection, peer, state_->core->limits);
}

bool Dispatcher::on_text(ConnectionId connection, std::string_view text) {
  const auto at = state_->core->connections.find(connection);
  if (at == state_->core->connections.end()) {
    return false;
  }
  Connection& caller = at->second;
  std::unique_ptr<Message> message = state_->read(Caller{caller.peer, &caller}, text, nullptr);
  if (!message) {
    return false;
  }
  const bool done = state_->work(Caller{caller.peer, &caller}, *message);
  const bool called = message->called;
  if (done) {
    state_->keep(std::move(message));
  } else {
    caller.rest = std::move(message);
  }
  return called;
}

bool Dispatcher::has_more(ConnectionId connection) const {
  const auto at = state_->core->connections.find(connection);
  return at != state_->core->connections.end() && at->second.rest != nullptr;
}

void Dispatcher::go_on(ConnectionId connection) {
  const auto at = state_->core->connections.find(connection);
  if (at == state_->core->connections.end() || !at->second.rest) {
    return;
  }
  Connection& caller = at->second;
  if (state_->work(Caller{caller.peer, &caller}, *caller.rest)) {
    state_->keep(std::move(caller.rest));
  }
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

class Dispatcher::Posted final : public PostCall {
 public:
  Posted(State& state, const Peer& peer, std::string_view body)
      : state_(state), core_(state.core), peer_(peer), message_(state.read(Caller{peer, nullptr}, body, &reply)) {}

  bool go_on() override {
    if (!message_) {
      return true;
    }
    const bool done = state_.work(Caller{peer_, nullptr}, *message_);
    if (done) {
      state_.keep(std::move(message_));
    }
    return done;
  }

 private:
  State& state_;
  std::shared_ptr<Core> core_;  ///< of the budget that the message holds a share of
  Peer peer_;
  std::unique_ptr<Message> message_;  ///< none: it is done
};

std::unique_ptr<PostCall> Dispatcher::begin_post(const Peer& peer, std::string_view body) {
  return std::make_unique<Posted>(*state_, peer, body);
}

PostReply Dispatcher::on_post(const Peer& peer, std::string_view body) {
  const std::unique_ptr<PostCall> call = begin_post(peer, body);
  while (!call->go_on()) {
  }
  return std::move(call->reply);
}

void Dispatcher::on_event(const engine::Event& event) {
  Core& core = *state_->core;
  std::shared_ptr<const std::string> json;  // one text for all that wait for it
  const auto render_once = [&]() -> const std::shared_ptr<const std::string>& {
    if (!json) {
      json = std::make_shared<const std::string>(
          event_json(event, core.limits.message_bytes - core.limits.message_bytes / 16)
      );
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
