// Two jobs, each on a lane of its own.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_lane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

constexpr device::LaneId kOther = 5;

/// The ranks of one job: what they were answered last.
struct Trainers {
  std::string job;
  std::vector<SessionId> sessions;
  std::vector<DeclareResult> declared;
  std::vector<Error> refused;  ///< declarations
  StepKey key;
  int done = 0;  ///< answers with a report
  std::vector<Error> failed;
};

class LanesTest : public ::testing::Test {
 protected:
  LanesTest() { engine.advance(now); }

  static plan::RankDeclaration declaration() {
    plan::RankDeclaration declared;
    declared.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
    plan::TensorDeclaration& tensor = declared.tensors.own().emplace_back();
    tensor.name = "weight";
    tensor.shape = tensor.local_shape = {8};
    tensor.mesh = "default";
    tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
    return declared;
  }

  /// A rank on each of the lanes, which have declared.
  std::unique_ptr<Trainers> start(const std::string& job, const std::vector<device::LaneId>& lane_of_rank) {
    auto trainers = std::make_unique<Trainers>();
    trainers->job = job;
    const auto world_size = static_cast<std::int64_t>(lane_of_rank.size());
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      AttachRequest request;
      request.job = job;
      request.uid = 1000;
      request.pid = 100 + rank;
      request.client_id = job + std::to_string(rank);
      request.rank = rank;
      request.world_size = world_size;
      request.meshes = {{"default", {{"dp", world_size}}, {}}};
      trainers->sessions.push_back(engine.attach(request)->session);
    }
    for (std::size_t rank = 0; rank < lane_of_rank.size(); ++rank) {
      DeclareRequest request;
      request.declaration = declaration();
      request.buffer = engine.allocate(trainers->sessions[rank], 4096, lane_of_rank[rank])->buffer;
      engine.declare(
          trainers->sessions[rank],
          std::move(request),
          [given = trainers.get()](const Result<DeclareResult>& result) {
            if (result) {
              given->declared.push_back(*result);
              given->key = {result->epoch, result->attempt};
            } else {
              given->refused.push_back(result.error());
            }
          }
      );
    }
    while (!planner.requests.empty()) {
      engine.on_plan(planner.plan_next());
    }
    return trainers;
  }

  void finish(Trainers& trainers) {
    const StepKey key = trainers.key;
    for (const SessionId session : trainers.sessions) {
      FinishRequest request;
      request.key = key;
      request.ready_all = true;
      engine.finish(session, std::move(request), [&trainers](const Result<RankReport>& result) {
        if (result) {
          ++trainers.done;
          trainers.key.attempt = result->report->next_attempt;
        } else {
          trainers.failed.push_back(result.error());
        }
      });
    }
  }

  void answer(device::LaneId id) {
    (id == kOther ? other : host).answer_all([&](device::LaneReport report) {
      engine.on_lane_report(id, std::move(report));
    });
  }

  Lanes both() {
    Lanes lanes(host);
    lanes.add(kOther, other);
    return lanes;
  }

  TimePoint now{std::chrono::seconds(1000)};
  fakes::RecordingLane host;
  fakes::RecordingLane other;
  fakes::InlinePlanner planner;
  prometheus::Registry registry;
  EngineMetrics metrics{registry};
  Engine engine{EngineOptions{}, both(), planner, [](const Event&) {}, metrics};
};

