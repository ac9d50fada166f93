#pragma once
// Event subscriptions of one connection: bounded queues that drop their oldest event, so that a slow reader costs a
// fixed amount of memory and never holds up a step. Pure: the dispatcher decides when to send.

#include "engine/types.hpp"
#include "rpc/wire/wire_read.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace gradsync::rpc {

class Subscriptions {
 public:
  Subscriptions(std::size_t most, std::size_t queue_length) : most_(most), queue_length_(queue_length) {}

  /// Errors: LimitExceeded.
  [[nodiscard]] Result<std::uint64_t> add(const SubscribeParams& params);
  /// Errors: UnknownSubscription.
  [[nodiscard]] Result<void> remove(std::uint64_t subscription);

  /// Queues the event for each subscription that asked for it; returns how many events were dropped for it.
  /// `event_json` is called at most once, when a subscription wants the event.
  template <typename EventJson>
  std::size_t offer(const engine::Event& event, EventJson event_json) {
    std::size_t dropped = 0;
    for (auto& [id, subscription] : subscriptions_) {
      if (wants(subscription, event)) {
        dropped += push(subscription, event, event_json());
      }
    }
    return dropped;
  }

  /// The params of the next notification, oldest event first over all subscriptions.
  [[nodiscard]] std::optional<std::string> next();

  [[nodiscard]] std::size_t size() const { return subscriptions_.size(); }

  /// The sum over all events that wait, whether others wait for the same ones or not.
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }

 private:
  struct Queued {
    std::uint64_t sequence = 0;
    std::string topic;
    std::string job;
    std::shared_ptr<const std::string> event_json;  ///< shared with all that wait for it
  };

  struct Subscription {
    SubscribeParams params;
    std::deque<Queued> queue;
    std::uint64_t dropped = 0;  ///< since the last push
  };

  [[nodiscard]] static bool wants(const Subscription& subscription, const engine::Event& event);
  std::size_t push(
      Subscription& subscription, const engine::Event& event, std::shared_ptr<const std::string> event_json
  );

  std::size_t most_;
  std::size_t queue_length_;
  std::uint64_t last_id_ = 0;
  std::uint64_t sequence_ = 0;
  std::size_t queued_bytes_ = 0;
  std::map<std::uint64_t, Subscription> subscriptions_;
};

/// `event` of `events.notification`.
[[nodiscard]] std::string event_json(const engine::Event& event, std::size_t room);

}  // namespace gradsync::rpc
