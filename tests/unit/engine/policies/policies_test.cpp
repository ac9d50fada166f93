// Policies in the steps of a job: what the lane is told, what ranks are told, and when a norm is remembered.

#include "fakes/not_finite.hpp"
#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gradsync::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class Policies : public testing::Test {
 protected:
  static plan::ClipOptions percentile(std::optional<double> ceiling = std::nullopt) {
    plan::ClipOptions clip;
    clip.max_norm = ceiling;
    clip.policy = plan::PercentilePolicy{50, 4, 2};
    return clip;
  }

  void declare(std::int64_t rank) {
    plan::RankDeclaration declaration = Harness::declaration({Harness::tensor("a"), Harness::tensor("b")});
    if (!second.empty()) {
      declaration.tensors.own()[1].clip_group = second;
    }
    declaration.options.clip = clips;
    h.declare(rank, declaration);
  }

  void start(std::vector<plan::ClipGroupOptions> declared, std::int64_t world_size = 1) {
    clips = std::move(declared);
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      h.attach(rank, world_size);
    }
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      declare(rank);
    }
    h.pump();
  }

  StepReport step(std::vector<double> norms, FinishRequest request = Harness::ready_all()) {
    h.lane.raw_norms = std::move(norms);
    const auto outcome = h.finish(0, ++number, std::move(request));
    h.pump();
    EXPECT_TRUE(outcome->report) << (outcome->error ? outcome->error->message : "no answer");
    return outcome->report.value_or(StepReport{});
  }

  /// Norms 1, 2, 3: the median of what is remembered is 2, and the warm-up of two norms is over.
  void warm_up() {
    for (const double norm : {1.0, 2.0, 3.0}) {
      step({norm});
    }
  }

  Harness h;
  std::vector<plan::ClipGroupOptions> clips;
  std::string second;  ///< clip group of the second tensor
  std::int64_t number = 0;
};

TEST_F(Policies, the_threshold_is_that_of_the_norms_before) {
  start({{"all", percentile()}});
  EXPECT_EQ(step({1}).threshold, kInfinity) << "warm-up, no ceiling";
  EXPECT_EQ(step({3}).threshold, kInfinity);
  EXPECT_EQ(step({4}).threshold, 2) << "the median of 1 and 3; 4 is remembered after it was compared";
  const StepReport report = step({6});
  EXPECT_EQ(report.threshold, 3);
  EXPECT_EQ(report.coefficient, 0.5);
  EXPECT_TRUE(report.clipped);
}

TEST_F(Policies, a_steps_max_norm_is_the_ceiling) {
  start({{"all", percentile(10)}});
  warm_up();
  FinishRequest request = Harness::ready_all();
  request.override_max_norm = true;
  request.max_norm = 0.5;
  EXPECT_EQ(step({8}, request).threshold, 0.5);
  EXPECT_EQ(step({8}).threshold, 2.5) << "the norm of 8 was remembered, and the ceiling is as declared again";
}

TEST_F(Policies, a_failed_attempt_remembers_nothing) {
  start({{"all", percentile()}});
  warm_up();
  h.lane.raw_norms = {100};
  h.lane.fail_reductions = true;
  const auto failed = h.finish(0, 9);
  h.pump();
  ASSERT_TRUE(failed->error);
  h.lane.fail_reductions = false;
  EXPECT_EQ(step({2}).threshold, 2);
}

TEST_F(Policies, a_norm_that_is_given_out_is_remembered_once_when_it_is_applied) {
  start({{"all", percentile()}});
  warm_up();
  const std::string before = step({2}).policy_digest;  // remembers 1, 2, 3, 2
  FinishRequest request = Harness::ready_all();
  request.kind = FinishKind::NormOnly;
  const StepReport measured = step({4}, request);
  EXPECT_EQ(measured.policy_digest, before);
  EXPECT_EQ(measured.coefficient, 1);
  std::optional<StepReport> applied;
  h.engine.clip(h.sessions.at(0), {h.keys.at(0), number, {}, false, {}}, [&](const Result<RankReport>& result) {
    applied = *result->report;
  });
  h.pump();
  ASSERT_TRUE(applied);
  EXPECT_EQ(applied->threshold, 2);
  EXPECT_EQ(applied->coefficient, 0.5);
  EXPECT_EQ(h.lane.scaled.back().outcomes.at(0).coefficient, 0.5);
  EXPECT_NE(applied->policy_digest, before);
  h.keys[0] = {applied->epoch, applied->next_attempt};
  EXPECT_EQ(step({1}).threshold, 2.5) << "of 2, 3, 2, 4";
}

