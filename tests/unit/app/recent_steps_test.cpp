// The last steps of a job for a page: what is kept of reports and of the flight recorder, and what a query may say.

#include "app/page/recent_steps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace gradsync::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TimePoint at(std::int64_t us) { return TimePoint(std::chrono::microseconds(us)); }

engine::AttemptRecord attempt(std::uint64_t number, engine::AttemptState state = engine::AttemptState::Done) {
  engine::AttemptRecord record;
  record.word = engine::attempt_word({1, number});
  record.step = static_cast<std::int64_t>(number);
  record.begun = at(1);
  record.state = state;
  return record;
}

/// The last ask of `rank` came so long after the last but one.
engine::AttemptRecord late(std::uint64_t number, std::int32_t rank, std::int64_t us) {
  engine::AttemptRecord record = attempt(number);
  record.last_rank = rank;
  record.ask_before_last = at(10);
  record.last_ask = at(10 + us);
  return record;
}

engine::FlightDump dump_of(std::vector<engine::AttemptRecord> attempts, std::uint32_t buckets_each = 0) {
  engine::FlightDump dump;
  dump.job = "llm";
  dump.uid = 7;
  dump.taken = at(1000);
  dump.first_bucket = 100;
  for (const engine::AttemptRecord& record : attempts) {
    for (std::uint32_t bucket = 0; bucket < buckets_each; ++bucket) {
      dump.buckets.emplace_back();
      dump.buckets.back().word = record.word;
      dump.buckets.back().bucket = bucket;
    }
  }
  dump.attempts = std::move(attempts);
  return dump;
}

std::vector<std::int64_t> steps_of(const rpc::StepsAnswer& answer) {
  std::vector<std::int64_t> steps;
  for (const rpc::DumpAttempt& one : answer.attempts) {
    steps.push_back(one.step.value_or(-1));
  }
  return steps;
}

TEST(StepsQuery, names_a_job_and_its_owner) {
  const auto query = parse_steps_query("job=llm%20%2B+%C3%A9&uid=1000");
  ASSERT_TRUE(query);
  EXPECT_EQ(query->job, "llm + é");
  EXPECT_EQ(query->uid, 1000);
  EXPECT_EQ(parse_steps_query("job=llm")->uid, std::nullopt);
}

TEST(StepsQuery, what_is_not_understood_is_named) {
  for (const auto& [query, path] : std::vector<std::pair<std::string, std::string>>{
           {"", "job"},
           {"uid=1", "job"},
           {"job=", "job"},
           {"job=a%2", "job"},
           {"job=a%zz", "job"},
           {"job=a&uid=-1", "uid"},
           {"job=a&uid=", "uid"},
           {"job=a&uid=4294967296", "uid"},
           {"job=a&uid=1x", "uid"},
           {"job=a&last=5", "last"},
       }) {
    const auto answer = parse_steps_query(query);
    ASSERT_FALSE(answer) << query;
    EXPECT_EQ(answer.error().path, path) << query;
    EXPECT_THAT(answer.error().hint, Not(IsEmpty())) << query;
  }
}

TEST(RecentSteps, reports_become_points_and_those_with_findings_are_listed) {
  const auto plain = std::make_shared<engine::StepReport>();
  plain->step = 3;
  plain->norm = 1.5;
  plain->clipped = true;
  const auto broken = std::make_shared<engine::StepReport>();
  broken->step = 4;
  broken->skipped = true;
  for (int tensor = 0; tensor < 10; ++tensor) {
    broken->nonfinite.push_back({"w" + std::to_string(tensor), 2, {}});
  }
  broken->divergence.push_back({"b", {1}, {0, 2}, {1}});
  const rpc::StepsAnswer answer = recent_steps({plain, broken}, dump_of({}));
  EXPECT_EQ(answer.job, "llm");
  EXPECT_EQ(answer.uid, 7);
  ASSERT_THAT(answer.steps, SizeIs(2));
  EXPECT_EQ(answer.steps[0].norm, 1.5);
  EXPECT_TRUE(answer.steps[0].clipped);
  EXPECT_TRUE(answer.steps[1].skipped);
  ASSERT_THAT(answer.findings, SizeIs(1));
  EXPECT_EQ(answer.findings[0].step, 4);
  EXPECT_THAT(answer.findings[0].nonfinite, SizeIs(kShownTensors));
  EXPECT_THAT(answer.findings[0].divergence, SizeIs(1));
  EXPECT_EQ(answer.findings[0].left_out, 2);
}

