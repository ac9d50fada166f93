#pragma once
// The dispatcher over a real engine, with an outbox that keeps what was sent and a clock that moves when told.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_gpus.hpp"
#include "rpc/dispatcher.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/metrics.hpp"
#include "rpc/wire/result_size.hpp"
#include "rpc/wire/wire_blackbox.hpp"
#include "rpc/wire/wire_doctor.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::rpc {

class RecordingOutbox : public Outbox {
 public:
  void send(ConnectionId connection, std::string text) override { sent[connection].push_back(std::move(text)); }

  [[nodiscard]] bool drained(ConnectionId connection) const override { return !stuck.contains(connection); }

  void note_waiting(ConnectionId connection, std::size_t bytes) override { waiting[connection] = bytes; }

  void close(ConnectionId connection, std::string) override { closed.insert(connection); }

  /// The next message to the connection; "" when there is none.
  std::string take(ConnectionId connection) {
    auto& queue = sent[connection];
    if (queue.empty()) {
      return "";
    }
    std::string text = std::move(queue.front());
    queue.pop_front();
    return text;
  }

  std::map<ConnectionId, std::deque<std::string>> sent;
  std::map<ConnectionId, std::size_t> waiting;  ///< bytes of events, as was told last
  std::set<ConnectionId> stuck;                 ///< connections whose reader is slow
  std::set<ConnectionId> closed;
};

/// `Lane` is fakes::RecordingLane or fakes::InlineHostLane.
template <typename Lane>
class RpcHarness {
 public:
  explicit RpcHarness(RpcLimits limits = {}, engine::EngineOptions options = {})
      : engine(
            with_record(std::move(options), limits),
            engine::Lanes(lane, &gpus),
            planner,
            [this](const engine::Event& event) { dispatcher->on_event(event); },
            engine_metrics
        ) {
    ServerIdentity identity{"0.1.0", "00000000deadbeef", "boot", 77, [this] {
                              now += every_look;
                              return ServerMoment{now, seconds(now - start), draining};
                            }};
    dispatcher = std::make_unique<Dispatcher>(
        engine,
        outbox,
        std::move(identity),
        limits,
        [this](const std::string& level) -> Result<std::string> { return std::exchange(log_level, level); },
        [this](const Holder& caller, engine::Reply<DoctorAnswer> reply) {
          examined_for.push_back(caller);
          examinations.push_back(std::move(reply));
        },
        [this](const std::optional<std::string>& job, const engine::Reply<DumpAnswer>& reply) { reply(dumped(job)); },
        metrics
    );
    engine.advance(now);
  }

  ~RpcHarness() { dispatcher.reset(); }  // its connections hold shares of the engine's budget

  static engine::EngineOptions with_record(engine::EngineOptions options, const RpcLimits& limits) {
    options.encode_report = report_encoder(limits.message_bytes);
    options.limits.declared_bytes = limits.engine.declared_bytes;
    return options;
  }

  static Peer local_peer() { return {true, true, 1000, 4242}; }

  void open(ConnectionId connection, Peer peer = local_peer()) { dispatcher->on_open(connection, peer); }

  /// Hands the text in and runs planner and lane until nothing is left to do.
  void send(ConnectionId connection, const std::string& text) {
    dispatcher->on_text(connection, text);
    pump();
  }

  /// Sends a request and gives its reply.
  Json call(ConnectionId connection, const std::string& method, const Json& params) {
    request(connection, method, params);
    const std::string text = outbox.take(connection);
    return text.empty() ? Json() : Json::parse(text);
  }

  /// Sends a request; the id is a number that counts up.
  void request(ConnectionId connection, const std::string& method, const Json& params) {
    send(connection, Json{{"jsonrpc", "2.0"}, {"id", ++last_id}, {"method", method}, {"params", params}}.dump());
  }

  Json initialize(ConnectionId connection) {
    return call(
        connection,
        "session.initialize",
        {{"protocol", 1},
         {"client", {{"name", "test"}, {"version", "1"}}},
         {"client_id", "client-" + std::to_string(connection)},
         {"pid", 1},
         {"boot_id", ""}}
    );
  }

  Json attach(ConnectionId connection, int rank, int world_size) {
    return call(
        connection,
        "job.attach",
        {{"job", "job"},
         {"rank", rank},
         {"world_size", world_size},
         {"meshes", {{{"name", "m"}, {"axes", {{{"name", "dp"}, {"size", world_size}}}}}}}}
    );
  }

