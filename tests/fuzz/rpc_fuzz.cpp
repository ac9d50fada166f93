// Any bytes: the strict reader, the envelope, dispatch over a real engine, and the decoding of a declaration. Nothing
// may crash, every reply must itself be strict JSON, and a declaration that was read must be written back readable.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_lane.hpp"
#include "rpc/dispatcher.hpp"
#include "rpc/json_tape.hpp"
#include "rpc/metrics.hpp"
#include "rpc/wire_declare.hpp"

#include <cstdlib>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

class CheckingOutbox : public rpc::Outbox {
 public:
  void send(rpc::ConnectionId, std::string text) override { require(rpc::read_json(text, 64).has_value()); }

  [[nodiscard]] bool drained(rpc::ConnectionId) const override { return true; }

  void close(rpc::ConnectionId, std::string) override {}
};

struct World {
  World() {
    dispatcher.on_open(1, {true, true, 1000, 7});
    say(R"({"jsonrpc":"2.0","id":"i","method":"session.initialize","params":{"protocol":1,"client":{"name":"f","version":"1"},"client_id":"f","pid":1,"boot_id":""}})"
    );
    say(R"({"jsonrpc":"2.0","id":"a","method":"job.attach","params":{"job":"j","rank":0,"world_size":1,"meshes":[{"name":"m","axes":[{"name":"dp","size":1}]}]}})"
    );
    say(R"({"jsonrpc":"2.0","id":"b","method":"buffers.allocate","params":{"bytes":4096,"device":"cpu"}})");
  }

  void say(std::string_view text) {
    dispatcher.on_text(1, text);
    while (!planner.requests.empty() || !lane.commands.empty()) {
      if (!planner.requests.empty()) {
        engine.on_plan(planner.plan_next());
      } else {
        engine.on_lane_report(lane.answer_next());
      }
    }
  }

  CheckingOutbox outbox;
  prometheus::Registry registry;
  rpc::RpcMetrics metrics{registry};
  engine::EngineMetrics engine_metrics{registry};
  fakes::RecordingLane lane;
  fakes::InlinePlanner planner;
  engine::Engine engine{{}, lane, planner, [](const engine::Event&) {}, engine_metrics};
  rpc::Dispatcher dispatcher{
      engine,
      outbox,
      {"0", "0", "0", 1, {}},
      {},
      [](const std::string&) -> Result<std::string> { return std::string("info"); },
      metrics};
};

void decode_declaration(std::string_view text) {
  const Result<rpc::Tape> tape = rpc::read_json(text, 32);
  if (!tape) {
    return;
  }
  rpc::DeclareParams params;
  if (!rpc::read_params(tape->root(), params)) {
    return;
  }
  const std::string written = rpc::to_json(params);
  const Result<rpc::Tape> again = rpc::read_json(written, 32);
  rpc::DeclareParams copy;
  require(again.has_value() && rpc::read_params(again->root(), copy).has_value());
  require(rpc::to_json(copy) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  decode_declaration(text);
  World world;
  world.say(text);
  static_cast<void>(world.dispatcher.on_post({true, false, 1000, 7}, text));
  return 0;
}
