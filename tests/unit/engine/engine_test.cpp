#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

#include <limits>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Engine, answers_declare_when_the_last_rank_declared_and_the_lane_has_the_plan) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto first = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_EQ(first->calls, 0);
  const auto second = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  ASSERT_TRUE(first->result && second->result);
  EXPECT_EQ(first->result->epoch, second->result->epoch);
  EXPECT_EQ(first->result->plan->digest, second->result->plan->digest);
  EXPECT_EQ(h.engine.status(1000)[0].state, "ready");
}

TEST(Engine, one_step_gives_every_rank_the_same_report) {
  Harness h;
  h.start(2);
  h.lane.math.norm = 3.0;
  h.lane.math.counted_elements = 16;
  const auto a = h.finish(0, 5);
  h.pump();
  EXPECT_EQ(a->calls, 0);
  const auto b = h.finish(1, 5);
  h.pump();
  ASSERT_TRUE(a->report && b->report);
  EXPECT_EQ(*a->report, *b->report);
  EXPECT_EQ(a->report->step, 5);
  EXPECT_EQ(a->report->norm, 3.0);
  EXPECT_EQ(a->report->attempt, 0u);
  EXPECT_EQ(a->report->next_attempt, 1u);
  EXPECT_EQ(a->report->counted_elements, 16u);
  EXPECT_EQ(a->report->collectives, 1);
  EXPECT_EQ(h.metrics.steps_committed.Value(), 1.0);
  EXPECT_THAT(h.events.back().topic, "step");
}

TEST(Engine, a_retry_of_the_last_step_returns_the_recorded_report) {
  Harness h;
  h.start(2);
  const StepKey key = h.keys.at(0);
  const auto a = h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  h.keys[0] = key;
  const auto again = h.finish(0, 0);
  ASSERT_TRUE(again->report);
  EXPECT_EQ(*again->report, *a->report);
  EXPECT_EQ(h.lane.finished.size(), 1u);
}

TEST(Engine, a_rewound_step_number_is_a_new_step) {
  Harness h;
  h.start(1);
  h.lane.math.norm = 1;
  h.finish(0, 9);
  h.pump();
  h.lane.math.norm = 2;
  const auto rewound = h.finish(0, 9);
  h.pump();
  ASSERT_TRUE(rewound->report);
  EXPECT_EQ(rewound->report->norm, 2.0);
}

TEST(Engine, uses_all_threads_only_while_every_rank_waits) {
  Harness h;
  h.start(2);
  EXPECT_FALSE(h.lane.wide);
  h.finish(0, 0);
  EXPECT_FALSE(h.lane.wide);
  h.finish(1, 0);
  EXPECT_TRUE(h.lane.wide);
  h.pump();
  EXPECT_FALSE(h.lane.wide);
}

TEST(Engine, gives_the_lane_the_declared_clip_rule_and_takes_an_override) {
  Harness h;
  h.start(1);
  h.finish(0, 0);
  h.pump();
  EXPECT_EQ(h.lane.finished[0].rules.at(0).max_norm, 1.0);
  FinishRequest request = Harness::ready_all();
  request.override_max_norm = true;
  request.max_norm = 7.5;
  h.finish(0, 1, request);
  h.pump();
  EXPECT_EQ(h.lane.finished[1].rules.at(0).max_norm, 7.5);
  request.max_norm = std::nullopt;
  h.finish(0, 2, request);
  h.pump();
  EXPECT_EQ(h.lane.finished[2].rules.at(0).max_norm, std::nullopt);
}

TEST(Engine, refuses_a_bad_scale_or_max_norm_and_keeps_the_step_open) {
  Harness h;
  h.start(1);
  FinishRequest request = Harness::ready_all();
  request.scale = 0;
  EXPECT_EQ(h.finish(0, 0, request)->error->path, "scale");
  request.scale = std::numeric_limits<double>::infinity();
  EXPECT_EQ(h.finish(0, 0, request)->error->path, "scale");
  request.scale = 1;
  request.override_max_norm = true;
  request.max_norm = -1;
  EXPECT_EQ(h.finish(0, 0, request)->error->path, "max_norm");
  request.max_norm = 0;
  EXPECT_EQ(h.finish(0, 0, request)->error->code, ErrorCode::InvalidParams);
  const auto good = h.finish(0, 0);
  h.pump();
  EXPECT_TRUE(good->report);
}

