#include "rpc/subscriptions.hpp"

#include "rpc/result_size.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::rpc {

namespace {

const char* name_of(Topic topic) {
  for (const auto& [name, entry] : EnumNames<Topic>::kEntries) {
    if (entry == topic) {
      return name;
    }
  }
  return "";
}

}  // namespace

Result<std::uint64_t> Subscriptions::add(const SubscribeParams& params) {
  if (subscriptions_.size() >= most_) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format("this connection has {} subscriptions, the most (limits.subscriptions)", most_),
        "events.unsubscribe one, or ask for several topics in one"
    );
  }
  subscriptions_[++last_id_].params = params;
  return last_id_;
}

Result<void> Subscriptions::remove(std::uint64_t subscription) {
  if (subscriptions_.erase(subscription) == 0) {
    Error error =
        make_error(ErrorCode::UnknownSubscription, fmt::format("no subscription {} on this connection", subscription));
    error.path = "subscription";
    return error;
  }
  return {};
}

bool Subscriptions::wants(const Subscription& subscription, const engine::Event& event) {
  const SubscribeParams& params = subscription.params;
  return std::ranges::any_of(params.topics, [&](Topic topic) { return event.topic == name_of(topic); }) &&
         (!params.job || *params.job == event.job);
}

std::size_t Subscriptions::push(Subscription& subscription, const engine::Event& event, const std::string& event_json) {
  subscription.queue.push_back({++sequence_, event.topic, event.job, event_json});
  if (subscription.queue.size() <= queue_length_) {
    return 0;
  }
  subscription.queue.pop_front();
  ++subscription.dropped;
  return 1;
}

std::optional<std::string> Subscriptions::next() {
  auto oldest = subscriptions_.end();
  for (auto at = subscriptions_.begin(); at != subscriptions_.end(); ++at) {
    const bool older =
        oldest == subscriptions_.end() ||
        (!at->second.queue.empty() && at->second.queue.front().sequence < oldest->second.queue.front().sequence);
    if (!at->second.queue.empty() && older) {
      oldest = at;
    }
  }
  if (oldest == subscriptions_.end()) {
    return std::nullopt;
  }
  Subscription& subscription = oldest->second;
  const Queued queued = std::move(subscription.queue.front());
  subscription.queue.pop_front();
  JsonWriter writer;
  writer.begin_object();
  writer.key("subscription");
  writer.value(oldest->first);
  writer.key("topic");
  writer.value(std::string_view(queued.topic));
  writer.key("job");
  writer.value(std::string_view(queued.job));
  writer.key("dropped");
  writer.value(std::exchange(subscription.dropped, 0));
  writer.key("event");
  writer.raw(queued.event_json);
  writer.end_object();
  return writer.take();
}

std::string event_json(const engine::Event& event, std::size_t room) {
  if (event.topic == "step" && event.report) {
    return render(ReportAnswer{*event.report, std::nullopt}, room);
  }
  if (event.topic == "epoch") {
    return to_json(EpochEvent{event.epoch, event.what});
  }
  return to_json(AlertEvent{event.kind, event.what});
}

}  // namespace gradsync::rpc
