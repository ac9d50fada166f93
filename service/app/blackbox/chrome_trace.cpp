#include "app/blackbox/chrome_trace.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kStepsLine = 1;  ///< the line of a node on which attempts lie, as the number of a thread

/// Appends the events of one node.
class NodeTrace {
 public:
  NodeTrace(Json& events, const FlightView& view, std::int64_t shift) : events_(events), view_(view), shift_(shift) {}

  void write() {
    named("process_name", view_.name());
    named("thread_name", "steps");
    for (const auto& [key, attempt] : view_.attempts) {
      add_attempt(*attempt);
    }
    for (const auto& [key, buckets] : view_.buckets) {
      for (const auto& [number, bucket] : buckets) {
        add_bucket(*bucket);
      }
    }
    for (const rpc::DumpLink* link : view_.links) {
      add_link(*link);
    }
  }

 private:
  /// Process 0 and thread 0 are the idle ones to Perfetto, which keeps names of its own for them.
  [[nodiscard]] std::int64_t process() const { return view_.number() + 1; }

  void named(const char* what, const std::string& name) {
    events_.push_back({{"name", what}, {"ph", "M"}, {"pid", process()}, {"tid", kStepsLine}, {"args", {{"name", name}}}}
    );
  }

  Json event(const char* phase, std::string name, std::int64_t at_us) const {
    return {{"name", std::move(name)}, {"ph", phase}, {"pid", process()}, {"tid", kStepsLine}, {"ts", at_us + shift_}};
  }

  void add_attempt(const rpc::DumpAttempt& attempt) {
    const std::int64_t end = std::max(attempt.ended_us.value_or(view_.head->taken_us), attempt.begun_us);
    const std::string name = attempt.step ? fmt::format("step {}", *attempt.step)
                                          : fmt::format("attempt {}.{}", attempt.epoch, attempt.attempt);
    Json whole = event("X", name, attempt.begun_us);
    whole["dur"] = end - attempt.begun_us;
    whole["args"] = {{"epoch", attempt.epoch}, {"attempt", attempt.attempt}, {"error", attempt.error.value_or("")}};
    events_.push_back(std::move(whole));
    const std::pair<const char*, std::optional<std::int64_t>> moments[] = {
        {"first ask", attempt.first_ask_us},
        {"last ask", attempt.last_ask_us},
        {"measured", attempt.measured_us},
        {"decided", attempt.decided_us},
        {"voted", attempt.voted_us}};
    for (const auto& [what, at_us] : moments) {
      if (at_us) {
        Json moment = event("i", what, *at_us);
        moment["s"] = "t";
        if (attempt.last_rank && at_us == attempt.last_ask_us) {
          moment["args"] = {{"rank", *attempt.last_rank}};
        }
        events_.push_back(std::move(moment));
      }
    }
  }

  /// Buckets overlap, so each is a pair of events with an id of its own. `id2` with `local` puts it among the lines of
  /// its node; an `id` would put those of all nodes below "Global Legacy Events".
  void add_span(
      const char* category,
      const std::string& name,
      const std::string& id,
      std::int64_t from_us,
      std::int64_t to_us,
      Json args
  ) {
    Json begin = event("b", name, from_us);
    Json end = event("e", name, std::max(from_us, to_us));
    for (Json* each : {&begin, &end}) {
      (*each)["cat"] = category;
      (*each)["id2"] = {{"local", id}};
    }
    begin["args"] = std::move(args);
    events_.push_back(std::move(begin));
    events_.push_back(std::move(end));
  }

  void add_bucket(const rpc::DumpBucket& bucket) {
    const std::string id = fmt::format("{}/{}", view_.number(), bucket.seq);
    const Json args{
        {"bucket", bucket.bucket},
        {"bytes", bucket.bytes},
        {"ready", bucket.ready},
        {"last_rank", bucket.last_rank.value_or(-1)},
        {"epoch", bucket.epoch},
        {"attempt", bucket.attempt}};
    const std::int64_t now = view_.head->taken_us;
    if (bucket.first_ready_us) {
      const std::int64_t end = bucket.launched_us.value_or(now);
      add_span("ready", fmt::format("bucket {} collecting", bucket.bucket), id, *bucket.first_ready_us, end, args);
    }
    if (bucket.launched_us) {
      const std::int64_t end = bucket.done_us.value_or(now);
      add_span("reduce", fmt::format("bucket {}", bucket.bucket), id, *bucket.launched_us, end, args);
    }
  }

  void add_link(const rpc::DumpLink& link) {
    const std::string id =
        fmt::format("{}/{}/{}/{}/{}", view_.number(), link.node, link.epoch, link.attempt, link.bucket);
    const Json args{{"sent_bytes", link.sent_bytes}, {"received_bytes", link.received_bytes}};
    add_span(
        "link",
        fmt::format("bucket {} from node {}", link.bucket, link.node),
        id,
        link.launched_us,
        link.received_us,
        args
    );
  }

  Json& events_;
  const FlightView& view_;
  std::int64_t shift_;
};

}  // namespace

std::int64_t shift_us(const FlightWorld& world, const FlightView& view) {
  const FlightView& first = world.views.front();
  std::vector<std::int64_t> shifts;
  for (const auto& [key, attempt] : view.attempts) {
    const rpc::DumpAttempt* const same = first.attempt(key);
    if (same != nullptr && same->decided_us && attempt->decided_us) {
      shifts.push_back(*same->decided_us - *attempt->decided_us);
    }
  }
  if (shifts.empty()) {
    return (view.head->taken_unix_us - view.head->taken_us) - (first.head->taken_unix_us - first.head->taken_us);
  }
  const auto middle = shifts.begin() + static_cast<std::ptrdiff_t>(shifts.size() / 2);
  std::ranges::nth_element(shifts, middle);
  return *middle;
}

std::string chrome_trace(const FlightWorld& world) {
  Json events = Json::array();
  for (const FlightView& view : world.views) {
    NodeTrace(events, view, shift_us(world, view)).write();
  }
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  for (const Json& event : events) {
    begin = event.contains("ts") ? std::min(begin, event["ts"].get<std::int64_t>()) : begin;
  }
  for (Json& event : events) {
    if (event.contains("ts")) {
      event["ts"] = event["ts"].get<std::int64_t>() - begin;
    }
  }
  // In the order of time, and names before all: readers of a stream need that.
  std::ranges::stable_sort(events.get_ref<Json::array_t&>(), {}, [](const Json& event) {
    return event.value("ts", std::int64_t{-1});
  });
  const Json trace{{"displayTimeUnit", "ms"}, {"otherData", {{"job", world.job}}}, {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gradsync::app