TEST(Engine, ranks_with_different_scales_all_get_step_mismatch_and_can_go_on) {
  Harness h;
  h.start(2);
  FinishRequest scaled = Harness::ready_all();
  scaled.scale = 2;
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0, scaled);
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->code, ErrorCode::StepMismatch);
  EXPECT_THAT(a->error->message, HasSubstr("scale"));
  EXPECT_EQ(*a->error, *b->error);
  const auto c = h.finish(0, 0);
  const auto d = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(c->report && d->report);
  EXPECT_EQ(c->report->attempt, 1u);
}

TEST(Engine, a_lane_failure_reaches_every_rank_and_the_next_attempt_works) {
  Harness h;
  h.start(2);
  h.lane.fail_reductions = true;
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->code, ErrorCode::StepFailed);
  EXPECT_EQ(a->error->job, "job");
  h.lane.fail_reductions = false;
  const auto c = h.finish(0, 0);
  const auto d = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(c->report && d->report);
}

TEST(Engine, a_rank_that_comes_late_to_a_failed_step_gets_its_error) {
  EngineOptions options;
  options.deadlines.first_step = Milliseconds(1000);
  Harness h(options);
  h.start(2);
  const auto a = h.finish(0, 0);
  h.pass(Milliseconds(1000));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::StepTimeout);
  EXPECT_THAT(a->error->ranks, ElementsAre(1));
  const auto b = h.finish(1, 0);
  ASSERT_TRUE(b->error);
  EXPECT_EQ(*b->error, *a->error);
}

TEST(Engine, warns_once_at_half_of_the_deadline) {
  EngineOptions options;
  options.deadlines.first_step = Milliseconds(1000);
  Harness h(options);
  h.start(2);
  h.finish(0, 0);
  h.events.clear();
  h.pass(Milliseconds(500));
  h.pass(Milliseconds(100));
  ASSERT_EQ(h.events.size(), 1u);
  EXPECT_EQ(h.events[0].kind, "deadline_half");
  EXPECT_THAT(h.events[0].what, HasSubstr("rank 1"));
}

TEST(Engine, a_pause_stops_the_clock_of_those_who_wait) {
  EngineOptions options;
  options.deadlines.first_step = Milliseconds(1000);
  Harness h(options);
  h.start(2);
  const auto a = h.finish(0, 0);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  h.pass(Milliseconds(5000));
  EXPECT_EQ(a->calls, 0);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), false));
  h.pass(Milliseconds(999));
  EXPECT_EQ(a->calls, 0);
  h.pass(Milliseconds(1));
  EXPECT_TRUE(a->error);
}

TEST(Engine, norm_then_clip_is_one_step) {
  Harness h;
  h.start(2);
  plan::ClipOutcome measured;
  measured.norm = 4.0;
  h.lane.math.groups = {measured};
  h.lane.math.norm = 4.0;
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  const auto a = h.finish(0, 3, norm);
  const auto b = h.finish(1, 3, norm);
  h.pump();
  ASSERT_TRUE(a->report && b->report);
  EXPECT_EQ(a->report->norm, 4.0);
  EXPECT_FALSE(a->report->clipped);
  EXPECT_EQ(a->report->next_attempt, a->report->attempt);
  const auto clip = [&](std::int64_t rank) {
    auto outcome = std::make_shared<Outcome>();
    ClipRequest request;
    request.key = h.keys.at(rank);
    request.step = 3;
    request.override_max_norm = true;
    request.max_norm = 2.0;
    h.engine.clip(h.sessions.at(rank), request, h.listener(rank, outcome));
    return outcome;
  };
  const auto c = clip(0);
  const auto d = clip(1);
  h.pump();
  ASSERT_TRUE(c->report && d->report);
  EXPECT_TRUE(c->report->clipped);
  EXPECT_EQ(c->report->coefficient, 0.5);
  EXPECT_EQ(h.lane.scaled.at(0).outcomes.at(0).multiplier, 0.5);
  EXPECT_EQ(c->report->step, 3);
  EXPECT_EQ(c->report->next_attempt, 1u);
}

