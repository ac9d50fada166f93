// Plans of data path `stats` on the lane: what is refused, and how they come and go.

#include "unit/device/stats/stats_fixture.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

class StatsPlans : public StatsFixture {
 protected:
  void SetUp() override {
    begin(2);
    tensor({{0, 0, 2}, {1, 1, 2}});
    load_stats();
  }

  std::string refused(const StatsPlan& plan) {
    lane_->submit(LoadStats{kPlan + 1, plan});
    return expect<Failed>().message;
  }
};

TEST_F(StatsPlans, a_layout_that_does_not_fit_is_refused) {
  StatsPlan plan = plan_;
  plan.world_size = 3;
  EXPECT_THAT(refused(plan), HasSubstr("world_size is 3, 2 buffers"));
  plan = plan_;
  plan.norm_type = 0.5;
  EXPECT_THAT(refused(plan), HasSubstr("norm_type is 0.5"));
  plan = plan_;
  plan.rank_buffers = {1, 1};
  EXPECT_THAT(refused(plan), HasSubstr("share a buffer"));
  plan = plan_;
  plan.rank_buffers = {1, 9};
  EXPECT_THAT(refused(plan), HasSubstr("buffer 9 of rank 1 is not mapped"));
  plan = plan_;
  plan.tensors[0].clip_group = 1;
  EXPECT_THAT(refused(plan), HasSubstr("tensor 0 is in clip group 1"));
  plan = plan_;
  plan.tensors[0].layer = 0;
  EXPECT_THAT(refused(plan), HasSubstr("tensor 0 is in layer 0 of 0"));
  plan = plan_;
  plan.tensors[0].holders[1].rank = 2;
  EXPECT_THAT(refused(plan), HasSubstr("held by rank 2 of 2"));
  plan = plan_;
  plan.tensors[0].holders[1].row = 1;
  EXPECT_THAT(refused(plan), HasSubstr("row 1 of tensor 0 ends outside the 64 bytes of rank 1"));
  plan = plan_;
  plan.tensors.push_back(plan.tensors[0]);
  EXPECT_THAT(refused(plan), HasSubstr("row 0 of rank 0 is of tensor 1 and of another"));
  plan = plan_;
  std::swap(plan.tensors[0].holders[0], plan.tensors[0].holders[1]);
  EXPECT_THAT(refused(plan), HasSubstr("not ordered"));
  plan = plan_;
  plan.tensors[0].holders[1].box = 0;
  plan.tensors[0].holders[1].elements = 3;
  EXPECT_THAT(refused(plan), HasSubstr("box 0 of tensor 0 has two sizes"));
}

TEST_F(StatsPlans, a_tied_copy_of_what_is_not_there_is_refused) {
  StatsPlan plan = plan_;
  plan.ties = {{0, 0, {0}}};  // of itself
  EXPECT_THAT(refused(plan), HasSubstr("box 0 of tensor 0 is no copy of box 0 of tensor 0"));
  plan.ties = {{0, 0, {-1, 7}}};
  EXPECT_THAT(refused(plan), HasSubstr("box 1 of tensor 0 is no copy of box 7 of tensor 0"));
  plan.ties = {{9, 0, {0}}};
  EXPECT_THAT(refused(plan), HasSubstr("box 0 of tensor 9 is no copy of box 0 of tensor 0"));
}

TEST_F(StatsPlans, an_id_is_used_once_by_either_kind) {
  lane_->submit(LoadStats{kPlan, plan_});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("already loaded"));
  lane_->submit(LoadPlan{kPlan, {}});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("already loaded"));
  lane_->submit(UnloadPlan{kPlan});
  expect<Unloaded>();
  lane_->submit(UnloadPlan{kPlan});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("not loaded"));
  EXPECT_THAT(refusal().message, HasSubstr("not loaded"));
}

TEST_F(StatsPlans, nothing_is_reduced_on_it) {
  lane_->submit(ReduceBucket{kPlan, 0, 0, {}, false});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("data path is stats"));
}

TEST_F(StatsPlans, a_wrong_command_is_refused) {
  FinishStep finish = command();
  finish.rules.clear();
  lane_->submit(finish);
  EXPECT_THAT(expect<Failed>().message, HasSubstr("0 clip rules for 1"));
  finish = command();
  finish.scale = 0;
  lane_->submit(finish);
  EXPECT_THAT(expect<Failed>().message, HasSubstr("scale is 0"));
  finish = command();
  finish.stamp = 0;
  lane_->submit(finish);
  EXPECT_THAT(expect<Failed>().message, HasSubstr("stamp is 0"));
}

TEST_F(StatsPlans, a_table_that_was_unmapped_is_not_read) {
  lane_->submit(UnmapBuffer{2});
  expect<Unmapped>();
  EXPECT_THAT(refusal().message, HasSubstr("buffer 2 of plan 42 was unmapped"));
}

TEST_F(StatsPlans, an_aborted_attempt_is_not_finished) {
  lane_->submit(Abort{kPlan, 0});
  expect<Aborted>();
  EXPECT_TRUE(refusal(0).aborted);
  EXPECT_EQ(measure(1).norm, 0);
}

TEST(StatsRows, what_looks_plainly_right_is_right) {
  std::mt19937_64 random(5);
  const std::vector<double> numbers{
      0.0, -0.0, -1, 1, 1e-150, 1e-145, 1e150, 1e155, 1e308, 5e-324, 2, 4, 1e-16, NAN, INFINITY};
  const auto pick = [&] { return numbers[random() % numbers.size()]; };
  int right = 0;
  for (int i = 0; i < 200'000; ++i) {
    const StatsRow row{
        random() % 2, pick(), random() % 2 == 0 ? 0 : pick(), random() % 4 == 0 ? pick() : 1, pick(), 0, 0, 0};
    const std::uint64_t elements = random() % 5;
    const double p = random() % 2 == 0 ? 1 : 2;
    if (plainly_right(row, 1, elements, p)) {
      ++right;
      const auto fault = fault_of(row, 1, elements, p);
      EXPECT_FALSE(fault.has_value()) << fault->field << " " << fault->message;
    }
  }
  EXPECT_GT(right, 100);
}

}  // namespace
}  // namespace gradsync::device
