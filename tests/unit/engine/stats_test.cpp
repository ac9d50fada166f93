// Data path `stats` through the engine: tables instead of arenas, no buckets, one finish.

#include "engine/plan/lane_plan.hpp"
#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

plan::TensorDeclaration placed(const std::string& name, std::int64_t numel, std::vector<plan::Placement> placements) {
  plan::TensorDeclaration tensor = Harness::tensor(name, numel);
  tensor.placements = std::move(placements);
  return tensor;
}

/// 'w' is cut in two over dp, 'b' is on both ranks; in the order given.
plan::RankDeclaration declaration(bool reversed = false) {
  plan::TensorDeclaration w = placed("w", 8, {{{"dp"}, plan::Shard{0}}});
  w.local_shape = {4};
  w.layer = "first";
  std::vector<plan::TensorDeclaration> tensors{w, placed("b", 8, {{{"dp"}, plan::Replicate{}}})};
  if (reversed) {
    std::swap(tensors[0], tensors[1]);
  }
  plan::RankDeclaration all = Harness::declaration(std::move(tensors));
  all.options.data_path = plan::DataPath::Stats;
  return all;
}

class StatsEngine : public ::testing::Test {
 protected:
  /// Rank 1 declares in another order than rank 0.
  void start(std::uint64_t bytes = 128) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      world.attach(rank, 2);
    }
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      declared.push_back(world.declare(rank, declaration(rank == 1), world.allocate(rank, bytes)));
    }
    while (!world.planner.requests.empty()) {
      world.engine.on_plan(world.planner.plan_next());
    }
    for (const device::LaneCommand& command : world.lane.commands) {
      if (const auto* load = std::get_if<device::LoadStats>(&command)) {
        loaded = load->layout;
      }
    }
    world.pump();
  }

  std::shared_ptr<Outcome> step(std::int64_t number) {
    world.finish(0, number);
    const auto outcome = world.finish(1, number);
    world.pump();
    return outcome;
  }

  static EngineOptions options() {
    EngineOptions options;
    options.check_every = 5;
    return options;
  }

  Harness world{options()};
  std::vector<std::shared_ptr<Harness::Declared>> declared;
  std::optional<device::StatsPlan> loaded;
};

TEST_F(StatsEngine, the_lane_gets_rows_and_no_buckets) {
  start();
  ASSERT_TRUE(declared[0]->result.has_value()) << declared[0]->error->message;
  EXPECT_EQ(declared[0]->result->arena_bytes, 128);
  EXPECT_TRUE(declared[0]->result->check);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(world.lane.count<device::LoadPlan>(), 0);
  ASSERT_EQ(loaded->tensors.size(), 2);
  const device::StatsTensor& w = loaded->tensors[0];
  EXPECT_EQ(w.layer, 0);
  EXPECT_TRUE(w.counted);
  ASSERT_EQ(w.holders.size(), 2);
  EXPECT_EQ(w.holders[0].box, 0);
  EXPECT_EQ(w.holders[0].row, 0);
  EXPECT_EQ(w.holders[1].box, 1);
  EXPECT_EQ(w.holders[1].row, 1);
  EXPECT_EQ(w.holders[1].elements, 4);
  const device::StatsTensor& b = loaded->tensors[1];
  EXPECT_EQ(b.layer, -1);
  EXPECT_EQ(b.holders[0].row, 1);
  EXPECT_EQ(b.holders[1].row, 0);
  EXPECT_EQ(b.holders[1].box, 0);
  EXPECT_EQ(loaded->layers, 1);
}

TEST_F(StatsEngine, a_newcomer_that_changes_the_plan_makes_everybody_declare) {
  start();
  step(0);
  world.engine.process_exited(world.sessions.at(1));
  world.pump();
  ++world.generation;
  world.attach(1, 2);
  world.keys[0] = world.keys.at(1);
  const auto early = world.finish(0, 1);  // the survivor works for the new epoch already
  EXPECT_EQ(early->calls, 0);
  const auto newcomer = world.declare(1, declaration(false), world.allocate(1, 128));  // its rows in another order
  world.pump();
  ASSERT_EQ(early->calls, 1);
  ASSERT_TRUE(early->error);
  EXPECT_EQ(early->error->code, ErrorCode::StaleEpoch);
  EXPECT_THAT(early->error->message, HasSubstr("another plan"));
  EXPECT_EQ(newcomer->calls, 0) << "the survivors have to declare";
  const auto survivor = world.declare(0, declaration(false), world.allocate(0, 128));
  world.pump();
  ASSERT_TRUE(newcomer->result && survivor->result);
  EXPECT_EQ(survivor->result->epoch, 3u) << "no (epoch, attempt) is used twice";
  EXPECT_TRUE(step(1)->report);
}

