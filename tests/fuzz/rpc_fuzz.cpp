// A daemon without sockets: dispatcher, engine and planner are real, the lane only answers. The input is a world and
// what happens to it, one line each:
//   none | alone | pair | planned | stats   the world (first line; absent: alone), see `World`
//   {...}  >{...}                           any text as a message of the first or the second connection
//   !close !>close !exit !>exit             a connection or its process ends
//   !fetch !give  (also !>)                 the fd socket: the last token of the connection, with nothing or with the
//                                           descriptor that it fetched last
//   !advance 5000                           milliseconds pass
//   !hold !go                               planner and lane stop, and go on
//   !fail !drain                            reductions fail from now on; the daemon begins to shut down
// Nothing may crash, every reply must itself be strict JSON, and when everyone has gone nothing may be left over: no
// call, no job, no mapped buffer.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_gpus.hpp"
#include "fakes/recording_lane.hpp"
#include "fuzz/fuzz.hpp"
#include "rpc/dispatcher.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/metrics.hpp"
#include "rpc/wire/wire_blackbox.hpp"
#include "rpc/wire/wire_doctor.hpp"

#include <spdlog/spdlog.h>

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

class CheckingOutbox : public rpc::Outbox {
 public:
  void note_waiting(rpc::ConnectionId connection, std::size_t) override { REQUIRE(open[connection]); }

  void send(rpc::ConnectionId connection, std::string text) override {
    REQUIRE(open[connection]);
    REQUIRE(rpc::read_json(text, 64).has_value());
    constexpr std::string_view kToken = R"("token":")";
    if (const std::size_t at = text.find(kToken); at != std::string::npos) {
      token[connection] = text.substr(at + kToken.size(), 32);
    }
  }

  [[nodiscard]] bool drained(rpc::ConnectionId) const override { return true; }

  void close(rpc::ConnectionId, std::string) override {}

  // By connection:
  bool open[3] = {};
  std::string token[3];  ///< the last one given out
};

/// So small that a handful of messages reaches them, and memory never runs out.
rpc::RpcLimits small_limits() {
  rpc::RpcLimits limits;
  limits.engine.sessions = 4;
  limits.engine.buffers_per_session = 3;
  limits.engine.arena_bytes = 1u << 16;
  limits.engine.tensors = 64;
  limits.engine.world_size = 8;
  limits.engine.declared_bytes = 1u << 15;
  limits.declare_pages = 4;
  limits.subscriptions = 2;
  limits.event_queue = 2;
  return limits;
}

engine::EngineOptions engine_options(const rpc::RpcLimits& limits) {
  engine::EngineOptions options;
  options.limits = limits.engine;
  options.history = 4;
  return options;
}

class World {
 public:
  explicit World(std::string_view kind)
      : dispatcher_(std::make_unique<rpc::Dispatcher>(
            engine_,
            outbox_,
            rpc::ServerIdentity{
                "0",
                "00000000deadbeef",
                "b",
                1,
                [this] {
                  return rpc::ServerMoment{now_, 1.0, draining_};
                }},
            limits_,
            [](const std::string&) -> Result<std::string> { return std::string("info"); },
            [](const Holder&, const engine::Reply<rpc::DoctorAnswer>& reply) { reply(rpc::DoctorAnswer{}); },
            [](const std::optional<std::string>&, const engine::Reply<rpc::DumpAnswer>& reply) {
              reply(rpc::DumpAnswer{});
            },
            metrics_
        )) {
    engine_.advance(now_);
    open(1);
    open(2);
    if (kind == "none") {
      return;
    }
    const bool pair = kind != "alone";
    attach(1, 0, pair ? 2 : 1);
    if (pair) {
      attach(2, 1, 2);
    }
    if (kind == "planned" || kind == "stats") {
      declare(1, kind == "stats");
      declare(2, kind == "stats");
    }
  }

  void happen(std::string_view line) {
    const bool second = line.starts_with(">") || line.starts_with("!>");
    const rpc::ConnectionId on = second ? 2 : 1;
    if (line.starts_with("!")) {
      event(on, line.substr(second ? 2 : 1));
    } else {
      const std::string_view text = line.substr(second ? 1 : 0);
      static_cast<void>(dispatcher_->on_post({true, false, 1000, 7}, text));
      say(on, text);
    }
  }

