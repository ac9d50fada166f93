#include "engine/plan/project_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two stages of two ranks each: ranks 0 and 1 hold bucket 0, ranks 2 and 3 bucket 1.
plan::Plan two_stages() {
  plan::Plan plan;
  plan.world_size = 4;
  plan.tensors.resize(2);
  plan.buckets.resize(2);
  plan.buckets[0].size_bytes = plan.buckets[1].size_bytes = 64;
  plan.layouts.resize(2);
  plan.layouts[0].bucket_rows = {{0}, {}};
  plan.layouts[1].bucket_rows = {{}, {0}};
  plan.layout_of = {0, 0, 1, 1};
  return plan;
}

plan::Plan two_stages_of_rows() {
  plan::Plan plan;
  plan.options.data_path = plan::DataPath::Stats;
  plan.world_size = 4;
  plan.tensors.resize(2);
  for (std::size_t tensor = 0; tensor < 2; ++tensor) {
    plan.tensors[tensor].declaration.name = "t" + std::to_string(tensor);
    plan.tensors[tensor].holdings.resize(2);
    plan.tensors[tensor].holdings[0].rank = static_cast<std::uint32_t>(2 * tensor);
    plan.tensors[tensor].holdings[1].rank = static_cast<std::uint32_t>(2 * tensor + 1);
  }
  return plan;
}

TEST(ProjectPlan, one_lane_has_the_whole_plan) {
  EXPECT_THAT(*project_plan(two_stages(), {7, 7, 7, 7}), ElementsAre(LaneShare{7, {0, 1}}));
  EXPECT_EQ(project_plan(two_stages(), {})->front().lane, device::kHostLane);
  EXPECT_THAT(*project_plan(two_stages_of_rows(), {7, 7, 7, 7}), ElementsAre(LaneShare{7, {}}));
}

TEST(ProjectPlan, a_bucket_goes_to_a_lane_of_the_ranks_that_hold_it) {
  EXPECT_THAT(*project_plan(two_stages(), {7, 7, 5, 5}), ElementsAre(LaneShare{7, {0}}, LaneShare{5, {1}}));
  EXPECT_THAT(*project_plan(two_stages(), {7, 7, 7, 5}), ElementsAre(LaneShare{7, {0}}, LaneShare{5, {1}}))
      << "bucket 1 is on both, and lane 7 has bucket 0";
}

TEST(ProjectPlan, a_bucket_that_nobody_holds_is_on_some_lane) {
  plan::Plan plan = two_stages();
  plan.buckets.resize(3);
  for (plan::ArenaLayout& layout : plan.layouts) {
    layout.bucket_rows.emplace_back();
  }
  EXPECT_THAT(*project_plan(plan, {7, 7, 5, 5}), ElementsAre(LaneShare{7, {0, 2}}, LaneShare{5, {1}}));
}

/// So many buckets of these bytes, all held by all ranks.
plan::Plan replicated(const std::vector<std::uint64_t>& bytes, std::size_t world_size) {
  plan::Plan plan;
  plan.world_size = static_cast<std::int64_t>(world_size);
  plan.layouts.resize(1);
  plan.layout_of.assign(world_size, 0);
  for (const std::uint64_t size : bytes) {
    plan.buckets.emplace_back().size_bytes = size;
    plan.layouts[0].bucket_rows.push_back({static_cast<std::uint32_t>(plan.layouts[0].bucket_rows.size())});
  }
  return plan;
}

TEST(ProjectPlan, the_largest_buckets_are_spread_first) {
  EXPECT_THAT(
      *project_plan(replicated({10, 90, 40, 40, 20}, 3), {4, 2, 9}),
      ElementsAre(LaneShare{4, {1}}, LaneShare{2, {2, 4}}, LaneShare{9, {0, 3}})
  );
}

TEST(ProjectPlan, a_lane_without_a_bucket_is_left_out) {
  EXPECT_THAT(*project_plan(replicated({10}, 3), {4, 2, 9}), ElementsAre(LaneShare{4, {0}}));
  EXPECT_THAT(*project_plan(replicated({}, 2), {4, 2}), ElementsAre(LaneShare{4, {}}));
}

TEST(ProjectPlan, memory_of_cpus_and_gpus_is_not_summed) {
  const auto mixed = project_plan(two_stages(), {7, 7, 7, device::kHostLane});
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ErrorCode::UnsupportedPlacement);
  EXPECT_THAT(mixed.error().message, HasSubstr("rank 0 has its buffer on lane 7 and rank 3 on lane 0"));
  EXPECT_THAT(mixed.error().ranks, ElementsAre(0, 3));
}

TEST(ProjectPlan, tables_on_two_lanes_are_refused) {
  const auto tables = project_plan(two_stages_of_rows(), {7, 5, 5, 5});
  ASSERT_FALSE(tables);
  EXPECT_EQ(tables.error().code, ErrorCode::UnsupportedPlacement);
  EXPECT_THAT(tables.error().message, HasSubstr("tables of statistics are read by one lane"));
  EXPECT_THAT(tables.error().ranks, ElementsAre(0, 1));
}

}  // namespace
}  // namespace gradsync::engine