  static Json tensor(const std::string& name, int numel = 8) {
    return {
        {"name", name},
        {"shape", {numel}},
        {"dtype", "float32"},
        {"mesh", "m"},
        {"placements", {{{"axes", {"dp"}}, {"kind", "partial"}, {"op", "mean"}, {"to", {{"kind", "replicate"}}}}}},
    };
  }

  /// Opens, initializes, attaches, allocates and sends the declaration; its answer is left in the outbox.
  void start_rank(ConnectionId connection, int rank, int world_size) {
    open(connection);
    initialize(connection);
    attach(connection, rank, world_size);
    const Json grant = call(connection, "buffers.allocate", {{"bytes", 4096}, {"device", "cpu"}});
    request(
        connection,
        "gradients.declare",
        {{"buffer", grant["result"]["buffer"]}, {"tensors", {tensor("a"), tensor("b")}}}
    );
  }

  /// As a daemon does that keeps its dumps in /dumps, and writes none.
  Result<DumpAnswer> dumped(const std::optional<std::string>& job) {
    if (dumps_off) {
      return make_error(ErrorCode::InvalidRequest, "blackbox.folder is \"off\": there are no dumps");
    }
    DumpAnswer answer;
    for (const engine::JobKey& key : engine.recorded_jobs()) {
      if (!job || key.second == *job) {
        answer.dumps.push_back({key.second, key.first, "/dumps/" + key.second + ".jsonl"});
      }
    }
    if (job && answer.dumps.empty()) {
      Error error = make_error(ErrorCode::UnknownJob, "no job '" + *job + "' is known here");
      error.path = "job";
      error.job = *job;
      return error;
    }
    return answer;
  }

  /// Answers who waits for an examination with `examination`.
  void end_examinations() {
    for (const auto& reply : std::exchange(examinations, {})) {
      reply(examination);
    }
  }

  void pump() {
    end_examinations();
    bool busy = true;
    while (busy) {
      busy = pump_lane(lane) || gpus.answer_next([this](device::LaneId id, device::LaneReport report) {
        engine.on_lane_report(id, std::move(report));
      });
      while (!planner.requests.empty()) {
        busy = true;
        engine.on_plan(planner.plan_next());
      }
    }
  }

  void pass(Milliseconds time) {
    now += time;
    engine.advance(now);
    pump();
  }

  const TimePoint start{std::chrono::seconds(1000)};
  TimePoint now = start;
  Milliseconds every_look{0};  ///< that the clock goes on whenever it is looked at
  bool draining = false;
  bool dumps_off = false;
  std::string log_level = "info";
  Result<DoctorAnswer> examination = DoctorAnswer{
      {{DoctorFinding::Level::Ok, "file descriptors: 1048576"},
       {DoctorFinding::Level::Problem,
        "GPU-5a4d2c1e-0000-4000-8000-000000000001 is in compute mode exclusive process: a trainer and a worker cannot "
        "use it together",
        "nvidia-smi -i GPU-5a4d2c1e-0000-4000-8000-000000000001 -c DEFAULT"}},
      false,
      {"GPU-5a4d2c1e-0000-4000-8000-000000000001"}};
  std::vector<Holder> examined_for;
  std::vector<engine::Reply<DoctorAnswer>> examinations;  ///< that wait
  int last_id = 0;
  RecordingOutbox outbox;
  prometheus::Registry registry;
  RpcMetrics metrics{registry};
  engine::EngineMetrics engine_metrics{registry};
  fakes::InlinePlanner planner;
  Lane lane;
  fakes::RecordingGpus gpus;
  std::unique_ptr<Dispatcher> dispatcher;
  engine::Engine engine;

 private:
  template <typename L>
  bool pump_lane(L& host_lane) {
    if constexpr (requires { host_lane.commands; }) {
      if (host_lane.commands.empty()) {
        return false;
      }
      engine.on_lane_report(device::kHostLane, host_lane.answer_next());
      return true;
    } else {
      device::LaneReport report;
      if (!host_lane.wait_report(report)) {
        return false;
      }
      engine.on_lane_report(device::kHostLane, std::move(report));
      return true;
    }
  }
};

}  // namespace gradsync::rpc
