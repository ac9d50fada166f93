#include "rpc/handlers/handlers.hpp"
#include "rpc/handlers/openrpc.hpp"

namespace gradsync::rpc {

void stats_get(Core& core, Caller& caller, StatsParams params, Answer<StatsAnswer> answer) {
  auto reports = core.engine.stats(Core::visible_uid(caller.peer), params.job, params.last);
  if (!reports) {
    answer(reports.error());
    return;
  }
  answer(StatsAnswer{std::move(*reports)});
}

void status_get(Core& core, Caller& caller, Empty, Answer<StatusAnswer> answer) {
  const ServerMoment moment = core.moment();
  answer(StatusAnswer{
      core.identity.version,
      core.identity.incarnation,
      core.identity.pid,
      moment.draining ? "draining" : "serving",
      moment.uptime_s,
      core.engine.status(Core::visible_uid(caller.peer)),
  });
}

void doctor_run(Core& core, Caller& caller, Empty, Answer<DoctorAnswer> answer) {
  if (core.moment().draining) {
    answer(make_error(ErrorCode::Draining, "the daemon is shutting down and examines nothing any more"));
    return;
  }
  core.examine_node({caller.peer.uid, caller.peer.pid}, [answer](const Result<DoctorAnswer>& found) { answer(found); });
}

namespace {

Error only_for_operators(const char* method, const Peer& peer) {
  return make_error(
      ErrorCode::Unauthorized,
      std::string(method) + " is for the daemon's uid, root or the token; you are uid " + std::to_string(peer.uid)
  );
}

}  // namespace

void blackbox_dump(Core& core, Caller& caller, DumpParams params, Answer<DumpAnswer> answer) {
  if (!caller.peer.privileged) {
    answer(only_for_operators("blackbox.dump", caller.peer));
    return;
  }
  core.dump_jobs(params.job, [answer](const Result<DumpAnswer>& dumped) { answer(dumped); });
}

void log_set_level(Core& core, Caller& caller, LogLevelParams params, Answer<LogLevelAnswer> answer) {
  if (!caller.peer.privileged) {
    answer(only_for_operators("log.set_level", caller.peer));
    return;
  }
  for (const auto& [name, level] : EnumNames<LogLevel>::kEntries) {
    if (level == params.level) {
      Result<std::string> previous = core.set_log_level(name);
      if (!previous) {
        answer(previous.error());
        return;
      }
      answer(LogLevelAnswer{std::move(*previous)});
      return;
    }
  }
}

void events_subscribe(Core& core, Caller& caller, SubscribeParams params, Answer<SubscribeAnswer> answer) {
  const Result<std::uint64_t> subscription = caller.connection->subscriptions.add(params);
  if (!subscription) {
    answer(subscription.error());
    return;
  }
  core.subscribed.insert(caller.connection->id);
  core.metrics.subscriptions.Increment();
  answer(SubscribeAnswer{*subscription});
}

void events_unsubscribe(Core& core, Caller& caller, UnsubscribeParams params, Answer<Empty> answer) {
  const Result<void> removed = caller.connection->subscriptions.remove(params.subscription);
  if (!removed) {
    answer(removed.error());
    return;
  }
  if (caller.connection->subscriptions.size() == 0) {
    core.subscribed.erase(caller.connection->id);
  }
  core.metrics.subscriptions.Decrement();
  caller.connection->waiting_bytes = caller.connection->subscriptions.queued_bytes();
  core.outbox.note_waiting(caller.connection->id, caller.connection->waiting_bytes);
  answer(Empty{});
}

void rpc_discover(Core&, Caller&, Empty, Answer<Document> answer) {
  static const std::string text = openrpc_document().dump();  // takes milliseconds, and a message may ask 64 times
  answer(Document{text});
}

}  // namespace gradsync::rpc
