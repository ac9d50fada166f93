#include "engine/step/lane_stop.hpp"

#include <gmock/gmock.h>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

constexpr Milliseconds kPatience{3'000};

struct LaneStopTest : ::testing::Test {
  bool pass(Milliseconds time, TimePoint moved = {}) {
    return stop.on_time(now += time, moved, kPatience, "j", failure, ended_by).has_value();
  }

  TimePoint now{std::chrono::hours(1)};
  std::optional<Error> failure = make_error(ErrorCode::StepTimeout, "rank 2 is missing");
  LaneStop::EndedBy ended_by = LaneStop::EndedBy::Restart;
  LaneStop stop;
};

TEST_F(LaneStopTest, has_no_deadline_before_a_lane_is_told) {
  EXPECT_EQ(stop.next_deadline({}, kPatience), std::nullopt);
  EXPECT_FALSE(pass(std::chrono::hours(1)));
  EXPECT_FALSE(stop.stuck());
}

TEST_F(LaneStopTest, says_once_that_the_lanes_hang) {
  failure->node = "b";
  failure->ranks = {2};
  failure->step = 7;
  stop.on_told(now);
  EXPECT_EQ(stop.next_deadline({}, kPatience), now + kPatience);
  EXPECT_FALSE(pass(kPatience - Milliseconds{1}));
  EXPECT_TRUE(pass(Milliseconds{1}));
  ASSERT_TRUE(stop.stuck());
  EXPECT_THAT(stop.stuck()->message, HasSubstr("did not stop within 3.0 s after: rank 2 is missing"));
  EXPECT_EQ(stop.stuck()->job, "j");
  EXPECT_EQ(stop.stuck()->node, "b");
  EXPECT_EQ(stop.stuck()->ranks, std::vector<std::int64_t>{2});
  EXPECT_EQ(stop.stuck()->step, 7);
  EXPECT_EQ(stop.next_deadline({}, kPatience), std::nullopt);
  EXPECT_FALSE(pass(kPatience));
}

TEST_F(LaneStopTest, a_report_begins_the_time_anew) {
  stop.on_told(now);
  const TimePoint moved = now + kPatience - Milliseconds{1};
  EXPECT_FALSE(pass(kPatience, moved));
  EXPECT_EQ(stop.next_deadline(moved, kPatience), moved + kPatience);
  EXPECT_TRUE(pass(kPatience, moved));
}

TEST_F(LaneStopTest, a_report_of_before_does_not_shorten_the_time) {
  const TimePoint moved = now - std::chrono::minutes(1);
  stop.on_told(now);
  EXPECT_EQ(stop.next_deadline(moved, kPatience), now + kPatience);
}

TEST_F(LaneStopTest, a_second_lane_that_is_told_begins_the_time_anew) {
  stop.on_told(now);
  EXPECT_FALSE(pass(Milliseconds{1'000}));
  stop.on_told(now);
  EXPECT_FALSE(pass(Milliseconds{2'000}));
  EXPECT_TRUE(pass(Milliseconds{1'000}));
}

TEST_F(LaneStopTest, says_what_ends_the_lane) {
  const auto error_of = [this](LaneStop::EndedBy by) {
    ended_by = by;
    stop = LaneStop{};
    stop.on_told(now);
    EXPECT_TRUE(pass(kPatience));
    return *stop.stuck();
  };
  const Error of_host = error_of(LaneStop::EndedBy::Restart);
  EXPECT_EQ(of_host.code, ErrorCode::InternalError);
  EXPECT_THAT(of_host.hint, HasSubstr("then restart it"));
  const Error of_gpu = error_of(LaneStop::EndedBy::Kill);
  EXPECT_EQ(of_gpu.code, ErrorCode::StepFailed) << "no defect of the daemon, which goes on";
  EXPECT_THAT(of_gpu.message, HasSubstr("it may still change gradients"));
  EXPECT_THAT(of_gpu.hint, HasSubstr("another takes its place: declare again"));
}

TEST_F(LaneStopTest, names_the_end_of_an_attempt_that_has_no_failure) {
  failure.reset();
  stop.on_told(now);
  EXPECT_TRUE(pass(kPatience));
  EXPECT_THAT(stop.stuck()->message, HasSubstr("the end of the attempt"));
  EXPECT_TRUE(stop.stuck()->ranks.empty());
}

}  // namespace
}  // namespace gradsync::engine