TEST_F(StatsEngine, a_tied_copy_is_not_in_the_norm_set) {
  plan::RankDeclaration all = Harness::declaration(
      {placed("first", 8, {{{"dp"}, plan::Replicate{}}}), placed("copy", 8, {{{"dp"}, plan::Replicate{}}})}
  );
  all.options.data_path = plan::DataPath::Stats;
  all.tensors.own()[0].tied = all.tensors.own()[1].tied = "embedding";
  const Result<plan::Plan> plan = plan::plan_job(
      std::vector<const plan::RankDeclaration*>{&all, &all}, {{"default", {{"dp", 2}}, {}}}, plan::BucketSizes{}
  );
  ASSERT_TRUE(plan) << plan.error().message;
  const auto lane = std::get<device::StatsPlan>(lane_layout_of(*plan));
  EXPECT_TRUE(lane.tensors[0].counted);
  EXPECT_FALSE(lane.tensors[1].counted);
  ASSERT_EQ(lane.ties.size(), 1u);
  EXPECT_EQ(lane.ties[0].copy, 1u);
  EXPECT_EQ(lane.ties[0].counted, 0u);
  EXPECT_THAT(lane.ties[0].boxes, ElementsAre(0)) << "and must agree with what is counted";
}

TEST_F(StatsEngine, a_step_is_one_finish_with_the_stamp_of_the_attempt) {
  start();
  const auto first = world.finish(0, 7);
  EXPECT_THAT(world.lane.commands, IsEmpty());
  EXPECT_EQ(world.engine.status(std::nullopt)[0].state, "stepping");
  const auto second = world.finish(1, 7);
  ASSERT_EQ(world.lane.commands.size(), 1);
  EXPECT_THAT(world.engine.status(std::nullopt)[0].reason, HasSubstr("the tables of all ranks are filled"));
  world.lane.math.missing = {{1, {1}}};
  world.pump();
  ASSERT_TRUE(first->report && second->report);
  EXPECT_EQ(*first->report, *second->report);
  EXPECT_EQ(world.lane.finished.back().stamp, (std::uint64_t{1} << 32) + 1);
  const StepReport& report = *first->report;
  EXPECT_EQ(report.data_path, "stats");
  EXPECT_EQ(report.collectives, 0);
  ASSERT_EQ(report.missing.size(), 1);
  EXPECT_EQ(report.missing[0].tensor, "b");
  EXPECT_THAT(report.missing[0].ranks, ElementsAre(1));
  ASSERT_EQ(report.scalar_collectives.size(), 1);
  EXPECT_EQ(report.scalar_collectives[0].mesh, "default");
  EXPECT_THAT(report.scalar_collectives[0].axes, ElementsAre("dp"));
  EXPECT_EQ(report.scalar_collectives[0].length, 12);  // 6 for the clip group, 6 for the layer
  const JobStatus status = world.engine.status(std::nullopt)[0];
  EXPECT_EQ(status.data_path, "stats");
  EXPECT_EQ(status.buckets, 0);
  step(8);
  EXPECT_EQ(world.lane.finished.back().stamp, (std::uint64_t{1} << 32) + 2);
}

TEST_F(StatsEngine, fingerprints_are_due_in_the_first_three_steps_and_every_fifth) {
  start();
  std::vector<bool> due;
  for (std::int64_t number = 0; number < 11; ++number) {
    due.push_back(step(number)->report->check_next);
  }
  EXPECT_THAT(due, ElementsAre(true, true, false, false, true, false, false, false, false, true, false));
}

