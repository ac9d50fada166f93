#pragma once
// An engine with a recording lane, an inline planner and a clock that moves when told.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_lane.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::engine {

struct Outcome {
  int calls = 0;
  std::optional<StepReport> report;
  std::optional<Error> error;
};

class Harness {
 public:
  explicit Harness(EngineOptions options = {})
      : engine(
            std::move(options), Lanes(lane), planner, [this](const Event& event) { events.push_back(event); }, metrics
        ) {
    engine.advance(now);
  }

  static plan::TensorDeclaration tensor(const std::string& name, std::int64_t numel = 8) {
    plan::TensorDeclaration declaration;
    declaration.name = name;
    declaration.shape = declaration.local_shape = {numel};
    declaration.mesh = "default";
    declaration.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
    return declaration;
  }

  static plan::RankDeclaration declaration(std::vector<plan::TensorDeclaration> tensors) {
    plan::RankDeclaration all;
    all.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
    all.tensors = std::move(tensors);
    return all;
  }

  AttachRequest request(std::int64_t rank, std::int64_t world_size) const {
    AttachRequest request;
    request.job = "job";
    request.uid = 1000;
    request.pid = 100 + rank;
    request.client_id = "client-" + std::to_string(rank) + "-" + std::to_string(generation);
    request.rank = rank;
    request.world_size = world_size;
    request.meshes = {{"default", {{"dp", world_size}}, {}}};
    return request;
  }

  AttachResult attach(std::int64_t rank, std::int64_t world_size) {
    const Result<AttachResult> result = engine.attach(request(rank, world_size));
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    sessions[rank] = result->session;
    keys[rank] = {result->epoch, result->attempt};
    return *result;
  }

  std::uint64_t allocate(std::int64_t rank, std::uint64_t bytes = 1 << 16) {
    const Result<BufferGrant> grant = engine.allocate(sessions.at(rank), bytes);
    EXPECT_TRUE(grant) << (grant ? "" : grant.error().message);
    tokens[rank] = grant->token;
    return grant->buffer;
  }

  struct Declared {
    int calls = 0;
    std::optional<DeclareResult> result;
    std::optional<Error> error;
  };

  std::shared_ptr<Declared> declare(
      std::int64_t rank, plan::RankDeclaration what, std::optional<std::uint64_t> buffer = {}
  ) {
    auto declared = std::make_shared<Declared>();
    DeclareRequest request;
    request.declaration = std::move(what);
    request.buffer = buffer ? *buffer : allocate(rank);
    engine.declare(sessions.at(rank), std::move(request), [this, rank, declared](Result<DeclareResult> result) {
      ++declared->calls;
      if (result) {
        declared->result = *result;
        keys[rank] = {result->epoch, result->attempt};
      } else {
        declared->error = result.error();
      }
    });
    return declared;
  }

  /// Runs planner and lane until nothing is left to do.
  void pump() {
    while (!planner.requests.empty() || !lane.commands.empty()) {
      if (!planner.requests.empty()) {
        engine.on_plan(planner.plan_next());
      } else {
        engine.on_lane_report(device::kHostLane, lane.answer_next());
      }
    }
  }

  /// Ranks 0…n−1 attached and declared the same tensors.
  void start(std::int64_t world_size, std::vector<plan::TensorDeclaration> tensors = {tensor("a"), tensor("b")}) {
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      attach(rank, world_size);
    }
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      declare(rank, declaration(tensors));
    }
    pump();
  }

  std::shared_ptr<Outcome> finish(std::int64_t rank, std::int64_t step, FinishRequest request = ready_all()) {
    auto outcome = std::make_shared<Outcome>();
    request.key = keys.at(rank);
    request.step = step;
    engine.finish(sessions.at(rank), std::move(request), listener(rank, outcome));
    return outcome;
  }

  Reply<RankReport> listener(std::int64_t rank, std::shared_ptr<Outcome> outcome) {
    return [this, rank, outcome](const Result<RankReport>& result) {
      ++outcome->calls;
      if (result) {
        outcome->report = *result->report;
        keys[rank] = {result->report->epoch, result->report->next_attempt};
      } else {
        outcome->error = result.error();
        if (result.error().epoch) {
          keys[rank] = {*result.error().epoch, *result.error().attempt};
        }
      }
    };
  }

  static FinishRequest ready_all() {
    FinishRequest request;
    request.ready_all = true;
    return request;
  }

  void ready(std::int64_t rank, std::uint32_t bucket) {
    engine.bucket_ready(sessions.at(rank), {keys.at(rank), bucket});
  }

  void pass(Milliseconds time) {
    now += time;
    engine.advance(now);
  }

  TimePoint now{std::chrono::seconds(1000)};
  int generation = 0;
  fakes::RecordingLane lane;
  fakes::InlinePlanner planner;
  prometheus::Registry registry;
  EngineMetrics metrics{registry};
  std::vector<Event> events;
  Engine engine;
  std::map<std::int64_t, SessionId> sessions;
  std::map<std::int64_t, StepKey> keys;
  std::map<std::int64_t, std::string> tokens;
};

}  // namespace gradsync::engine
