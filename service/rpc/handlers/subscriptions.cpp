#include "rpc/handlers/subscriptions.hpp"

#include "rpc/wire/result_size.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::rpc {

namespace {

/// The limit for all queues of a connection together: a report of many layers is near 1 MiB long.
constexpr std::size_t kMostBytes = 8U << 20;

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
        fmt::format("this connection has {} subscriptions, and may have no more", most_),
        "events.unsubscribe one, or ask for several topics in one"
    );
  }
  subscriptions_[++last_id_].params = params;
  return last_id_;
}

Result<void> Subscriptions::remove(std::uint64_t subscription) {
  const auto found = subscriptions_.find(subscription);
  if (found == subscriptions_.end()) {
    Error error =
        make_error(ErrorCode::UnknownSubscription, fmt::format("no subscription {} on this connection", subscription));
    error.path = "subscription";
    return error;
  }
  for (const Queued& queued : found->second.queue) {
    queued_bytes_ -= queued.event_json->size();
  }
  subscriptions_.erase(found);
  return {};
}

bool Subscriptions::wants(const Subscription& subscription, const engine::Event& event) {
  const SubscribeParams& params = subscription.params;
  return std::ranges::any_of(params.topics, [&](Topic topic) { return event.topic == name_of(topic); }) &&
         (!params.job || *params.job == event.job);
}

std::size_t Subscriptions::push(
    Subscription& subscription, const engine::Event& event, std::shared_ptr<const std::string> event_json
) {
  queued_bytes_ += event_json->size();
  subscription.queue.push_back({++sequence_, event.topic, event.job, std::move(event_json)});
  std::size_t dropped = 0;
  while (subscription.queue.size() > queue_length_ || (queued_bytes_ > kMostBytes && subscription.queue.size() > 1)) {
    queued_bytes_ -= subscription.queue.front().event_json->size();
    subscription.queue.pop_front();
    ++dropped;
  }
  subscription.dropped += dropped;
  return dropped;
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
  queued_bytes_ -= queued.event_json->size();
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
  writer.raw(*queued.event_json);
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