TEST_F(StatsEngine, a_norm_can_come_before_the_clip) {
  start();
  FinishRequest norm_only;
  norm_only.kind = FinishKind::NormOnly;
  const auto first = world.finish(0, 1, norm_only);
  world.finish(1, 1, norm_only);
  world.pump();
  ASSERT_TRUE(first->report.has_value());
  EXPECT_FALSE(world.lane.finished.back().apply);
  EXPECT_EQ(first->report->data_path, "stats");
  auto clipped = std::make_shared<Outcome>();
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    world.engine.clip(
        world.sessions.at(rank),
        {world.keys.at(rank), 1, std::nullopt, false, std::nullopt},
        world.listener(rank, clipped)
    );
  }
  world.pump();
  EXPECT_EQ(clipped->calls, 2);
  EXPECT_TRUE(clipped->report.has_value());
  EXPECT_EQ(world.lane.scaled.size(), 1);
}

TEST_F(StatsEngine, a_table_that_is_too_small_is_refused) {
  start(64);
  ASSERT_TRUE(declared[0]->error.has_value());
  EXPECT_EQ(declared[0]->error->code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(declared[0]->error->path, "buffer");
  EXPECT_EQ(declared[0]->error->rank, 0);
  EXPECT_THAT(declared[0]->error->message, HasSubstr("the table of rank 0 has 64 bytes"));
  EXPECT_THAT(declared[0]->error->message, HasSubstr("need 128"));
  EXPECT_THAT(declared[0]->error->hint, HasSubstr("64 bytes for each tensor"));
}

TEST_F(StatsEngine, nothing_is_called_unused_or_ready) {
  start();
  FinishRequest request = Harness::ready_all();
  request.unused = {0};
  const auto refused = world.finish(0, 1, request);
  ASSERT_TRUE(refused->error.has_value());
  EXPECT_EQ(refused->error->code, ErrorCode::InvalidParams);
  EXPECT_EQ(refused->error->path, "unused");
  EXPECT_THAT(refused->error->hint, HasSubstr("stamp 0"));
  request = {};
  request.ready = {0};
  EXPECT_EQ(world.finish(0, 1, request)->error->path, "ready");
  world.engine.tensor_unused(world.sessions.at(0), {world.keys.at(0), {0}});
  EXPECT_EQ(world.finish(0, 1)->error->path, "tensors");
}

TEST_F(StatsEngine, a_row_that_cannot_be_right_fails_the_step_by_name) {
  start();
  const auto first = world.finish(0, 1);
  const auto second = world.finish(1, 1);
  const auto command = std::get<device::FinishStep>(world.lane.commands.front());
  world.lane.commands.clear();
  device::Failed failed{command.plan, command.tag, 0, false, false, "tensor 1, rank 1: nan is 7, but 0 …"};
  failed.row = device::FailedRow{1, 1, "nan"};
  world.engine.on_lane_report(device::kHostLane, failed);
  for (const auto& outcome : {first, second}) {
    ASSERT_TRUE(outcome->error.has_value());
    EXPECT_EQ(outcome->error->code, ErrorCode::StepFailed);
    EXPECT_EQ(outcome->error->tensor, "b");
    EXPECT_EQ(outcome->error->rank, 1);
    EXPECT_EQ(outcome->error->path, "nan");
    EXPECT_THAT(outcome->error->message, HasSubstr("rank 1 wrote for 'b' cannot be right"));
    EXPECT_EQ(outcome->error->attempt, 1);
  }
  ASSERT_TRUE(step(1)->report.has_value());
  EXPECT_EQ(world.lane.finished.back().stamp, (std::uint64_t{1} << 32) + 2);
}

TEST_F(StatsEngine, the_stamp_of_another_epoch_is_another) {
  start();
  step(1);
  world.engine.process_exited(world.sessions.at(1));
  world.pump();
  ++world.generation;
  world.attach(1, 2);
  world.declare(1, declaration(true), world.allocate(1, 128));
  world.pump();
  world.keys[0] = world.keys[1];
  ASSERT_TRUE(step(2)->report.has_value());
  EXPECT_EQ(world.lane.finished.back().stamp, (std::uint64_t{2} << 32) + 1);
}

TEST_F(StatsEngine, a_rank_that_does_not_come_is_named_at_the_deadline) {
  start();
  FinishRequest request = Harness::ready_all();
  request.timeout = Milliseconds(1000);
  const auto outcome = world.finish(0, 1, request);
  world.pass(Milliseconds(1000));
  ASSERT_TRUE(outcome->error.has_value());
  EXPECT_EQ(outcome->error->code, ErrorCode::StepTimeout);
  EXPECT_THAT(outcome->error->ranks, ElementsAre(1));
}

}  // namespace
}  // namespace gradsync::engine