TEST(Engine, clip_apply_starts_from_the_norm_that_was_measured_not_from_the_rounded_one) {
  Harness h;
  h.start(2);
  const double measured = 4.0 * (1 + 0x1p-26);  // rounds to 4 as a float32
  plan::ClipOutcome reported;
  reported.norm = 4.0;
  h.lane.math.groups = {reported};
  h.lane.math.raw_group_norms = {measured * 1024};
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  norm.scale = 1024;
  h.finish(0, 0, norm);
  h.finish(1, 0, norm);
  h.pump();
  for (const std::int64_t rank : {0, 1}) {
    ClipRequest request;
    request.key = h.keys.at(rank);
    h.engine.clip(h.sessions.at(rank), request, h.listener(rank, std::make_shared<Outcome>()));
  }
  h.pump();
  const plan::ClipOutcome& outcome = h.lane.scaled.at(0).outcomes.at(0);
  EXPECT_LT(outcome.coefficient, 0.25);
  EXPECT_LE(outcome.multiplier * measured * 1024, 1.0) << "max_norm is 1";
}

TEST(Engine, lists_buckets_whose_digests_agree) {
  EngineOptions options;
  options.buckets = {32, 32};
  Harness h(options);
  h.start(2);
  FinishRequest a = Harness::ready_all();
  FinishRequest b = Harness::ready_all();
  a.bucket_digests = {1, 2};
  b.bucket_digests = {1, 3};
  const auto outcome = h.finish(0, 0, a);
  h.finish(1, 0, b);
  h.pump();
  EXPECT_THAT(outcome->report->stable_buckets, ElementsAre(0));
  const auto without = h.finish(0, 1);
  h.finish(1, 1, a);
  h.pump();
  EXPECT_THAT(without->report->stable_buckets, IsEmpty());
}

TEST(Engine, names_tensors_of_findings_and_raises_alerts) {
  Harness h;
  h.start(1, {Harness::tensor("a"), Harness::tensor("b")});
  h.lane.math.nonfinite = {{1, 3, {{0, 3}}}};
  h.lane.math.nonfinite_total = 3;
  h.lane.math.divergence = {{0, {0}}};
  const auto outcome = h.finish(0, 0);
  h.pump();
  ASSERT_TRUE(outcome->report);
  EXPECT_TRUE(outcome->report->found_inf);
  EXPECT_EQ(outcome->report->nonfinite.at(0).tensor, "b");
  EXPECT_EQ(outcome->report->divergence.at(0).tensor, "a");
  std::vector<std::string> kinds;
  for (const Event& event : h.events) {
    if (event.topic == "alert") {
      kinds.push_back(event.kind);
    }
  }
  EXPECT_THAT(kinds, ElementsAre("nonfinite", "divergence"));
}

TEST(Engine, a_finding_and_its_alert_say_which_micro_batch_completed_the_bucket) {
  Harness h;
  h.start(2, {Harness::tensor("a"), Harness::tensor("b")});
  h.lane.math.nonfinite = {{1, 4, {{0, 3}, {1, 1}}}};
  h.lane.math.nonfinite_total = 4;
  FinishRequest last = Harness::ready_all();
  last.micro_batch = 7;
  const auto outcome = h.finish(0, 0, last);
  h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(outcome->report);
  const std::vector<NonfiniteInput>& inputs = outcome->report->nonfinite.at(0).inputs;
  EXPECT_THAT(inputs, ElementsAre(NonfiniteInput{0, 3, 7}, NonfiniteInput{1, 1, std::nullopt}));
  const auto alert =
      std::find_if(h.events.begin(), h.events.end(), [](const Event& event) { return event.topic == "alert"; });
  ASSERT_NE(alert, h.events.end());
  EXPECT_EQ(
      alert->what, "step 0: 4 non-finite values, first in tensor 'b' of rank 0 (complete in micro-batch 7), rank 1"
  );
}