TEST_F(Policies, a_group_that_skips_skips_for_all_and_nobody_remembers) {
  second = "head";
  plan::ClipOptions skips = percentile();
  skips.nonfinite = plan::NonfiniteAction::Skip;
  start({{"all", skips}, {"head", percentile()}});
  step({1, 10});
  step({3, 30});
  const StepReport report = step({kNaN, 50});
  EXPECT_EQ(report.action, plan::StepAction::Skip);
  EXPECT_TRUE(report.skipped);
  EXPECT_TRUE(report.clipped) << "50 is above the threshold of head";
  EXPECT_FALSE(report.groups.at(0).clipped);
  EXPECT_TRUE(report.groups.at(1).clipped);
  EXPECT_THAT(report.reason, HasSubstr("skip"));
  EXPECT_EQ(report.groups.at(1).action, plan::StepAction::Skip);
  EXPECT_EQ(report.groups.at(1).coefficient, 1);
  const StepReport next = step({1, 10});
  EXPECT_EQ(next.groups.at(0).threshold, 2);
  EXPECT_EQ(next.groups.at(1).threshold, 20) << "not of 50";
  ASSERT_THAT(h.events, testing::Contains(testing::Field(&Event::kind, "step_skipped")));
}

TEST_F(Policies, in_halves_a_group_that_raises_raises_for_all) {
  second = "head";
  plan::ClipOptions raises = percentile();
  raises.nonfinite = plan::NonfiniteAction::Raise;
  plan::ClipOptions fixed;
  fixed.max_norm = 1;
  start({{"all", fixed}, {"head", raises}});
  FinishRequest request = Harness::ready_all();
  request.kind = FinishKind::NormOnly;
  EXPECT_EQ(step({5, kInfinity}, request).action, plan::StepAction::Step) << "clip.apply decides";
  std::optional<StepReport> applied;
  h.engine.clip(h.sessions.at(0), {h.keys.at(0), number, {}, false, {}}, [&](const Result<RankReport>& result) {
    applied = *result->report;
  });
  h.pump();
  ASSERT_TRUE(applied);
  EXPECT_EQ(applied->action, plan::StepAction::Raise);
  EXPECT_EQ(applied->reason, applied->groups.at(1).reason);
  EXPECT_FALSE(h.lane.scaled.back().outcomes.at(0).multiply) << "no group is multiplied";
}

TEST_F(Policies, zero_is_of_one_group_and_the_step_is_taken) {
  second = "head";
  plan::ClipOptions zeroes;
  zeroes.nonfinite = plan::NonfiniteAction::Zero;
  start({{"all", zeroes}, {"head", percentile()}});
  const StepReport report = step({kNaN, 3});
  EXPECT_EQ(report.groups.at(0).action, plan::StepAction::Zero);
  EXPECT_EQ(report.groups.at(1).action, plan::StepAction::Step);
  EXPECT_EQ(report.action, plan::StepAction::Step);
  EXPECT_FALSE(report.skipped);
}

TEST_F(Policies, with_a_loss_scale_no_group_remembers_a_step_with_an_inf) {
  second = "head";
  start({{"all", percentile()}, {"head", percentile()}});
  FinishRequest scaled = Harness::ready_all();
  scaled.scale = 2;
  scaled.scaled = true;
  step({2, 20}, scaled);
  step({6, 60}, scaled);
  step({kInfinity, 200}, scaled);
  const StepReport next = step({2, 20}, scaled);
  EXPECT_EQ(next.groups.at(0).threshold, 2) << "of 1 and 3, unscaled";
  EXPECT_EQ(next.groups.at(1).threshold, 20);
}

