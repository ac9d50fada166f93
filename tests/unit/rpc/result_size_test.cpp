#include "rpc/result_size.hpp"

#include "engine/planner.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

namespace gradsync::rpc {
namespace {

engine::StepReport long_report() {
  engine::StepReport report;
  report.layers.assign(1000, {"layer", 1.0});
  report.absent.assign(100, 123456);
  return report;
}

TEST(ResultSize, a_report_that_fits_is_whole) {
  const Json whole = Json::parse(render(ReportAnswer{long_report(), std::nullopt}, 1 << 20));
  EXPECT_EQ(whole["layers"].size(), 1000U);
  EXPECT_FALSE(whole.contains("truncated"));
}

TEST(ResultSize, a_long_report_leaves_its_layers_out_and_says_so) {
  const std::string text = render(ReportAnswer{long_report(), std::nullopt}, 4096);
  EXPECT_LE(text.size(), 4096U);
  const Json shorter = Json::parse(text);
  EXPECT_EQ(shorter["truncated"], Json::parse(R"(["layers"])"));
  EXPECT_EQ(shorter["absent"].size(), 100U);
  const Json shortest = Json::parse(render(ReportAnswer{long_report(), std::nullopt}, 900));
  EXPECT_EQ(shortest["truncated"], Json::parse(R"(["layers","absent"])"));
}

TEST(ResultSize, what_a_record_holds_is_the_result_of_the_reply) {
  const engine::StepReport report = long_report();
  const engine::EncodeReport encode = report_encoder(4096);
  EXPECT_EQ(encode(report, 1 << 20), render(ReportAnswer{report, std::nullopt}, 4096));
  EXPECT_EQ(encode(report, 900), render(ReportAnswer{report, std::nullopt}, 900));
}

/// `tensors` over two ranks, each in a layer of its own.
std::unique_ptr<engine::PreparedPlan> plan_of(int tensors) {
  plan::RankDeclaration declaration;
  declaration.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
  for (int i = 0; i < tensors; ++i) {
    plan::TensorDeclaration& tensor = declaration.tensors.emplace_back();
    tensor.name = "model.layers." + std::to_string(i) + ".attention.weight";
    tensor.shape = tensor.local_shape = {64};
    tensor.mesh = "m";
    tensor.layer = "model.layers." + std::to_string(i) + ".\"\n";
    tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
  }
  const auto shared = std::make_shared<const plan::RankDeclaration>(std::move(declaration));
  engine::PlanRequest request;
  request.by_rank = {shared, shared};
  request.meshes = {{"m", {{"dp", 2}}, {}}};
  request.world_size = 2;
  request.encode_report = report_encoder(1 << 20);
  engine::PlanOutcome outcome = engine::run_planner(request);
  EXPECT_TRUE(outcome.plan) << (outcome.plan ? "" : outcome.plan.error().message);
  return std::move(*outcome.plan);
}

/// A step in which everything was found that can be.
device::StepMath worst_step(const plan::Plan& plan) {
  device::StepMath math;
  math.norm = -std::numeric_limits<double>::denorm_min();
  math.groups.push_back({});
  math.groups.back().norm = 1.2345678901234567e-300;
  math.groups.back().reason = "norm 1.2345678901234567e-300 exceeds max_norm 1.2345678901234567e-300";
  math.layer_norms.assign(plan.tensors.size(), -1.2345678901234567e-300);
  for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    math.absent.push_back(tensor);
    if (tensor < device::kMaxFindings) {
      math.nonfinite.push_back({tensor, ~0ULL, {{0, ~0ULL}, {1, ~0ULL}}});
      math.divergence.push_back({tensor, {0, 1}});
      math.missing.push_back({tensor, {0, 1}});
    }
  }
  return math;
}

TEST(ResultSize, no_report_of_a_plan_is_longer_than_what_is_reserved) {
  for (const int tensors : {1, 10, 63, 64, 65, 1000}) {
    const auto prepared = plan_of(tensors);
    engine::StepReport report = step_report(*prepared->plan, prepared->constants, worst_step(*prepared->plan));
    for (std::uint32_t bucket = 0; bucket < prepared->plan->buckets.size(); ++bucket) {
      report.stable_buckets.push_back(bucket);
    }
    report.epoch = report.attempt = ~0ULL;
    report.timings = {1e-300, 1e-300, 1e-300, 1e-300, 1e-300};
    const std::string text = report_encoder(1 << 20)(report, 1 << 20);
    EXPECT_FALSE(Json::parse(text).contains("truncated"));
    EXPECT_LE(text.size(), prepared->encoded_bytes) << tensors;
    EXPECT_GE(text.size() * 2, prepared->encoded_bytes) << "and that is not far more: " << tensors;
  }
}

TEST(ResultSize, stats_keep_the_newest_reports_that_fit) {
  StatsAnswer answer;
  for (int step = 0; step < 50; ++step) {
    answer.reports.emplace_back().step = step;
  }
  const std::string text = render(answer, 8192);
  EXPECT_LE(text.size(), 8192U);
  const Json reports = Json::parse(text)["reports"];
  ASSERT_GT(reports.size(), 5U);
  ASSERT_LT(reports.size(), 50U);
  EXPECT_EQ(reports.back()["step"], 49);
  EXPECT_EQ(reports.front()["step"], 50 - static_cast<int>(reports.size()));
}

TEST(ResultSize, a_long_declaration_leaves_the_tensors_of_its_buckets_out) {
  DeclareAnswer answer;
  answer.plan_digest = "0";
  answer.buckets = {{"float32", 0, 64, std::vector<std::uint32_t>(10'000, 1)}};
  EXPECT_TRUE(Json::parse(render(answer, 1 << 20))["buckets"][0].contains("tensors"));
  EXPECT_FALSE(Json::parse(render(answer, 1000))["buckets"][0].contains("tensors"));
}

}  // namespace
}  // namespace gradsync::rpc
