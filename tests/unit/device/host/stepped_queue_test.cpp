// The queue of a lane without a thread: nothing happens before its owner says so, and then one piece of work at a time.

#include "device/host/host_device.hpp"
#include "device/queue/lane_queue.hpp"
#include "unit/device/lane_fixture.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {
namespace {

class SteppedQueue : public testing::Test {
 protected:
  void map(BufferId buffer) { queue_.submit(MapBuffer{buffer, arena_.descriptor(), arena_.size_bytes()}); }

  std::vector<LaneReport> reports_;
  ClientArena arena_{4096};
  LaneQueue queue_{
      [](const std::atomic<bool>& cancel) { return std::make_unique<HostDevice>(1, cancel); },
      [this](LaneReport report) { reports_.push_back(std::move(report)); },
      {},
      LaneThread::Caller};
};

TEST_F(SteppedQueue, executes_one_command_whenever_it_is_told) {
  EXPECT_FALSE(queue_.has_work());
  map(1);
  map(2);
  EXPECT_TRUE(queue_.has_work());
  EXPECT_TRUE(reports_.empty());
  queue_.work();
  ASSERT_EQ(reports_.size(), 1U);
  EXPECT_EQ(std::get<Mapped>(reports_[0]).buffer, 1U);
  queue_.work();
  ASSERT_EQ(reports_.size(), 2U);
  EXPECT_EQ(std::get<Mapped>(reports_[1]).buffer, 2U);
  EXPECT_FALSE(queue_.has_work());
}

TEST_F(SteppedQueue, an_abort_goes_before_what_waits_of_other_plans) {
  map(1);
  FinishStep finish;
  finish.plan = 7;
  finish.tag = 3;
  queue_.submit(std::move(finish));
  queue_.submit(Abort{7, 3});
  queue_.work();
  ASSERT_EQ(reports_.size(), 1U);
  EXPECT_EQ(std::get<Failed>(reports_[0]).plan, 7U);
  queue_.work();
  ASSERT_EQ(reports_.size(), 2U);
  EXPECT_EQ(std::get<Aborted>(reports_[1]).tag, 3U);
}

TEST_F(SteppedQueue, drops_what_is_queued_at_its_end) {
  std::vector<LaneReport> reports;
  {
    LaneQueue queue(
        [](const std::atomic<bool>& cancel) { return std::make_unique<HostDevice>(1, cancel); },
        [&](LaneReport report) { reports.push_back(std::move(report)); },
        {},
        LaneThread::Caller
    );
    queue.submit(MapBuffer{1, arena_.descriptor(), arena_.size_bytes()});
  }
  EXPECT_TRUE(reports.empty());
}

}  // namespace
}  // namespace gradsync::device
