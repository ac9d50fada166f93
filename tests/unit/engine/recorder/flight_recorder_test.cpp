// The flight recorder: by itself, and as an engine tells it what happens.

#include "engine/recorder/flight_recorder.hpp"

#include "engine/recorder/flight_dump.hpp"
#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TimePoint at(int ms) { return TimePoint(std::chrono::seconds(1000)) + Milliseconds(ms); }

std::uint64_t word_of(std::uint64_t attempt) { return attempt_word({7, attempt}); }

plan::Plan plan_of(std::size_t buckets) {
  plan::Plan plan;
  plan.buckets.resize(buckets);
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    plan.buckets[bucket].size_bytes = static_cast<std::int64_t>(100 + bucket);
  }
  return plan;
}

device::Reduced reduced(std::uint32_t bucket) { return {1, 0, bucket, 0.001}; }

TEST(FlightRecorder, keeps_what_became_of_a_bucket_and_of_its_attempt) {
  FlightRecorder recorder;
  recorder.use_plan(plan_of(2), false);
  recorder.on_ready(word_of(0), 0, 3, at(1));
  recorder.on_ready(word_of(0), 0, 2, at(5));
  recorder.on_launched(word_of(0), 0, at(5));
  recorder.on_asked(word_of(0), 3, 12, at(6));
  recorder.on_reduced(word_of(0), reduced(0), at(9));
  recorder.on_asked(word_of(0), 1, 12, at(8));
  recorder.on_asked(word_of(0), 2, 12, at(11));
  recorder.on_ready(word_of(0), 1, 2, at(11));
  recorder.on_measured(word_of(0), at(12));
  recorder.on_voted(word_of(0), at(13));
  recorder.on_done(word_of(0), at(14));
  ASSERT_EQ(recorder.buckets().added(), 2U);
  const BucketRecord& first = recorder.buckets()[0];
  EXPECT_EQ(first.word, word_of(0));
  EXPECT_EQ(first.first_ready, at(1));
  EXPECT_EQ(first.last_ready, at(5));
  EXPECT_EQ(first.last_rank, 2);
  EXPECT_EQ(first.ready, 2);
  EXPECT_EQ(first.launched, at(5));
  EXPECT_EQ(first.done, at(9));
  EXPECT_EQ(first.bytes, 100U);
  EXPECT_EQ(first.order, 1U);
  EXPECT_EQ(first.state, BucketState::Reduced);
  EXPECT_EQ(recorder.buckets()[1].state, BucketState::Collecting);
  EXPECT_EQ(recorder.buckets()[1].bytes, 101U);
  ASSERT_EQ(recorder.attempts().added(), 1U);
  const AttemptRecord& attempt = recorder.attempts()[0];
  EXPECT_EQ(attempt.begun, at(1));
  EXPECT_EQ(attempt.step, 12);
  EXPECT_EQ(attempt.first_ask, at(6));
  EXPECT_EQ(attempt.ask_before_last, at(8));
  EXPECT_EQ(attempt.asks, 3U);
  EXPECT_EQ(attempt.last_ask, at(11));
  EXPECT_EQ(attempt.last_rank, 2);
  EXPECT_EQ(attempt.launched, 1U);
  EXPECT_EQ(attempt.reduced, 1U);
  EXPECT_EQ(attempt.measured, at(12));
  EXPECT_EQ(attempt.decided, TimePoint{});
  EXPECT_EQ(attempt.ended, at(14));
  EXPECT_EQ(attempt.state, AttemptState::Done);
}