TEST_F(Policies, with_a_loss_scale_a_norm_that_is_not_finite_skips_whatever_was_declared) {
  for (const plan::NonfiniteAction action :
       {plan::NonfiniteAction::Propagate, plan::NonfiniteAction::Zero, plan::NonfiniteAction::Raise}) {
    Harness other;
    plan::RankDeclaration declaration = Harness::declaration({Harness::tensor("a")});
    declaration.options.clip[0].clip.nonfinite = action;
    other.attach(0, 1);
    other.declare(0, declaration);
    other.pump();
    other.lane.raw_norms = {kNaN};
    FinishRequest scaled = Harness::ready_all();
    scaled.scaled = true;
    const auto outcome = other.finish(0, 1, scaled);
    other.pump();
    ASSERT_TRUE(outcome->report);
    EXPECT_EQ(outcome->report->action, plan::StepAction::Skip);
    EXPECT_TRUE(outcome->report->found_inf);
    EXPECT_THAT(other.events, testing::Not(testing::Contains(testing::Field(&Event::kind, "step_skipped"))));
  }
}

TEST_F(Policies, a_step_that_is_abandoned_is_neither_clipped_nor_remembered_nor_refused) {
  plan::ClipOptions raises = percentile();
  raises.nonfinite = plan::NonfiniteAction::Raise;
  start({{"all", raises}});
  warm_up();
  const std::string before = step({2}).policy_digest;
  for (const double norm : {100.0, kNaN}) {
    FinishRequest request = Harness::ready_all();
    request.kind = FinishKind::NormOnly;
    step({norm}, request);
    std::optional<StepReport> ended;
    ClipRequest abandon;
    abandon.key = h.keys.at(0);
    abandon.step = number;
    abandon.abandon = true;
    h.engine.clip(h.sessions.at(0), abandon, [&](const Result<RankReport>& result) { ended = *result->report; });
    h.pump();
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->action, plan::StepAction::Step);
    EXPECT_FALSE(ended->clipped);
    EXPECT_FALSE(h.lane.scaled.back().outcomes.at(0).multiply);
    EXPECT_EQ(ended->policy_digest, before);
    h.keys[0] = {ended->epoch, ended->next_attempt};
  }
  EXPECT_EQ(step({4}).threshold, 2) << "of 1, 2, 3 and 2";
}

TEST_F(Policies, copies_wait_for_the_finish_where_it_is_expected_to_multiply) {
  plan::ClipOptions fixed;
  fixed.max_norm = 1;
  start({{"all", fixed}});
  std::vector<bool> deferred;
  const auto reduced = [&](double norm, FinishKind kind = FinishKind::Finish) {
    FinishRequest request = Harness::ready_all();
    request.kind = kind;
    step({norm}, request);
    deferred.push_back(h.lane.reduced.back().defer);
  };
  for (const double norm : {2.0, 2.0, 2.0, 2.0, 0.5, 2.0, 2.0, 2.0}) {
    reduced(norm);
  }
  EXPECT_THAT(deferred, ElementsAre(false, false, true, true, true, false, false, true));

  deferred.clear();
  for (int i = 0; i < 3; ++i) {
    reduced(2, FinishKind::NormOnly);
    h.engine.clip(h.sessions.at(0), {h.keys.at(0), number, {}, false, {}}, [&](const Result<RankReport>& result) {
      h.keys[0] = {result->report->epoch, result->report->next_attempt};
    });
    h.pump();
  }
  EXPECT_THAT(deferred, ElementsAre(true, false, false)) << "trainers see the sums in between";
}

TEST_F(Policies, a_declaration_that_loses_what_was_remembered_says_so) {
  start({{"all", percentile()}});
  warm_up();
  clips[0].clip.watch = {plan::ObservePolicy{}};
  declare(0);
  h.pump();
  EXPECT_THAT(h.events, testing::Not(testing::Contains(testing::Field(&Event::kind, "policy_state"))));
  clips[0].clip.policy = plan::FixedPolicy{};
  declare(0);
  h.pump();
  EXPECT_THAT(h.events, testing::Contains(testing::Field(&Event::kind, "policy_state")));
}

TEST_F(Policies, those_that_watch_say_what_they_would_have_done) {
  plan::ClipOptions clip;
  clip.max_norm = 100;
  clip.watch = {plan::PercentilePolicy{50, 4, 2}, plan::ObservePolicy{}};
  start({{"all", clip}});
  warm_up();
  const StepReport report = step({8});
  EXPECT_EQ(report.threshold, 100);
  EXPECT_FALSE(report.clipped);
  ASSERT_THAT(report.groups.at(0).watch, SizeIs(2));
  const WatchReport& watch = report.groups[0].watch[0];
  EXPECT_EQ(watch.policy, "percentile 50, window 4, warmup 2");
  EXPECT_EQ(watch.threshold, 2);
  EXPECT_EQ(watch.coefficient, 0.25);
  EXPECT_TRUE(watch.clipped);
  EXPECT_EQ(report.groups[0].watch[1].policy, "observe");
  EXPECT_FALSE(report.groups[0].watch[1].clipped);
  const auto families = h.registry.Collect();
  double would_have = 0;
  for (const auto& family : families) {
    for (const auto& metric : family.metric) {
      if (family.name == "gradsync_policy_clipped_total" && metric.label.size() == 2 &&
          metric.label[0].value + metric.label[1].value == "percentilewatches") {
        would_have = metric.counter.value;
      }
    }
  }
  EXPECT_EQ(would_have, 2) << "3 above the median of 1 and 2, and 8";
}

