#include "engine/report/history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;

const Holder kHolder{1000, 42};

/// Commits a report and returns where it lies.
const StepReport* commit(History& history, std::int64_t step) {
  const std::shared_ptr<StepReport> report = history.next();
  report->step = step;
  history.committed(report, TimePoint{});
  return report.get();
}

std::vector<std::int64_t> steps_of(const History& history, std::int64_t count) {
  std::vector<std::int64_t> steps;
  for (const std::shared_ptr<const StepReport>& report : history.last(count)) {
    steps.push_back(report->step);
  }
  return steps;
}

TEST(History, keeps_the_last_reports_in_order) {
  FairBudget memory(FairBudget::kUnlimited, 0);
  History history(3, memory, kHolder);
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
  FairBudget memory(FairBudget::kUnlimited, 0);
  History history(3, memory, kHolder);
  std::set<const StepReport*> reports;
  for (int step = 0; step < 100; ++step) {
    reports.insert(commit(history, step));
  }
  EXPECT_EQ(reports.size(), 4U) << "three that are kept, and one that is written";
}

TEST(History, a_report_that_somebody_holds_is_not_written_over) {
  FairBudget memory(FairBudget::kUnlimited, 0);
  History history(2, memory, kHolder);
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

/// Commits a report that takes about so much.
void commit_large(History& history, std::int64_t step, std::size_t bytes) {
  static const SharedText kName("a layer");
  const std::shared_ptr<StepReport> report = history.next();
  report->step = step;
  report->layers.assign(bytes / sizeof(LayerReport), {kName, 1.0});
  history.committed(report, TimePoint{});
}

TEST(History, large_reports_are_kept_up_to_the_memory_of_a_job) {
  FairBudget memory(FairBudget::kUnlimited, 0);
  History history(1000, memory, kHolder);
  for (int step = 0; step < 50; ++step) {
    commit_large(history, step, 1 << 20);
    EXPECT_LE(memory.held(), History::kMostBytes);
  }
  EXPECT_THAT(steps_of(history, 1000), ElementsAre(47, 48, 49)) << "three, and what each has besides its layers";
  commit_large(history, 50, 2 * History::kMostBytes);
  EXPECT_THAT(steps_of(history, 1000), ElementsAre(50)) << "the newest stays, whatever it takes";
}

TEST(History, the_names_of_a_plan_that_was_replaced_count) {
  FairBudget memory(FairBudget::kUnlimited, 0);
  History history(1000, memory, kHolder);
  const auto commit_with = [&history](std::int64_t step, const SharedText& name) {
    const std::shared_ptr<StepReport> report = history.next();
    report->step = step;
    report->layers.assign(10, {name, 1.0});
    history.committed(report, TimePoint{});
  };
  const SharedText first(std::string(100'000, 'a'));
  commit_with(0, first);
  const std::uint64_t one = memory.held();
  EXPECT_GT(one, 1'000'000U) << "ten layers";
  commit_with(1, first);
  EXPECT_LT(memory.held(), one + 10'000) << "the same names";
  for (int plan = 2; plan < 10; ++plan) {
    commit_with(plan, SharedText(std::string(100'000, 'a')));
    EXPECT_LE(memory.held(), History::kMostBytes);
  }
  EXPECT_THAT(steps_of(history, 1000), ElementsAre(6, 7, 8, 9));
}

TEST(History, the_jobs_of_a_process_keep_what_it_may_have) {
  constexpr std::size_t kReport = 100'000;
  FairBudget memory(std::uint64_t{8} << 20, 0);
  std::deque<History> jobs;
  for (int job = 0; job < 16; ++job) {
    jobs.emplace_back(1000, memory, kHolder);
    for (int step = 0; step < 60; ++step) {
      commit_large(jobs.back(), step, kReport);
      EXPECT_LE(memory.held(), memory.most() / 2 + jobs.size() * 2 * kReport) << "half, and the newest of each job";
    }
  }
  History other(1000, memory, {1000, 43});
  commit_large(other, 0, kReport);
  commit_large(other, 1, kReport);
  EXPECT_THAT(steps_of(other, 3), ElementsAre(0, 1));
  EXPECT_THAT(steps_of(jobs.back(), 1000), ElementsAre(59));
  jobs.pop_front();
  commit_large(jobs.back(), 60, kReport);
  EXPECT_THAT(steps_of(jobs.back(), 1000), ElementsAre(59, 60)) << "the end of a job makes room";
}

}  // namespace
}  // namespace gradsync::engine