  /// Everyone goes, and no deadline is left: nothing may wait for ever.
  void end() {
    event(1, "close");
    event(2, "close");
    event(1, "exit");
    event(2, "exit");
    event(1, "go");
    for (int i = 0; i < 64 && engine_.next_deadline(); ++i) {
      pass(std::max(*engine_.next_deadline() - now_, TimePoint::duration{}));
    }
    REQUIRE(engine_.idle());
    REQUIRE(engine_.status(std::nullopt).empty());
    REQUIRE(mapped_.empty());
    for (const auto& [id, buffers] : mapped_by_gpus_) {
      REQUIRE(buffers.empty() || !gpus_.lanes.contains(id) || gpus_.lanes.at(id)->lost);
    }
  }

 private:
  static constexpr const char* kNames[] = {"", "1", "2"};

  static std::int64_t pid_of(rpc::ConnectionId on) { return static_cast<std::int64_t>(6 + on); }

  void open(rpc::ConnectionId on) {
    dispatcher_->on_open(on, {true, true, 1000, pid_of(on)});
    outbox_.open[on] = true;
    alive_[on] = true;
  }

  void attach(rpc::ConnectionId on, int rank, int world_size) {
    const std::string name = kNames[on];
    say(on,
        R"({"jsonrpc":"2.0","id":"i","method":"session.initialize","params":{"protocol":1,)"
        R"("client":{"name":"f","version":"1"},"client_id":"f)" +
            name + R"(","pid":1,"boot_id":""}})");
    say(on,
        R"({"jsonrpc":"2.0","id":"a","method":"job.attach","params":{"job":"j","rank":)" + std::to_string(rank) +
            R"(,"world_size":)" + std::to_string(world_size) +
            R"(,"meshes":[{"name":"m","axes":[{"name":"dp","size":)" + std::to_string(world_size) + "}]}]}}");
    say(on, R"({"jsonrpc":"2.0","id":"b","method":"buffers.allocate","params":{"bytes":4096,"device":"cpu"}})");
  }

  void declare(rpc::ConnectionId on, bool stats) {
    const std::string placement =
        stats ? R"("kind":"replicate")" : R"("kind":"partial","op":"mean","to":{"kind":"replicate"})";
    const auto tensor = [&](const char* name, int size) {
      return R"({"name":")" + std::string(name) + R"(","shape":[)" + std::to_string(size) +
             R"(],"dtype":"float32","mesh":"m","placements":[{"axes":["dp"],)" + placement + "}]}";
    };
    say(on,
        R"({"jsonrpc":"2.0","id":"d","method":"gradients.declare","params":{"buffer":)" + std::string(kNames[on]) +
            R"(,"options":{"data_path":")" + (stats ? "stats" : "arena") +
            R"(","clip":[{"group":"all","max_norm":1.0}]},"tensors":[)" + tensor("a", 2) + "," + tensor("b", 3) +
            "]}}");
  }

  void event(rpc::ConnectionId on, std::string_view name) {
    if (name == "close" && outbox_.open[on]) {
      outbox_.open[on] = false;
      if (!dispatcher_->on_close(on)) {
        alive_[on] = false;  // nobody will tell of its end
      }
    } else if (name == "exit" && alive_[on]) {
      alive_[on] = false;
      dispatcher_->on_process_exit(on);
    } else if (name == "fetch" || name == "give") {
      UniqueFd given(name == "give" && arena_[on].valid() ? ::fcntl(arena_[on].get(), F_DUPFD_CLOEXEC, 0) : -1);
      auto taken = engine_.exchange_fd(outbox_.token[on], 1000, pid_of(on), std::move(given));
      if (taken && taken->fd.valid()) {
        arena_[on] = std::move(taken->fd);
      }
    } else if (name == "hold" || name == "go") {
      held_ = name == "hold";
    } else if (name == "fail") {
      lane_.fail_reductions = true;
    } else if (name == "lose" || name == "refuse") {
      for (auto& [id, lane] : gpus_.lanes) {
        (name == "lose" ? lane->lost : lane->refuse_maps) = true;
      }
    } else if (name == "drain") {
      draining_ = true;
      engine_.drain();
    } else if (name.starts_with("advance ")) {
      std::uint32_t milliseconds = 0;
      std::from_chars(name.data() + 8, name.data() + name.size(), milliseconds);
      pass(Milliseconds(milliseconds));
    }
    pump();
  }

  void say(rpc::ConnectionId on, std::string_view text) {
    if (outbox_.open[on]) {
      dispatcher_->on_text(on, text);
      pump();
      while (outbox_.open[on] && dispatcher_->has_more(on)) {
        dispatcher_->go_on(on);
        pump();
      }
      dispatcher_->on_drained(on);
    }
  }

  void pass(TimePoint::duration time) {
    now_ += time;
    engine_.advance(now_);
    pump();
  }

  void pump() {
    while (!held_ && (!planner_.requests.empty() || !lane_.commands.empty())) {
      if (!planner_.requests.empty()) {
        engine_.on_plan(planner_.plan_next());
      } else {
        note_mapped(lane_.commands.front());
        engine_.on_lane_report(device::kHostLane, lane_.answer_next());
      }
    }
    while (!held_ && answer_of_a_gpu()) {
    }
  }

  bool answer_of_a_gpu() {
    for (const auto& [id, lane] : gpus_.lanes) {
      if (!lane->commands.empty()) {
        note_mapped(id, *lane);
        const device::LaneId lane_id = id;  // the report may end the lane
        device::LaneReport report = lane->answer_next();
        engine_.on_lane_report(lane_id, std::move(report));
        while (!planner_.requests.empty()) {
          engine_.on_plan(planner_.plan_next());
        }
        return true;
      }
    }
    return false;
  }

  /// What a worker has mapped goes with it.
  void note_mapped(device::LaneId id, const fakes::RecordingLane& lane) {
    const auto* map = std::get_if<device::MapBuffer>(&lane.commands.front());
    const auto* unmap = std::get_if<device::UnmapBuffer>(&lane.commands.front());
    if (lane.lost) {
      mapped_by_gpus_.erase(id);
    } else if (map != nullptr && !lane.refuse_maps) {
      REQUIRE(map->exported);
      REQUIRE(mapped_by_gpus_[id].insert(map->buffer).second);
    } else if (unmap != nullptr) {
      mapped_by_gpus_[id].erase(unmap->buffer);
    }
  }

  void note_mapped(const device::LaneCommand& command) {
    if (const auto* map = std::get_if<device::MapBuffer>(&command)) {
      REQUIRE(map->fd.valid() && !map->exported);
      REQUIRE(mapped_.insert(map->buffer).second);
    } else if (const auto* unmap = std::get_if<device::UnmapBuffer>(&command)) {
      mapped_.erase(unmap->buffer);
    }
  }

  rpc::RpcLimits limits_ = small_limits();
  TimePoint now_{};
  bool draining_ = false;
  bool held_ = false;
  bool alive_[3] = {};
  UniqueFd arena_[3];
  std::set<device::BufferId> mapped_;
  std::map<device::LaneId, std::set<device::BufferId>> mapped_by_gpus_;
  CheckingOutbox outbox_;
  prometheus::Registry registry_;
  rpc::RpcMetrics metrics_{registry_};
  engine::EngineMetrics engine_metrics_{registry_};
  fakes::RecordingLane lane_;
  fakes::RecordingGpus gpus_;
  fakes::InlinePlanner planner_;
  engine::Engine engine_{
      engine_options(limits_),
      engine::Lanes(lane_, &gpus_),
      planner_,
      [this](const engine::Event& event) {
        if (dispatcher_) {
          dispatcher_->on_event(event);
        }
      },
      engine_metrics_};
  std::unique_ptr<rpc::Dispatcher> dispatcher_;
};

bool is_world(std::string_view line) {
  return line == "none" || line == "alone" || line == "pair" || line == "planned" || line == "stats";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool kQuiet = (spdlog::set_level(spdlog::level::off), true);
  static_cast<void>(kQuiet);
  std::string_view rest = fuzz::text_of(data, size);
  std::string_view first = rest.substr(0, rest.find('\n'));
  World world(is_world(first) ? (static_cast<void>(fuzz::next_piece(rest, '\n')), first) : "alone");
  for (int lines = 0; !rest.empty() && lines < 64; ++lines) {
    world.happen(fuzz::next_piece(rest, '\n'));
  }
  world.end();
  return 0;
}