TEST(RecentSteps, of_many_steps_with_findings_the_last_are_kept) {
  std::vector<std::shared_ptr<const engine::StepReport>> reports;
  for (std::int64_t step = 0; step < 30; ++step) {
    const auto report = std::make_shared<engine::StepReport>();
    report->step = step;
    report->missing.push_back({"w", {1}});
    reports.push_back(report);
  }
  const rpc::StepsAnswer answer = recent_steps(reports, dump_of({}));
  ASSERT_THAT(answer.findings, SizeIs(kShownFindings));
  EXPECT_EQ(answer.findings.front().step, 10);
  EXPECT_EQ(answer.findings.back().step, 29);
}

TEST(RecentSteps, lag_is_what_all_others_waited_for_one_rank_in_steps_that_were_done) {
  const rpc::StepsAnswer answer = recent_steps(
      {},
      dump_of(
          {late(0, 2, 500),
           late(1, 1, 100),
           late(2, 2, 300),
           attempt(3),  // nobody can be compared
           [] {
             engine::AttemptRecord failed = late(4, 1, 900);
             failed.state = engine::AttemptState::Failed;
             return failed;
           }()}
      )
  );
  EXPECT_EQ(answer.lag_attempts, 3);
  ASSERT_THAT(answer.lag, SizeIs(2));
  EXPECT_EQ(answer.lag[0].rank, 1);
  EXPECT_EQ(answer.lag[0].times_last, 1);
  EXPECT_DOUBLE_EQ(answer.lag[0].waited_s, 100e-6);
  EXPECT_EQ(answer.lag[1].rank, 2);
  EXPECT_EQ(answer.lag[1].times_last, 2);
  EXPECT_DOUBLE_EQ(answer.lag[1].waited_s, 800e-6);
}

TEST(RecentSteps, lag_is_of_the_last_attempts_only) {
  std::vector<engine::AttemptRecord> attempts;
  for (std::uint64_t number = 0; number < 2 * kLagAttempts; ++number) {
    attempts.push_back(late(number, number < kLagAttempts ? 0 : 1, 10));
  }
  const rpc::StepsAnswer answer = recent_steps({}, dump_of(attempts));
  EXPECT_EQ(answer.lag_attempts, static_cast<std::int64_t>(kLagAttempts));
  ASSERT_THAT(answer.lag, SizeIs(1));
  EXPECT_EQ(answer.lag[0].rank, 1);
}

TEST(RecentSteps, the_last_attempts_are_kept_and_the_last_that_failed) {
  using enum engine::AttemptState;
  const rpc::StepsAnswer answer = recent_steps(
      {},
      dump_of(
          {attempt(0, Failed),
           attempt(1, Failed),
           attempt(2),
           attempt(3),
           attempt(4, Failed),
           attempt(5),
           attempt(6),
           attempt(7, Open)}
      )
  );
  EXPECT_THAT(steps_of(answer), ElementsAre(0, 1, 4, 5, 6, 7));
  EXPECT_EQ(answer.taken_us, 1000);
}

TEST(RecentSteps, of_many_failures_the_last_are_kept) {
  std::vector<engine::AttemptRecord> attempts;
  for (std::uint64_t number = 0; number < 12; ++number) {
    attempts.push_back(attempt(number, engine::AttemptState::Failed));
  }
  EXPECT_THAT(steps_of(recent_steps({}, dump_of(attempts))), ElementsAre(7, 8, 9, 10, 11));
}

TEST(RecentSteps, buckets_are_those_of_the_last_attempts_with_their_numbers) {
  const rpc::StepsAnswer answer =
      recent_steps({}, dump_of({attempt(0), attempt(1), attempt(2), attempt(3), attempt(4), attempt(5)}, 3));
  ASSERT_THAT(answer.buckets, SizeIs(3 * kTimelineAttempts));
  EXPECT_EQ(answer.buckets.front().step, 2);
  EXPECT_EQ(answer.buckets.front().seq, 106);
  EXPECT_EQ(answer.buckets.back().step, 5);
}

TEST(RecentSteps, of_many_buckets_the_last_are_kept) {
  const rpc::StepsAnswer answer = recent_steps({}, dump_of({attempt(0), attempt(1)}, 400));
  ASSERT_THAT(answer.buckets, SizeIs(kTimelineBuckets));
  EXPECT_EQ(answer.buckets.front().bucket, 288);
  EXPECT_EQ(answer.buckets.back().bucket, 399);
}

TEST(RecentSteps, a_full_answer_is_small_enough_to_be_fetched_every_second) {
  std::vector<std::shared_ptr<const engine::StepReport>> reports;
  for (std::int64_t step = 0; step < kShownSteps; ++step) {
    const auto report = std::make_shared<engine::StepReport>();
    report->norm = 1.0 / 3;
    report->reason = std::string(100, 'x');
    reports.push_back(report);
  }
  const std::string text = rpc::to_json(recent_steps(reports, dump_of({attempt(0), attempt(1)}, 400)));
  EXPECT_LT(text.size(), 256u << 10);
}

}  // namespace
}  // namespace gradsync::app
