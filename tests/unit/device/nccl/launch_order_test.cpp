// The order of a step's collectives is that of the plan, and stages of a bucket follow each other.

#include "device/nccl/launch_order.hpp"

#include "device/device_error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

PlannedCollective stage(
    std::uint32_t bucket, std::uint32_t number, const char* communicator, std::size_t elements = 5
) {
  return {communicator, CollectiveKind::AllReduce, NcclType::Float32, elements, bucket, number};
}

TEST(LaunchOrder, takes_a_step_in_its_order_again_and_again) {
  const std::vector<PlannedCollective> step = {stage(0, 0, "tp"), stage(0, 1, "dp"), stage(1, 0, "dp")};
  LaunchOrder order(step);
  for (int repeat = 0; repeat < 2; ++repeat) {
    order.begin_step();
    for (const PlannedCollective& one : step) {
      EXPECT_FALSE(order.complete());
      order.take(one);
    }
    EXPECT_TRUE(order.complete());
  }
}

TEST(LaunchOrder, refuses_a_stage_before_its_turn_and_stays_where_it_is) {
  LaunchOrder order({stage(0, 0, "tp"), stage(0, 1, "dp")});
  order.begin_step();
  EXPECT_THAT(
      [&] { order.take(stage(0, 1, "dp")); },
      ThrowsMessage<DeviceError>(
          AllOf(HasSubstr("on dp, stage 1"), HasSubstr("out of turn"), HasSubstr("on tp, stage 0"))
      )
  );
  EXPECT_THAT([&] { order.take(stage(0, 0, "tp", 6)); }, ThrowsMessage<DeviceError>(HasSubstr("of 6 elements")));
  order.take(stage(0, 0, "tp"));
  order.take(stage(0, 1, "dp"));
  EXPECT_THAT([&] { order.take(stage(0, 1, "dp")); }, ThrowsMessage<DeviceError>(HasSubstr("has all of its")));
}

TEST(LaunchOrder, a_step_that_is_not_complete_is_not_followed_by_another_unless_it_was_aborted) {
  LaunchOrder order({stage(0, 0, "tp"), stage(0, 1, "dp")});
  order.begin_step();
  order.take(stage(0, 0, "tp"));
  EXPECT_THAT([&] { order.begin_step(); }, ThrowsMessage<DeviceError>(HasSubstr("has not launched")));
  order.forget_step();
  order.begin_step();
  order.take(stage(0, 0, "tp"));
}

TEST(LaunchOrder, refuses_a_plan_whose_stages_are_out_of_order) {
  const auto made = [](std::vector<PlannedCollective> step) { return [step] { (void)LaunchOrder(step); }; };
  EXPECT_THAT(made({stage(0, 1, "dp"), stage(0, 0, "tp")}), ThrowsMessage<DeviceError>(HasSubstr("is out of order")));
  EXPECT_THAT(made({stage(0, 0, "tp"), stage(0, 2, "dp")}), ThrowsMessage<DeviceError>(HasSubstr("stage 2")));
  EXPECT_THAT(
      made({stage(0, 0, "tp"), stage(1, 0, "tp"), stage(0, 1, "dp")}),
      ThrowsMessage<DeviceError>(HasSubstr("of bucket 0 is out of order"))
  );
  EXPECT_NO_THROW(made({stage(0, 0, "tp"), stage(0, 1, "dp"), stage(0, 0, "tp"), stage(0, 1, "dp")})())
      << "two chunks of a bucket";
}

}  // namespace
}  // namespace gradsync::device