TEST(Engine, ranks_with_arenas_are_told_which_steps_are_checked) {
  Harness h;
  h.start(1, {Harness::tensor("a")});
  std::vector<bool> next;
  for (std::int64_t step = 0; step < 4; ++step) {
    const auto outcome = h.finish(0, step);
    h.pump();
    next.push_back(outcome->report->check_next);
  }
  EXPECT_THAT(next, ElementsAre(true, true, false, false));
}

TEST(Engine, another_uid_sees_neither_job_nor_plan) {
  Harness h;
  h.start(1);
  EXPECT_THAT(h.engine.status(7), IsEmpty());
  EXPECT_EQ(h.engine.plan_of(7, "job").error().code, ErrorCode::UnknownJob);
  EXPECT_EQ(h.engine.stats(7, "job", 1).error().code, ErrorCode::UnknownJob);
  EXPECT_TRUE(h.engine.plan_of(std::nullopt, "job"));
}

TEST(Engine, still_explains_the_plan_to_those_who_stay_when_a_rank_detached) {
  Harness h;
  h.start(2);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(1)));
  h.pump();
  EXPECT_TRUE(h.engine.plan_of(1000, "job"));
}

TEST(Engine, keeps_two_jobs_apart) {
  Harness h;
  h.start(1);
  AttachRequest other = h.request(0, 1);
  other.job = "other";
  other.pid = 900;
  const Result<AttachResult> attached = h.engine.attach(other);
  ASSERT_TRUE(attached);
  EXPECT_EQ(h.engine.status(1000).size(), 2u);
  EXPECT_TRUE(h.engine.detach(attached->session));
  EXPECT_EQ(h.engine.status(1000).size(), 1u);
  const auto outcome = h.finish(0, 0);
  h.pump();
  EXPECT_TRUE(outcome->report);
}

TEST(Engine, a_draining_daemon_takes_no_ranks_but_finishes_steps) {
  Harness h;
  h.start(2);
  h.ready(0, 0);
  h.engine.drain();
  EXPECT_FALSE(h.engine.idle()) << "the step has begun, though nobody waits for it yet";
  h.finish(0, 0);
  const auto outcome = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(outcome->report);
  EXPECT_TRUE(h.engine.idle());
  AttachRequest request = h.request(0, 1);
  request.job = "late";
  EXPECT_EQ(h.engine.attach(request).error().code, ErrorCode::Draining);
}

TEST(Engine, a_draining_daemon_begins_no_step_anew_while_it_waits_for_another_job) {
  Harness h;
  h.start(1);
  AttachRequest request = h.request(0, 1);
  request.job = "other";
  request.pid = 555;
  const Result<AttachResult> other = h.engine.attach(request);
  ASSERT_TRUE(other);
  h.sessions[1] = other->session;
  h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  h.ready(1, 0);
  h.engine.drain();
  const auto late = h.finish(0, 0);
  EXPECT_EQ(h.lane.count<device::ReduceBucket>(), 1u) << "of the other job alone";
  EXPECT_FALSE(h.engine.idle());
  const auto done = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(done->report);
  EXPECT_EQ(late->calls, 0) << "it goes on with the successor";
  EXPECT_TRUE(h.engine.idle());
}

TEST(Engine, a_draining_daemon_answers_declarations_that_wait_for_ranks_that_cannot_come) {
  Harness h;
  h.attach(0, 2);
  const plan::RankDeclaration declaration = Harness::declaration({Harness::tensor("a")});
  const auto waiting = h.declare(0, declaration);
  h.pump();
  EXPECT_FALSE(waiting->result);
  h.engine.drain();
  h.pump();
  ASSERT_TRUE(waiting->error);
  EXPECT_EQ(waiting->error->code, ErrorCode::Draining);
  EXPECT_TRUE(h.engine.idle());
  const auto late = h.declare(0, declaration);
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->code, ErrorCode::Draining);
}