TEST_F(Policies, signs_of_ill_health_are_alerts_when_they_begin_and_when_they_end) {
  plan::ClipOptions clip;
  clip.max_norm = 2;
  clip.policy = plan::PercentilePolicy{50, 4, 2};
  clip.watch = {plan::FixedPolicy{}};
  start({{"all", clip}});
  const auto alerts = [&] {
    std::vector<std::string> texts;
    for (const Event& event : h.events) {
      if (event.kind == "clip_health") {
        texts.push_back(event.what);
      }
    }
    return texts;
  };
  for (int i = 0; i < 199; ++i) {  // of the first window, two steps came before the percentile was warm
    step({8});
  }
  EXPECT_THAT(alerts(), testing::IsEmpty());
  step({8});
  ASSERT_THAT(alerts(), SizeIs(1)) << "windows of 100 steps; that of the fixed policy is of 1,000";
  EXPECT_EQ(
      alerts()[0],
      "step 200, clip group 'all', percentile 50, window 4, warmup 2: max_norm decided in 100 of 100 steps, and 100 % "
      "were clipped: norms are above it"
  );
  const std::vector<ClipStatus> ill = h.engine.status(std::nullopt).at(0).clip;
  ASSERT_THAT(ill, SizeIs(2));
  EXPECT_THAT(ill[0].signs, ElementsAre(HasSubstr("max_norm decided in 100 of 100 steps")));
  EXPECT_EQ(ill[0].steps, 100);
  EXPECT_EQ(ill[0].clip_rate, 1);
  EXPECT_EQ(ill[0].threshold, 2);
  EXPECT_TRUE(ill[1].watches);
  EXPECT_EQ(ill[1].steps, 200);

  declare(0);  // as before: the windows go on
  h.pump();
  for (int i = 0; i < 100; ++i) {
    step({i % 2 == 0 ? 1.0 : 1.5});
  }
  ASSERT_THAT(alerts(), SizeIs(2));
  EXPECT_THAT(alerts()[1], testing::StartsWith("over: step 300, clip group 'all'"));
  EXPECT_THAT(h.engine.status(std::nullopt).at(0).clip.at(0).signs, testing::IsEmpty());
}

TEST_F(Policies, survivors_go_on_with_what_was_remembered) {
  start({{"all", percentile()}}, 2);
  const auto both = [&](double norm) {
    h.lane.raw_norms = {norm};
    ++number;
    const auto a = h.finish(0, number);
    const auto b = h.finish(1, number);
    h.pump();
    EXPECT_TRUE(a->report && b->report);
    EXPECT_EQ(a->report.value_or(StepReport{}), b->report.value_or(StepReport{}));
    return a->report.value_or(StepReport{});
  };
  both(1);
  const std::string digest = both(3).policy_digest;
  h.engine.process_exited(h.sessions.at(1));
  h.generation = 1;
  h.attach(1, 2);
  declare(1);
  h.pump();
  h.keys[0] = h.keys.at(1);
  const StepReport report = both(8);
  EXPECT_EQ(report.threshold, 2);
  EXPECT_NE(report.policy_digest, digest);
}

TEST_F(Policies, another_declaration_keeps_what_is_remembered_of_equal_policies) {
  start({{"all", percentile()}});
  warm_up();
  clips = {{"all", percentile(2.5)}};  // another ceiling, the same window
  declare(0);
  h.pump();
  EXPECT_EQ(step({4}).threshold, 2);
  clips[0].clip.policy = plan::PercentilePolicy{50, 8, 2};
  declare(0);
  h.pump();
  EXPECT_EQ(step({4}).threshold, 2.5) << "another window begins anew";
}

