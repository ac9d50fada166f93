#include "engine/report/history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;

/// Commits a report and returns where it lies.
const StepReport* commit(History& history, std::int64_t step) {
  const std::shared_ptr<StepReport> report = history.next();
  report->step = step;
  history.committed(report, TimePoint{});
  return report.get();
}

std::vector<std::int64_t> steps_of(const History& history, std::int64_t count) {
  std::vector<std::int64_t> steps;
  for (const StepReport& report : history.last(count)) {
    steps.push_back(report.step);
  }
  return steps;
}

TEST(History, keeps_the_last_reports_in_order) {
  History history(3);
  EXPECT_EQ(history.newest(), nullptr);
  for (int step = 0; step < 8; ++step) {
    commit(history, step);
    EXPECT_EQ(history.newest()->step, step);
  }
  EXPECT_THAT(steps_of(history, 10), ElementsAre(5, 6, 7));
  EXPECT_THAT(steps_of(history, 2), ElementsAre(6, 7));
  EXPECT_EQ(history.last_step(), 7);
  EXPECT_EQ(history.steps_committed(), 8U);
}

TEST(History, uses_a_few_reports_again_and_again) {
  History history(3);
  std::set<const StepReport*> reports;
  for (int step = 0; step < 100; ++step) {
    reports.insert(commit(history, step));
  }
  EXPECT_EQ(reports.size(), 4U) << "three that are kept, and one that is written";
}

TEST(History, a_report_that_somebody_holds_is_not_written_over) {
  History history(2);
  std::shared_ptr<const StepReport> held;
  for (int step = 0; step < 20; ++step) {
    const std::shared_ptr<StepReport> report = history.next();
    EXPECT_NE(report, held);
    report->step = step;
    history.committed(report, TimePoint{});
    if (step == 7) {
      held = report;
    }
  }
  EXPECT_EQ(held->step, 7);
  EXPECT_EQ(held.use_count(), 1) << "and it is forgotten here";
}

TEST(History, room_is_made_for_all_that_are_kept) {
  StepReport like;
  like.reason = std::string(100, 'x');
  History history(5);
  history.make_room(like);
  std::set<const char*> reasons;
  for (int step = 0; step < 12; ++step) {
    const std::shared_ptr<StepReport> report = history.next();
    EXPECT_GE(report->reason.capacity(), 100U);
    reasons.insert(report->reason.data());
    history.committed(report, TimePoint{});
    history.make_room(like);  // another epoch begins
  }
  EXPECT_EQ(reasons.size(), 6U);
}

TEST(History, no_more_room_is_made_than_is_reasonable) {
  StepReport like;
  like.layers.assign(10'000, {"a layer with a name that is long enough", 1.0});
  History history(1000);
  history.make_room(like);
  int made = 0;
  while (!history.next()->layers.empty()) {
    ++made;
  }
  EXPECT_GE(made, 1);
  EXPECT_LT(made, 10);
}

}  // namespace
}  // namespace gradsync::engine