TEST(Engine, history_keeps_the_last_reports) {
  EngineOptions options;
  options.history = 2;
  Harness h(options);
  h.start(1);
  for (int step = 0; step < 3; ++step) {
    h.finish(0, step);
    h.pump();
  }
  const auto reports = h.engine.stats(1000, "job", 10);
  ASSERT_TRUE(reports);
  ASSERT_EQ(reports->size(), 2u);
  EXPECT_EQ((*reports)[0]->step, 1);
  EXPECT_EQ((*reports)[1]->step, 2);
}

TEST(Engine, a_step_before_the_declaration_is_refused) {
  Harness h;
  h.attach(0, 1);
  const auto outcome = h.finish(0, 0);
  ASSERT_TRUE(outcome->error);
  EXPECT_EQ(outcome->error->code, ErrorCode::NotDeclared);
  auto orphan = std::make_shared<Outcome>();
  h.engine.finish(999, Harness::ready_all(), h.listener(0, orphan));
  EXPECT_EQ(orphan->error->code, ErrorCode::NotAttached);
}

TEST(Engine, a_second_concurrent_call_answers_the_first) {
  Harness h;
  h.start(2);
  const auto first = h.finish(0, 0);
  const auto second = h.finish(0, 0);
  ASSERT_EQ(first->calls, 1);
  EXPECT_EQ(first->error->code, ErrorCode::Superseded);
  h.finish(1, 0);
  h.pump();
  EXPECT_EQ(first->calls, 1);
  EXPECT_TRUE(second->report);
}

// A job that idles is not looked at when something happens to another, in whatever part of the engine.
TEST(Engine, what_an_event_costs_does_not_grow_with_idle_jobs) {
  const auto looks_in_a_step = [](int idle_jobs) {
    Harness h;
    h.start(2);
    for (int number = 0; number < idle_jobs; ++number) {
      AttachRequest idle = h.request(0, 4096);
      idle.job = "idle-" + std::to_string(number);
      EXPECT_TRUE(h.engine.attach(idle));
    }
    const std::uint64_t before = h.engine.looks_at_jobs();
    h.ready(0, 0);
    h.pass(Milliseconds(1));
    h.finish(0, 0);
    h.pass(Milliseconds(1));
    const auto last = h.finish(1, 0);
    h.pump();
    EXPECT_TRUE(last->report);
    EXPECT_EQ(h.engine.status(1000).size(), static_cast<std::size_t>(idle_jobs) + 1);
    return h.engine.looks_at_jobs() - before;
  };
  EXPECT_GT(looks_in_a_step(0), 0u);
  EXPECT_EQ(looks_in_a_step(200), looks_in_a_step(0));
}

// Its deadlines come all the same.
TEST(Engine, a_rank_of_one_job_of_many_is_lost_when_its_time_to_come_back_is_over) {
  Harness h;
  std::vector<SessionId> sessions;
  for (int number = 0; number < 5; ++number) {
    AttachRequest request = h.request(0, 4096);
    request.job = "job-" + std::to_string(number);
    sessions.push_back(h.engine.attach(request)->session);
    h.pass(Milliseconds(100));
  }
  h.engine.connection_lost(sessions[3]);
  h.pass(Milliseconds(100));
  h.engine.connection_lost(sessions[1]);
  ASSERT_EQ(h.engine.next_deadline(), h.now + Milliseconds(1900));
  h.pass(Milliseconds(1900));
  EXPECT_EQ(h.engine.status(1000).size(), 4u) << "job-3 has no rank any more";
  EXPECT_EQ(h.engine.detach(sessions[3]).error().code, ErrorCode::RankLost);
  ASSERT_EQ(h.engine.next_deadline(), h.now + Milliseconds(100));
  h.pass(Milliseconds(100));
  EXPECT_EQ(h.engine.status(1000).size(), 3u);
  EXPECT_FALSE(h.engine.next_deadline());
}

}  // namespace
}  // namespace gradsync::engine