class Imports : public Policies {
 protected:
  void SetUp() override {
    start({{"all", percentile()}}, 2);
    both(1);
    both(3);
    saved = export_state();
  }

  std::shared_ptr<Outcome> import(std::int64_t rank, const std::string& state) {
    auto outcome = std::make_shared<Outcome>();
    h.engine.import_policies(h.sessions.at(rank), {h.keys.at(rank), state, {}}, h.listener(rank, outcome));
    return outcome;
  }

  std::string export_state() {
    const Result<PolicyExport> exported = h.engine.export_policies(h.sessions.at(0));
    EXPECT_TRUE(exported);
    return exported->state;
  }

  StepReport both(double norm) {
    h.lane.raw_norms = {norm};
    ++number;
    const auto a = h.finish(0, number);
    const auto b = h.finish(1, number);
    h.pump();
    EXPECT_TRUE(a->report && b->report);
    return a->report.value_or(StepReport{});
  }

  std::string saved;  ///< remembers 1 and 3
};

TEST_F(Imports, go_on_where_the_state_was_exported) {
  const StepReport first = both(8);
  both(9);
  const auto a = import(0, saved);
  EXPECT_EQ(a->calls, 0) << "rank 1 has not asked";
  const auto b = import(1, saved);
  ASSERT_TRUE(a->report && b->report);
  EXPECT_EQ(a->report->next_attempt, a->report->attempt + 1);
  EXPECT_EQ(export_state(), saved);
  const StepReport again = both(8);
  EXPECT_EQ(again.threshold, first.threshold);
  EXPECT_EQ(again.policy_digest, first.policy_digest);
}

TEST_F(Imports, are_no_steps) {
  const auto steps = h.metrics.steps_committed.Value();
  import(0, saved);
  import(1, saved);
  EXPECT_EQ(h.metrics.steps_committed.Value(), steps);
  EXPECT_EQ(h.engine.stats({}, "job", 10)->size(), 2U);
}

TEST_F(Imports, of_different_states_fail_on_all_ranks_and_change_nothing) {
  both(8);
  const std::string other = export_state();
  const auto a = import(0, saved);
  const auto b = import(1, other);
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->code, ErrorCode::StepMismatch);
  EXPECT_THAT(a->error->message, HasSubstr("digest"));
  EXPECT_EQ(export_state(), other);
  EXPECT_EQ(both(8).threshold, 3);
}

TEST_F(Imports, against_a_step_of_another_rank_are_a_disagreement) {
  const auto a = import(0, saved);
  h.ready(1, 0);
  EXPECT_TRUE(h.lane.commands.empty()) << "nothing is reduced while a rank imports";
  const auto b = h.finish(1, 7);
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_THAT(b->error->message, HasSubstr("policy.import"));
  EXPECT_THAT(b->error->message, HasSubstr("step.finish"));
}

TEST_F(Imports, in_the_middle_of_a_step_are_refused_and_the_step_goes_on) {
  h.ready(0, 0);
  const auto refused = import(0, saved);
  ASSERT_TRUE(refused->error);
  EXPECT_EQ(refused->error->code, ErrorCode::StepMismatch);
  h.lane.raw_norms = {2};
  const auto a = h.finish(0, 7);
  const auto b = h.finish(1, 7);
  h.pump();
  EXPECT_TRUE(a->report && b->report);
}

TEST_F(Imports, of_what_is_no_state_are_refused_at_once) {
  std::string damaged = saved;
  damaged[damaged.size() / 2] ^= 1;
  const auto refused = import(0, damaged);
  ASSERT_TRUE(refused->error);
  EXPECT_EQ(refused->error->code, ErrorCode::InvalidParams);
  EXPECT_EQ(refused->error->path, "state");
  EXPECT_EQ(both(8).threshold, 2);
}

TEST_F(Imports, that_come_again_get_the_same_answer) {
  const StepKey key = h.keys.at(0);
  const auto a = import(0, saved);
  import(1, saved);
  h.keys[0] = key;
  const auto again = import(0, saved);
  ASSERT_TRUE(again->report);
  EXPECT_EQ(*again->report, *a->report);
}

TEST_F(Imports, have_a_deadline) {
  const auto a = import(0, saved);
  h.pass(Milliseconds(601'000));
  h.pump();
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::StepTimeout);
  EXPECT_THAT(a->error->ranks, ElementsAre(1));
}

}  // namespace
}  // namespace gradsync::engine