TEST(FlightRecorder, says_which_buckets_a_failed_attempt_left_on_the_lane) {
  FlightRecorder recorder;
  recorder.use_plan(plan_of(3), false);
  for (const std::uint32_t bucket : {0U, 1U}) {
    recorder.on_ready(word_of(4), bucket, 0, at(1));
    recorder.on_launched(word_of(4), bucket, at(2));
  }
  recorder.on_reduced(word_of(4), reduced(0), at(3));
  recorder.on_ready(word_of(4), 2, 0, at(3));
  Error error = make_error(ErrorCode::StepTimeout, "late");
  error.ranks = {5, 6, 7, 8, 9};
  recorder.on_failed(word_of(4), error, at(9));
  EXPECT_EQ(recorder.buckets()[0].state, BucketState::Reduced);
  EXPECT_EQ(recorder.buckets()[1].state, BucketState::Failed);
  EXPECT_EQ(recorder.buckets()[2].state, BucketState::Collecting);
  const AttemptRecord& attempt = recorder.attempts()[0];
  EXPECT_EQ(attempt.state, AttemptState::Failed);
  EXPECT_EQ(attempt.error, ErrorCode::StepTimeout);
  EXPECT_THAT(attempt.missing, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(attempt.missing_count, 5);
}

TEST(FlightRecorder, takes_nothing_of_an_attempt_that_is_over_for_another) {
  FlightRecorder recorder;
  recorder.use_plan(plan_of(1), false);
  recorder.on_asked(word_of(5), 0, 1, at(1));
  recorder.on_ready(word_of(4), 0, 0, at(2));
  recorder.on_launched(word_of(4), 0, at(2));
  recorder.on_reduced(word_of(4), reduced(0), at(2));
  recorder.on_done(word_of(4), at(2));
  EXPECT_EQ(recorder.attempts().added(), 1U);
  EXPECT_EQ(recorder.buckets().added(), 0U);
  EXPECT_EQ(recorder.attempts()[0].state, AttemptState::Open);
}

TEST(FlightRecorder, keeps_the_last_records_whatever_came_before) {
  FlightRecorder recorder;
  constexpr std::uint32_t kBuckets = 3;
  constexpr std::uint64_t kSteps = 3000;
  recorder.use_plan(plan_of(kBuckets), false);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      recorder.on_ready(word_of(step), bucket, 0, at(1));
      recorder.on_launched(word_of(step), bucket, at(1));
      recorder.on_reduced(word_of(step), reduced(bucket), at(1));
    }
    recorder.on_done(word_of(step), at(2));
  }
  EXPECT_EQ(recorder.buckets().added(), kBuckets * kSteps);
  const std::vector<BucketRecord> buckets = recorder.buckets().copy();
  ASSERT_EQ(buckets.size(), FlightRecorder::kBuckets);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const std::uint64_t number = recorder.buckets().first() + i;
    EXPECT_EQ(buckets[i].word, word_of(number / kBuckets));
    EXPECT_EQ(buckets[i].bucket, number % kBuckets);
    EXPECT_EQ(buckets[i].state, BucketState::Reduced);
  }
  ASSERT_EQ(recorder.attempts().copy().size(), FlightRecorder::kAttempts);
  EXPECT_EQ(recorder.attempts().copy().back().word, word_of(kSteps - 1));
}

TEST(FlightRecorder, takes_a_plan_of_more_buckets_than_it_keeps) {
  FlightRecorder recorder;
  constexpr std::uint32_t kMany = FlightRecorder::kBuckets + 100;
  recorder.use_plan(plan_of(kMany), false);
  for (std::uint32_t bucket = 0; bucket < kMany; ++bucket) {
    recorder.on_ready(word_of(0), bucket, 0, at(1));
  }
  for (std::uint32_t bucket = 0; bucket < kMany; ++bucket) {
    recorder.on_launched(word_of(0), bucket, at(2));
  }
  EXPECT_EQ(recorder.attempts()[0].launched, kMany);
  const std::vector<BucketRecord> buckets = recorder.buckets().copy();
  for (const BucketRecord& record : buckets) {
    EXPECT_EQ(record.bytes, 100U + record.bucket);
  }
  recorder.use_plan(plan_of(1), false);  // the next epoch has another plan
  recorder.on_ready(word_of(1), 0, 0, at(3));
  EXPECT_EQ(recorder.buckets().copy().back().word, word_of(1));
  recorder.on_ready(word_of(1), 9, 0, at(3));  // of no plan
  EXPECT_EQ(recorder.buckets().copy().back().bucket, 0U);
}

TEST(FlightRecorder, keeps_what_a_bucket_took_on_the_links) {
  FlightRecorder recorder;
  recorder.use_plan(plan_of(1), true);
  recorder.on_launched(word_of(0), 0, at(10));
  device::Reduced report = reduced(0);
  report.links = {{2, 1000, 2000, 0.005, 0.007, 0.006}};
  recorder.on_reduced(word_of(0), report, at(18));
  ASSERT_EQ(recorder.links().added(), 1U);
  const LinkRecord& link = recorder.links()[0];
  EXPECT_EQ(link.node, 2U);
  EXPECT_EQ(link.sent_bytes, 1000U);
  EXPECT_EQ(link.received_bytes, 2000U);
  EXPECT_EQ(link.launched, at(10));
  EXPECT_EQ(link.sent, at(15));
  EXPECT_EQ(link.received, at(17));
  EXPECT_EQ(link.partials, at(16));
}

/// An engine whose failures leave their dumps here.
struct Recorded : Harness {
  Recorded() : Harness(keeping(dumps)) {}

