#include "engine/report/step_report.hpp"

#include "engine/plan/planner.hpp"
#include "engine/report/largest_report.hpp"
#include "unit/engine/harness.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

/// Two clip groups, the first with a policy that watches, and layers.
std::unique_ptr<PreparedPlan> two_groups() {
  std::vector<plan::TensorDeclaration> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back(Harness::tensor(name));
    tensors.back().layer = std::string("layer of ") + name;
    tensors.back().clip_group = tensors.size() == 1 ? "one" : "other";
  }
  plan::RankDeclaration declaration = Harness::declaration(tensors);
  plan::ClipOptions watched{1.0, plan::ZeroRule::Refuse};
  watched.watch = {plan::PercentilePolicy{}};
  declaration.options.clip = {{"one", watched}, {"other", {1.0, plan::ZeroRule::Refuse}}};
  PlanRequest request;
  request.by_rank = std::vector{std::make_shared<const plan::RankDeclaration>(std::move(declaration))};
  request.meshes = {{"default", {{"dp", 1}}, {}}};
  PlanOutcome outcome = run_planner(request);
  EXPECT_TRUE(outcome.plan) << (outcome.plan ? "" : outcome.plan.error().message);
  return std::move(*outcome.plan);
}

device::StepMath measured(const PreparedPlan& plan) {
  device::StepMath math;
  math.norm = 2;
  math.groups.resize(plan.plan->clip_groups.size());
  math.groups[0].reason = "norm 2 exceeds max_norm 1";
  math.groups[0].clipped = true;
  math.layer_norms.assign(plan.constants.layers.size(), 1);
  math.counted_elements = 3;
  return math;
}

StepReport report_of(const PreparedPlan& plan, const device::StepMath& math, StepReport before = {}) {
  step_report(*plan.plan, plan.constants, math, before);
  return before;
}

/// Says something else than any report in every field. A field that is new is forgotten with the others: what is kept
/// is named, and the rest is that of a report that was just made.
StepReport garbage(const PreparedPlan& plan) {
  const std::string text(200, 'g');
  StepReport report = largest_report(*plan.plan, plan.constants);
  report.step = report.collectives = 77;
  report.epoch = report.attempt = report.next_attempt = report.counted_elements = 77;
  report.norm = report.threshold = report.coefficient = 77;
  report.clipped = report.skipped = report.found_inf = report.check_next = true;
  report.reason = report.data_path = report.policy_digest = report.decided_by = text;
  report.groups.push_back(report.groups.back());
  for (GroupReport& group : report.groups) {
    group = {text, 77, 77, 77, true, text, plan::StepAction::Raise, true, {}};
    group.watch.assign(3, {text, 77, 77, true, plan::StepAction::Raise, true, text});
  }
  report.layers.push_back({text, 77});
  report.stable_buckets = {7, 7};
  report.timings = {7, 7, 7, 7, 7};
  report.scalar_collectives.push_back({text, {"g"}, 7});
  report.action = plan::StepAction::Raise;
  EXPECT_FALSE(report.nonfinite.empty() || report.divergence.empty() || report.missing.empty());
  EXPECT_FALSE(report.absent.empty() || report.absent_names.empty());
  return report;
}

TEST(StepReport, one_that_is_written_over_says_nothing_of_the_one_before) {
  const auto plan = two_groups();
  ASSERT_EQ(plan->plan->clip_groups.size(), 2U);
  ASSERT_EQ(plan->constants.layers.size(), 3U);
  const StepReport fresh = report_of(*plan, measured(*plan));
  ASSERT_EQ(fresh.groups[0].watch.size(), 1U);
  EXPECT_EQ(report_of(*plan, measured(*plan), garbage(*plan)), fresh);
  EXPECT_EQ(report_of(*plan, measured(*plan), fresh), fresh);
}

TEST(StepReport, uses_the_memory_of_the_one_before) {
  const auto plan = two_groups();
  StepReport report = report_of(*plan, measured(*plan));
  report.reason = report.groups[0].watch[0].reason = std::string(100, 'x');
  const auto* const groups = report.groups.data();
  const auto* const layers = report.layers.data();
  const char* const reason = report.reason.data();
  const char* const watcher = report.groups[0].watch[0].reason.data();
  step_report(*plan->plan, plan->constants, measured(*plan), report);
  report.groups[0].watch[0].reason = "norm 2 exceeds max_norm 1";
  EXPECT_EQ(report.groups.data(), groups);
  EXPECT_EQ(report.layers.data(), layers);
  EXPECT_EQ(report.reason.data(), reason);
  EXPECT_EQ(report.groups[0].watch[0].reason.data(), watcher);
}

TEST(StepReport, of_a_norm_alone_has_no_watchers) {
  const auto plan = two_groups();
  device::StepMath math = measured(*plan);
  math.groups[0].decides = true;
  math.groups[0].action = plan::StepAction::Skip;
  const StepReport report = measured_report(*plan->plan, plan->constants, math);
  EXPECT_TRUE(report.groups[0].watch.empty());
  EXPECT_FALSE(report.clipped);
  EXPECT_TRUE(report.decided_by.empty());
}

}  // namespace
}  // namespace gradsync::engine
