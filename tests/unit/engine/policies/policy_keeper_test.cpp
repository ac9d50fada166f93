// What policies remember of a step that is prepared, when it is done and when it is not.

#include "engine/policies/policy_keeper.hpp"

#include "engine/report/step_report.hpp"
#include "unit/engine/policies/group_steps.hpp"
#include "unit/engine/policies/state_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradsync::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// The keeper of a job with a median that is watched by a score.
class Keeper {
 public:
  explicit Keeper(const std::string& directory = {}, std::vector<LastDone> last_done = {})
      : keeper({kUid, "train", 0}, directory, metrics.policies, [this](const char* kind, const std::string&) {
          alerts.emplace_back(kind);
        }) {
    keeper.adopt(plan, last_done);
  }

  StepReport prepare(double norm, bool abandoned = false) {
    StepTerms terms;
    terms.abandoned = abandoned;
    std::vector<plan::ClipRule> rules;
    keeper.rules(terms, rules);
    math = {};
    math.groups = {plan::apply_clip_rule(rules.front(), norm, 1)};
    math.raw_group_norms = {norm};
    StepReport report;
    step_report(plan, report_constants(plan), math, report);
    report.epoch = 1;
    report.attempt = attempt++;
    keeper.prepare(math, terms, report);
    return report;
  }

  StepReport step(double norm, bool abandoned = false) {
    StepReport report = prepare(norm, abandoned);
    StepTerms terms;
    terms.abandoned = abandoned;
    keeper.commit(plan, math.groups, terms, 0);
    return report;
  }

  [[nodiscard]] std::string state() const { return keeper.exported()->state; }

  [[nodiscard]] double counted() const {
    double steps = 0;
    for (const auto& family : registry.Collect()) {
      for (const auto& metric : family.metric) {
        steps += family.name.starts_with("gradsync_policy") ? metric.counter.value : 0;
      }
    }
    return steps;
  }

  plan::Plan plan = plan_of({clip(kMedian, {kScore})});
  prometheus::Registry registry;
  EngineMetrics metrics{registry};
  std::vector<std::string> alerts;
  device::StepMath math;
  std::uint64_t attempt = 0;
  PolicyKeeper keeper;
};

TEST(PolicyKeeper, forgets_a_step_that_is_not_done_bit_for_bit) {
  Keeper kept;
  Keeper twin;  // which never hears of that step
  for (const double norm : {0.5, 0.75, 0.25, 0.625}) {
    EXPECT_EQ(kept.step(norm).policy_digest, twin.step(norm).policy_digest);
  }
  const std::string before = kept.state();
  const double counted = kept.counted();
  const std::vector<ClipStatus> health = kept.keeper.status();
  const StepReport failed = kept.prepare(4);
  EXPECT_TRUE(failed.clipped);
  EXPECT_NE(failed.policy_digest, kept.keeper.digest());
  EXPECT_EQ(kept.state(), before) << "nobody exports what may still fail";
  kept.keeper.restore();
  EXPECT_EQ(kept.state(), before);
  EXPECT_EQ(kept.counted(), counted);
  EXPECT_EQ(kept.keeper.status().front().steps, health.front().steps);
  for (const double norm : {0.125, 0.75, 4.0}) {
    const StepReport next = kept.step(norm);
    EXPECT_EQ(next.groups, twin.step(norm).groups) << "thresholds, and those of the watcher";
    EXPECT_EQ(kept.state(), twin.state());
    EXPECT_EQ(next.policy_digest, kept.keeper.digest());
  }
  EXPECT_THAT(kept.alerts, IsEmpty());
}

TEST(PolicyKeeper, goes_on_with_a_step_that_is_done) {
  Keeper kept;
  kept.step(0.5);
  const std::string before = kept.state();
  const double counted = kept.counted();
  const StepReport report = kept.prepare(4);
  EXPECT_EQ(kept.counted(), counted);
  kept.keeper.commit(kept.plan, kept.math.groups, {}, 1);
  EXPECT_NE(kept.state(), before);
  EXPECT_EQ(kept.keeper.digest(), report.policy_digest);
  EXPECT_GT(kept.counted(), counted);
  EXPECT_EQ(kept.keeper.status().front().steps, 2);
}

TEST(PolicyKeeper, a_step_that_is_abandoned_leaves_the_state_done_or_not) {
  Keeper kept;
  for (const double norm : {0.5, 0.75, 0.25}) {
    kept.step(norm);
  }
  const std::string before = kept.state();
  EXPECT_EQ(kept.prepare(100, true).policy_digest, kept.keeper.digest());
  kept.keeper.restore();
  EXPECT_EQ(kept.state(), before);
  kept.step(100, true);
  EXPECT_EQ(kept.state(), before);
  EXPECT_EQ(kept.keeper.status().front().steps, 3);
}

TEST(PolicyKeeper, an_import_is_taken_back_where_it_is_not_done) {
  Keeper other;
  for (const double norm : {0.5, 0.5, 0.5, 0.5}) {
    other.step(norm);
  }
  Keeper kept;
  kept.step(0.25);
  const std::string before = kept.state();
  StepReport report;
  kept.keeper.prepare_import(other.state(), report);
  EXPECT_EQ(report.policy_digest, other.keeper.digest());
  EXPECT_EQ(kept.state(), before);
  kept.keeper.restore();
  EXPECT_EQ(kept.state(), before);
  kept.keeper.prepare_import(other.state(), report);
  kept.keeper.commit_import();
  EXPECT_EQ(kept.state(), other.state());
  EXPECT_EQ(kept.step(0.75).groups.front().threshold, 0.5);
}

/// A daemon that is killed while it does not know what became of the step that it voted for.
TEST(PolicyKeeper, the_next_daemon_goes_on_with_the_step_that_the_verdict_says) {
  for (const bool done : {false, true}) {
    const StateFolder folder;
    std::string before;
    std::string digest;
    {
      Keeper killed(folder.path());
      for (const double norm : {0.5, 0.75, 0.25}) {
        killed.step(norm);
      }
      before = killed.state();
      digest = killed.prepare(0.625).policy_digest;
    }
    const std::uint64_t known = done ? 3 : 2;
    Keeper next(folder.path(), {{2, {1, known}}, {3, {1, known}}});
    EXPECT_EQ(next.state() == before, !done);
    EXPECT_EQ(next.keeper.digest() == digest, done);
    EXPECT_THAT(next.alerts, IsEmpty());
  }
}

TEST(PolicyKeeper, ranks_that_know_different_steps_are_named) {
  const StateFolder folder;
  { Keeper(folder.path()).step(0.5); }
  const Keeper next(folder.path(), {{2, {1, 0}}, {3, {1, 1}}});
  EXPECT_THAT(next.alerts, ElementsAre("policy_state"));
}

TEST(PolicyKeeper, a_state_that_fails_to_be_staged_is_lost_before_the_vote) {
  const StateFolder folder;
  Keeper kept(folder.path());
  kept.step(0.5);
  {
    const FileLimit limit(0);
    kept.prepare(0.75);
  }
  EXPECT_THAT(kept.alerts, ElementsAre("policy_state"));
  kept.keeper.commit(kept.plan, kept.math.groups, {}, 1);
  EXPECT_EQ(kept.keeper.status().front().steps, 2) << "the step itself is done";
}

}  // namespace
}  // namespace gradsync::engine