  static EngineOptions keeping(std::vector<FlightDump>& dumps) {
    EngineOptions options;
    options.keep_dump = [&dumps](FlightDump dump) { dumps.push_back(std::move(dump)); };
    options.deadlines.first_step = options.deadlines.step = Milliseconds(20'000);
    return options;
  }

  FlightDump now_recorded() { return *engine.dump_of({1000, "job"}); }

  static inline std::vector<FlightDump> dumps;
};

struct FlightOfAJob : ::testing::Test {
  FlightOfAJob() { Recorded::dumps.clear(); }
};

TEST_F(FlightOfAJob, is_recorded_from_the_first_bucket_to_the_end) {
  Recorded harness;
  harness.start(2);
  harness.pass(Milliseconds(1));
  harness.ready(1, 0);
  const TimePoint first = harness.now;
  harness.pass(Milliseconds(3));
  harness.ready(0, 0);
  const TimePoint last = harness.now;
  harness.finish(0, 12);
  harness.pass(Milliseconds(5));
  harness.finish(1, 12);
  const TimePoint asked = harness.now;
  harness.pump();
  const FlightDump dump = harness.now_recorded();
  EXPECT_THAT(dump.ranks, ElementsAre(0, 1));
  EXPECT_EQ(dump.plan_buckets, 1U);
  EXPECT_EQ(dump.data_path, "arena");
  ASSERT_EQ(dump.attempts.size(), 1U);
  EXPECT_EQ(dump.attempts[0].begun, first);
  EXPECT_EQ(dump.attempts[0].step, 12);
  EXPECT_EQ(dump.attempts[0].first_ask, last);
  EXPECT_EQ(dump.attempts[0].last_ask, asked);
  EXPECT_EQ(dump.attempts[0].last_rank, 1);
  EXPECT_EQ(dump.attempts[0].asks, 2U);
  EXPECT_EQ(dump.attempts[0].launched, 1U);
  EXPECT_EQ(dump.attempts[0].reduced, 1U);
  EXPECT_EQ(dump.attempts[0].measured, asked);
  EXPECT_EQ(dump.attempts[0].voted, asked);
  EXPECT_EQ(dump.attempts[0].ended, asked);
  EXPECT_EQ(dump.attempts[0].state, AttemptState::Done);
  ASSERT_EQ(dump.buckets.size(), 1U);
  EXPECT_EQ(dump.buckets[0].first_ready, first);
  EXPECT_EQ(dump.buckets[0].last_ready, last);
  EXPECT_EQ(dump.buckets[0].last_rank, 0);
  EXPECT_EQ(dump.buckets[0].ready, 2);
  EXPECT_EQ(dump.buckets[0].launched, last);
  EXPECT_EQ(dump.buckets[0].state, BucketState::Reduced);
  EXPECT_EQ(
      dump.buckets[0].bytes, static_cast<std::uint64_t>((*harness.engine.plan_of(1000, "job"))->buckets[0].size_bytes)
  );
  EXPECT_TRUE(Recorded::dumps.empty());
}

TEST_F(FlightOfAJob, counts_a_bucket_that_comes_with_the_finish_once_for_each_rank) {
  Recorded harness;
  harness.start(3);
  harness.ready(0, 0);
  harness.pass(Milliseconds(2));
  harness.finish(1, 1);
  harness.pass(Milliseconds(2));
  harness.finish(2, 1);
  const TimePoint last = harness.now;
  harness.pass(Milliseconds(2));
  harness.finish(0, 1);  // its bucket was ready long before
  harness.pump();
  const FlightDump dump = harness.now_recorded();
  ASSERT_EQ(dump.buckets.size(), 1U);
  EXPECT_EQ(dump.buckets[0].ready, 3);
  EXPECT_EQ(dump.buckets[0].last_ready, last);
  EXPECT_EQ(dump.buckets[0].last_rank, 2);
}

TEST_F(FlightOfAJob, counts_a_bucket_that_was_ready_before_the_others_of_its_rank_once) {
  Recorded harness;
  plan::TensorDeclaration half = Harness::tensor("b");
  half.dtype = plan::DType::BFloat16;  // it lies in a bucket of its own
  harness.start(2, {Harness::tensor("a"), half});
  harness.ready(0, 0);
  harness.ready(1, 0);
  const TimePoint before = harness.now;
  harness.pass(Milliseconds(2));
  harness.finish(1, 1);
  harness.finish(0, 1);
  harness.pump();
  const FlightDump dump = harness.now_recorded();
  ASSERT_EQ(dump.buckets.size(), 2U);
  EXPECT_EQ(dump.buckets[0].bucket, 0U);
  EXPECT_EQ(dump.buckets[0].ready, 2);
  EXPECT_EQ(dump.buckets[0].last_ready, before);
  EXPECT_EQ(dump.buckets[0].last_rank, 1);
  EXPECT_EQ(dump.buckets[1].bucket, 1U);
  EXPECT_EQ(dump.buckets[1].ready, 2);
  EXPECT_EQ(dump.buckets[1].last_ready, harness.now);
  EXPECT_EQ(dump.buckets[1].last_rank, 0);
}

TEST_F(FlightOfAJob, is_dumped_with_the_ranks_that_were_late) {
  Recorded harness;
  harness.start(3);
  harness.ready(0, 0);
  harness.ready(2, 0);
  const auto waits = harness.finish(0, 5);
  harness.finish(2, 5);
  EXPECT_THAT(harness.now_recorded().missing, ElementsAre(1));
  harness.pass(Milliseconds(21'000));
  harness.pump();
  ASSERT_TRUE(waits->error);
  ASSERT_EQ(Recorded::dumps.size(), 1U);
  const FlightDump& dump = Recorded::dumps[0];
  ASSERT_TRUE(dump.cause);
  EXPECT_EQ(dump.cause->code, ErrorCode::StepTimeout);
  ASSERT_EQ(dump.attempts.size(), 1U);
  EXPECT_EQ(dump.attempts[0].state, AttemptState::Failed);
  EXPECT_EQ(dump.attempts[0].error, ErrorCode::StepTimeout);
  EXPECT_EQ(dump.attempts[0].missing_count, 1);
  EXPECT_EQ(dump.attempts[0].missing[0], 1);
  EXPECT_EQ(dump.attempts[0].step, 5);
  ASSERT_EQ(dump.buckets.size(), 1U);
  EXPECT_EQ(dump.buckets[0].ready, 2);
  EXPECT_EQ(dump.buckets[0].state, BucketState::Collecting);
}

TEST_F(FlightOfAJob, is_dumped_once_in_ten_seconds) {
  Recorded harness;
  harness.start(2);
  const auto fail = [&harness](std::int64_t step) {
    harness.finish(0, step);
    harness.finish(1, step + 1);  // they disagree
    harness.pump();
  };
  fail(1);
  fail(3);
  EXPECT_EQ(Recorded::dumps.size(), 1U);
  EXPECT_EQ(Recorded::dumps[0].cause->code, ErrorCode::StepMismatch);
  harness.pass(FlightRecorder::kBetweenDumps);
  fail(5);
  EXPECT_EQ(Recorded::dumps.size(), 2U);
}

TEST_F(FlightOfAJob, is_dumped_when_a_rank_dies_between_steps_and_not_when_it_leaves) {
  Recorded harness;
  harness.start(2);
  harness.finish(0, 1);
  harness.finish(1, 1);
  harness.pump();
  EXPECT_TRUE(harness.engine.detach(harness.sessions.at(0)));
  EXPECT_TRUE(Recorded::dumps.empty());
  Recorded other;
  other.start(2);
  other.finish(0, 1);
  other.finish(1, 1);
  other.pump();
  other.engine.process_exited(other.sessions.at(1));
  ASSERT_EQ(Recorded::dumps.size(), 1U);
  EXPECT_EQ(Recorded::dumps[0].cause->code, ErrorCode::RankLost);
  EXPECT_THAT(Recorded::dumps[0].cause->ranks, ElementsAre(1));
  EXPECT_EQ(Recorded::dumps[0].attempts.back().state, AttemptState::Done);
}

TEST_F(FlightOfAJob, is_dumped_once_where_a_rank_dies_in_a_step) {
  Recorded harness;
  harness.start(2);
  harness.finish(0, 1);
  harness.engine.process_exited(harness.sessions.at(1));
  harness.pump();
  ASSERT_EQ(Recorded::dumps.size(), 1U);
  EXPECT_EQ(Recorded::dumps[0].cause->code, ErrorCode::RankLost);
  EXPECT_EQ(Recorded::dumps[0].attempts.back().state, AttemptState::Failed);
  EXPECT_EQ(Recorded::dumps[0].attempts.back().missing[0], 1);
}

TEST_F(FlightOfAJob, is_that_of_the_job_that_is_asked_for) {
  Recorded harness;
  harness.start(1);
  EXPECT_THAT(harness.engine.recorded_jobs(), ElementsAre(JobKey{1000, "job"}));
  EXPECT_FALSE(harness.engine.dump_of({1001, "job"}));
  EXPECT_FALSE(harness.engine.dump_of({1000, "other"}));
}

}  // namespace
}  // namespace gradsync::engine