TEST_F(LanesTest, a_lane_gets_the_commands_of_its_own_jobs) {
  const auto a = start("a", {device::kHostLane, device::kHostLane});
  const auto b = start("b", {kOther, kOther});
  for (const fakes::RecordingLane* lane : {&host, &other}) {
    EXPECT_EQ(lane->count<device::MapBuffer>(), 2u);
    EXPECT_EQ(lane->count<device::LoadPlan>(), 1u);
  }
  answer(kOther);
  EXPECT_EQ(b->declared.size(), 2u);
  EXPECT_EQ(a->declared.size(), 0u) << "its lane has not loaded its plan";
  answer(device::kHostLane);
  EXPECT_EQ(a->declared.size(), 2u);

  finish(*a);
  finish(*b);
  EXPECT_EQ(host.count<device::FinishStep>(), 1u);
  EXPECT_EQ(other.count<device::FinishStep>(), 1u);
  answer(kOther);
  EXPECT_EQ(b->done, 2);
  EXPECT_EQ(a->done, 0) << "its lane still owes two reports";
  EXPECT_FALSE(engine.idle());
  answer(device::kHostLane);
  EXPECT_EQ(a->done, 2);
  EXPECT_TRUE(engine.idle());

  for (const SessionId session : b->sessions) {
    ASSERT_TRUE(engine.detach(session));
  }
  EXPECT_EQ(other.count<device::UnloadPlan>(), 1u);
  EXPECT_EQ(other.count<device::UnmapBuffer>(), 2u);
  EXPECT_TRUE(host.commands.empty());
}

TEST_F(LanesTest, a_lane_is_wide_while_the_ranks_beside_it_wait) {
  const auto a = start("a", {device::kHostLane});
  const auto b = start("b", {kOther});
  answer(device::kHostLane);
  answer(kOther);
  EXPECT_FALSE(host.wide);
  EXPECT_FALSE(other.wide);
  finish(*b);
  EXPECT_FALSE(host.wide);
  EXPECT_TRUE(other.wide);
}

TEST_F(LanesTest, a_lost_lane_fails_only_the_jobs_on_it) {
  const auto a = start("a", {device::kHostLane, device::kHostLane});
  const auto b = start("b", {kOther, kOther});
  answer(device::kHostLane);
  answer(kOther);
  finish(*a);
  finish(*b);
  other.fail_reductions = true;
  answer(kOther);
  ASSERT_EQ(b->failed.size(), 2u);
  EXPECT_EQ(b->failed.front().code, ErrorCode::StepFailed);
  EXPECT_EQ(other.aborted.size(), 1u);
  EXPECT_TRUE(host.aborted.empty());
  EXPECT_TRUE(a->failed.empty());
  answer(device::kHostLane);
  EXPECT_EQ(a->done, 2);
}

TEST_F(LanesTest, a_lane_that_hangs_is_not_excused_by_the_reports_of_another) {
  const auto a = start("a", {device::kHostLane, device::kHostLane});
  const auto b = start("b", {kOther, kOther});
  answer(device::kHostLane);
  answer(kOther);
  finish(*a);
  engine.process_exited(a->sessions[1]);  // its lane is to stop, and does not
  now += std::chrono::seconds(2);
  engine.advance(now);
  finish(*b);
  answer(kOther);
  EXPECT_EQ(b->done, 2);
  EXPECT_TRUE(a->failed.empty());
  now += std::chrono::seconds(1);
  engine.advance(now);
  ASSERT_FALSE(a->failed.empty());
  EXPECT_THAT(a->failed.front().message, HasSubstr("the lane did not stop"));
}

TEST_F(LanesTest, a_plan_on_two_lanes_is_refused) {
  const auto trainers = start("a", {device::kHostLane, kOther});
  ASSERT_EQ(trainers->refused.size(), 2u);
  EXPECT_EQ(trainers->refused.front().code, ErrorCode::UnsupportedPlacement);
  EXPECT_TRUE(host.commands.empty());
  EXPECT_TRUE(other.commands.empty());
}

TEST_F(LanesTest, a_report_of_another_lane_is_a_defect) {
  const auto a = start("a", {device::kHostLane});
  answer(device::kHostLane);
  finish(*a);
  EXPECT_DEATH(engine.on_lane_report(kOther, host.answer_next()), "a lane reports on plans that it was given");
}

TEST_F(LanesTest, a_lane_has_an_id_of_its_own) {
  EXPECT_DEATH(both().add(kOther, host), "each lane has an id of its own");
  EXPECT_DEATH(static_cast<void>(both()[6]), "a lane is added before anything is given to it");
}

}  // namespace
}  // namespace gradsync::engine
