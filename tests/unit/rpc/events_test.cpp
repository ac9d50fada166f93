#include "fakes/recording_lane.hpp"
#include "rpc_harness.hpp"

namespace gradsync::rpc {
namespace {

using Harness = RpcHarness<fakes::RecordingLane>;

engine::Event alert(const std::string& what, std::uint32_t uid = 1000, const std::string& job = "job") {
  engine::Event event;
  event.topic = "alert";
  event.uid = uid;
  event.job = job;
  event.kind = "nonfinite";
  event.what = what;
  return event;
}

struct Subscriber : Harness {
  explicit Subscriber(RpcLimits limits = {}, Peer peer = local_peer()) : Harness(limits) {
    open(1, peer);
    initialize(1);
  }

  Json subscribe(const Json& params) { return call(1, "events.subscribe", params); }

  /// The next pushed event's `params`.
  Json pushed() {
    const std::string text = outbox.take(1);
    if (text.empty()) {
      return {};
    }
    const Json message = Json::parse(text);
    EXPECT_EQ(message["method"], "events.notification");
    EXPECT_FALSE(message.contains("id"));
    return message["params"];
  }
};

TEST(Events, that_wait_for_a_slow_reader_are_counted_until_they_go) {
  Subscriber rpc;
  const Json one = rpc.subscribe({{"topics", {"alert"}}})["result"]["subscription"];
  rpc.subscribe({{"topics", {"alert"}}});
  rpc.outbox.stuck.insert(1);
  rpc.dispatcher->on_event(alert(std::string(10'000, 'x')));
  const std::size_t both = rpc.outbox.waiting[1];
  EXPECT_GT(both, 20'000U);
  rpc.call(1, "events.unsubscribe", {{"subscription", one}});
  EXPECT_EQ(rpc.outbox.waiting[1], both / 2);
  rpc.outbox.stuck.clear();
  rpc.dispatcher->on_drained(1);
  EXPECT_EQ(rpc.outbox.waiting[1], 0U);
  EXPECT_EQ(rpc.pushed()["event"]["what"], std::string(10'000, 'x'));
}

TEST(Events, pushes_what_was_subscribed) {
  Subscriber rpc;
  const Json subscription = rpc.subscribe({{"topics", {"alert", "epoch"}}})["result"]["subscription"];
  rpc.dispatcher->on_event(alert("NaN in wq"));
  EXPECT_EQ(
      rpc.pushed(),
      (Json{
          {"subscription", subscription},
          {"topic", "alert"},
          {"job", "job"},
          {"dropped", 0},
          {"event", {{"kind", "nonfinite"}, {"what", "NaN in wq"}}}})
  );
  engine::Event epoch;
  epoch.topic = "epoch";
  epoch.uid = 1000;
  epoch.epoch = 3;
  epoch.what = "rank 1 left";
  rpc.dispatcher->on_event(epoch);
  EXPECT_EQ(rpc.pushed()["event"], (Json{{"epoch", 3}, {"what", "rank 1 left"}}));
  engine::Event step;
  step.topic = "step";
  step.uid = 1000;
  step.report = std::make_shared<engine::StepReport>();
  rpc.dispatcher->on_event(step);
  EXPECT_TRUE(rpc.pushed().is_null());
}

TEST(Events, filters_by_job_and_by_uid) {
  Subscriber rpc;
  rpc.subscribe({{"topics", {"alert"}}, {"job", "mine"}});
  rpc.dispatcher->on_event(alert("a", 1000, "other"));
  rpc.dispatcher->on_event(alert("b", 1001, "mine"));
  rpc.dispatcher->on_event(alert("c", 1000, "mine"));
  EXPECT_EQ(rpc.pushed()["event"]["what"], "c");
  EXPECT_TRUE(rpc.pushed().is_null());
}

TEST(Events, a_slow_reader_loses_the_oldest_and_hears_how_many) {
  RpcLimits limits;
  limits.event_queue = 3;
  Subscriber rpc(limits);
  rpc.subscribe({{"topics", {"alert"}}});
  rpc.outbox.stuck.insert(1);
  for (int i = 0; i < 10; ++i) {
    rpc.dispatcher->on_event(alert(std::to_string(i)));
  }
  EXPECT_TRUE(rpc.pushed().is_null());
  rpc.outbox.stuck.clear();
  rpc.dispatcher->on_drained(1);
  const Json first = rpc.pushed();
  EXPECT_EQ(first["event"]["what"], "7");
  EXPECT_EQ(first["dropped"], 7);
  EXPECT_EQ(rpc.pushed()["dropped"], 0);
  EXPECT_EQ(rpc.pushed()["event"]["what"], "9");
  EXPECT_EQ(rpc.metrics.events_dropped.Value(), 7.0);
}

TEST(Events, a_slow_reader_costs_a_fixed_amount_of_memory_however_long_the_events) {
  Subscriber rpc;
  rpc.subscribe({{"topics", {"alert"}}});
  rpc.subscribe({{"topics", {"alert"}}});
  rpc.outbox.stuck.insert(1);
  for (int i = 0; i < 20; ++i) {
    rpc.dispatcher->on_event(alert(std::to_string(i) + std::string(800'000, 'x')));
  }
  rpc.outbox.stuck.clear();
  rpc.dispatcher->on_drained(1);
  std::size_t bytes = 0;
  std::string last;
  for (Json event = rpc.pushed(); !event.is_null(); event = rpc.pushed()) {
    last = event["event"]["what"].get<std::string>();
    bytes += last.size();
  }
  EXPECT_LE(bytes, 8U << 20);
  EXPECT_EQ(last.substr(0, 3), "19x");
}

TEST(Events, several_subscriptions_keep_the_order_of_events) {
  Subscriber rpc;
  rpc.subscribe({{"topics", {"alert"}}});
  rpc.subscribe({{"topics", {"alert"}}});
  rpc.outbox.stuck.insert(1);
  rpc.dispatcher->on_event(alert("x"));
  rpc.dispatcher->on_event(alert("y"));
  rpc.outbox.stuck.clear();
  rpc.dispatcher->on_drained(1);
  std::string order;
  for (Json event = rpc.pushed(); !event.is_null(); event = rpc.pushed()) {
    order += event["event"]["what"].get<std::string>() + std::to_string(event["subscription"].get<int>()) + " ";
  }
  EXPECT_EQ(order, "x1 x2 y1 y2 ");
}

TEST(Events, end_with_their_subscription_and_their_connection) {
  Subscriber rpc;
  const Json subscription = rpc.subscribe({{"topics", {"alert"}}})["result"]["subscription"];
  EXPECT_TRUE(rpc.call(1, "events.unsubscribe", {{"subscription", subscription}}).contains("result"));
  EXPECT_EQ(
      rpc.call(1, "events.unsubscribe", {{"subscription", subscription}})["error"]["data"]["kind"],
      "unknown_subscription"
  );
  rpc.dispatcher->on_event(alert("x"));
  EXPECT_TRUE(rpc.pushed().is_null());
  rpc.subscribe({{"topics", {"alert"}}});
  EXPECT_EQ(rpc.metrics.subscriptions.Value(), 1.0);
  rpc.dispatcher->on_close(1);
  EXPECT_EQ(rpc.metrics.subscriptions.Value(), 0.0);
  rpc.dispatcher->on_event(alert("x"));
}

TEST(Events, a_connection_has_sixteen_subscriptions_and_another_has_its_own) {
  Subscriber rpc;
  Json subscription;
  for (int i = 0; i < 16; ++i) {
    subscription = rpc.subscribe({{"topics", {"step"}}})["result"]["subscription"];
    ASSERT_FALSE(subscription.is_null()) << i;
  }
  const Json refused = rpc.subscribe({{"topics", {"step"}}})["error"];
  EXPECT_EQ(refused["data"]["kind"], "limit_exceeded");
  EXPECT_EQ(refused["message"], "this connection has 16 subscriptions, and may have no more");
  rpc.open(2);
  rpc.initialize(2);
  EXPECT_TRUE(rpc.call(2, "events.subscribe", {{"topics", {"step"}}}).contains("result"));
  rpc.call(1, "events.unsubscribe", {{"subscription", subscription}});
  EXPECT_TRUE(rpc.subscribe({{"topics", {"step"}}}).contains("result"));
}

TEST(Events, limits_subscriptions_per_connection) {
  RpcLimits limits;
  limits.subscriptions = 2;
  Subscriber rpc(limits);
  EXPECT_TRUE(rpc.subscribe({{"topics", {"step"}}}).contains("result"));
  EXPECT_TRUE(rpc.subscribe({{"topics", {"step"}}}).contains("result"));
  EXPECT_EQ(rpc.subscribe({{"topics", {"step"}}})["error"]["data"]["kind"], "limit_exceeded");
  EXPECT_EQ(rpc.subscribe({{"topics", Json::array()}})["error"]["data"]["path"], "topics");
  EXPECT_EQ(rpc.subscribe({{"topics", {"steps"}}})["error"]["data"]["path"], "topics[0]");
}

}  // namespace
}  // namespace gradsync::rpc
