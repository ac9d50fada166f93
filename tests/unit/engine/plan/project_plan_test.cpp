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
  const LaneShare whole{7, {0, 1, 2, 3}, {0, 1}};
  EXPECT_THAT(*project_plan(two_stages(), {7, 7, 7, 7}), ElementsAre(whole));
  EXPECT_EQ(project_plan(two_stages(), {})->front().lane, device::kHostLane);
  EXPECT_THAT(*project_plan(two_stages_of_rows(), {7, 7, 7, 7}), ElementsAre(LaneShare{7, {0, 1, 2, 3}, {}}));
}

TEST(ProjectPlan, each_lane_has_the_buckets_whose_memory_it_holds) {
  EXPECT_THAT(
      *project_plan(two_stages(), {7, 7, 5, 5}), ElementsAre(LaneShare{7, {0, 1}, {0}}, LaneShare{5, {2, 3}, {1}})
  );
  EXPECT_THAT(
      *project_plan(two_stages_of_rows(), {7, 7, 5, 5}), ElementsAre(LaneShare{7, {0, 1}, {}}, LaneShare{5, {2, 3}, {}})
  );
}

TEST(ProjectPlan, a_bucket_that_nobody_holds_is_on_some_lane) {
  plan::Plan plan = two_stages();
  plan.buckets.resize(3);
  for (plan::ArenaLayout& layout : plan.layouts) {
    layout.bucket_rows.emplace_back();
  }
  EXPECT_THAT(*project_plan(plan, {7, 7, 5, 5}), ElementsAre(LaneShare{7, {0, 1}, {0, 2}}, LaneShare{5, {2, 3}, {1}}));
}

TEST(ProjectPlan, what_is_summed_over_two_lanes_is_refused) {
  const auto bucket = project_plan(two_stages(), {7, 7, 7, 5});
  ASSERT_FALSE(bucket);
  EXPECT_EQ(bucket.error().code, ErrorCode::UnsupportedPlacement);
  EXPECT_THAT(
      bucket.error().message, HasSubstr("bucket 1 is summed over rank 2, whose buffer is on lane 7, and rank 3")
  );
  EXPECT_EQ(bucket.error().bucket, 1);
  EXPECT_THAT(bucket.error().ranks, ElementsAre(2, 3));

  const auto tensor = project_plan(two_stages_of_rows(), {7, 5, 5, 5});
  ASSERT_FALSE(tensor);
  EXPECT_EQ(tensor.error().code, ErrorCode::UnsupportedPlacement);
  EXPECT_EQ(tensor.error().tensor, "t0");
  EXPECT_THAT(tensor.error().ranks, ElementsAre(0, 1));
}

}  // namespace
}  // namespace gradsync::engine
