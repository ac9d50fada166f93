#include "rpc/wire/result_size.hpp"

#include "engine/plan/planner.hpp"

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

TEST(ResultSize, what_watching_policies_say_is_left_out_last) {
  engine::StepReport report = long_report();
  report.groups.resize(2);
  report.groups[1].name = "heads";
  for (engine::GroupReport& group : report.groups) {
    group.watch.assign(8, {"percentile", 1, 1, false, plan::StepAction::Step, false, "norm 1 is within 1"});
  }
  const Json shorter = Json::parse(render(ReportAnswer{report, std::nullopt}, 3300));
  EXPECT_EQ(shorter["truncated"], Json::parse(R"(["layers","absent"])"));
  EXPECT_EQ(shorter["groups"][1]["watch"].size(), 8U);
  const Json shortest = Json::parse(render(ReportAnswer{report, std::nullopt}, 1500));
  EXPECT_EQ(shortest["truncated"], Json::parse(R"(["layers","absent","watch"])"));
  EXPECT_EQ(shortest["groups"][1]["watch"].size(), 0U);
  EXPECT_EQ(shortest["groups"][1]["name"], "heads") << "who multiplies needs every group";
}

TEST(ResultSize, what_a_record_holds_is_the_result_of_the_reply) {
  const engine::StepReport report = long_report();
  const engine::EncodeReport encode = report_encoder(4096);
  EXPECT_EQ(encode(report, 1 << 20), render(ReportAnswer{report, std::nullopt}, 4096));
  EXPECT_EQ(encode(report, 900), render(ReportAnswer{report, std::nullopt}, 900));
}

TEST(ResultSize, of_what_was_found_the_first_is_always_told) {
  engine::StepReport report = long_report();
  report.nonfinite.assign(64, {"weight", 3, {{0, 1}, {1, 2}}});
  report.divergence.assign(64, {"weight", {1}, {}, {0, 1}});
  report.missing.assign(64, {"weight", {1}});
  const Json shortest = Json::parse(render(ReportAnswer{report, std::nullopt}, 0));
  EXPECT_EQ(shortest["truncated"], Json::parse(R"(["layers","absent","missing","divergence","nonfinite"])"));
  for (const char* found : {"nonfinite", "divergence", "missing"}) {
    EXPECT_EQ(shortest[found].size(), 1U) << found;
  }
  EXPECT_EQ(shortest["nonfinite"][0]["inputs"].size(), 2U);
}

TEST(ResultSize, the_reply_with_the_longest_id_fits_a_message) {
  const std::string id = Json(std::string(kLongestId, '\x01')).dump();
  for (const std::size_t message_bytes : {std::size_t{4096}, std::size_t{1} << 20}) {
    EXPECT_LE(result_reply(id, std::string(result_bytes(message_bytes), ' ')).size(), message_bytes);
  }
}

/// `tensors` over two ranks, each in a layer of its own.
std::unique_ptr<engine::PreparedPlan> plan_of(int tensors) {
  plan::RankDeclaration declaration;
  declaration.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
  for (int i = 0; i < tensors; ++i) {
    plan::TensorDeclaration& tensor = declaration.tensors.own().emplace_back();
    tensor.name = "model.layers." + std::to_string(i) + ".attention.weight";
    tensor.shape = tensor.local_shape = {64};
    tensor.mesh = "m";
    tensor.layer = "model.layers." + std::to_string(i) + ".\"\n";
    tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
  }
  const auto shared = std::make_shared<const plan::RankDeclaration>(std::move(declaration));
  engine::PlanRequest request;
  request.by_rank = std::vector{shared, shared};
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
      math.divergence.push_back({tensor, {0, 1}, {0}, {1}});
      math.missing.push_back({tensor, {0, 1}});
    }
  }
  return math;
}

TEST(ResultSize, no_report_of_a_plan_is_longer_than_what_is_reserved) {
  for (const int tensors : {1, 10, 63, 64, 65, 1000}) {
    const auto prepared = plan_of(tensors);
    engine::StepReport report;
    step_report(*prepared->plan, prepared->constants, worst_step(*prepared->plan), report);
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

TEST(ResultSize, a_plan_whose_reports_do_not_fit_is_refused) {
  plan::RankDeclaration declaration;
  for (int i = 0; i < 20; ++i) {
    plan::TensorDeclaration& tensor = declaration.tensors.own().emplace_back();
    tensor.name = "w" + std::to_string(i);
    tensor.shape = tensor.local_shape = {64};
    tensor.mesh = "m";
    tensor.clip_group = std::string(100, 'g') + std::to_string(i);
    tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
    declaration.options.clip.push_back({tensor.clip_group, {1.0, plan::ZeroRule::Refuse}});
  }
  engine::PlanRequest request;
  request.by_rank = std::vector{std::make_shared<const plan::RankDeclaration>(declaration)};
  request.meshes = {{"m", {{"dp", 1}}, {}}};
  request.encode_report = report_encoder(1 << 20);
  EXPECT_TRUE(engine::run_planner(request).plan);
  request.encoded_bytes = 4096;
  const engine::PlanOutcome refused = engine::run_planner(request);
  ASSERT_FALSE(refused.plan);
  EXPECT_EQ(refused.plan.error().code, ErrorCode::InvalidDeclaration);
  EXPECT_NE(refused.plan.error().message.find("20 clip groups"), std::string::npos) << refused.plan.error().message;
}

TEST(ResultSize, stats_keep_the_newest_reports_that_fit) {
  StatsAnswer answer;
  for (int step = 0; step < 50; ++step) {
    auto report = std::make_shared<engine::StepReport>();
    report->step = step;
    answer.reports.push_back(std::move(report));
  }
  const std::string text = render(answer, 8192);
  EXPECT_LE(text.size(), 8192U);
  const Json reports = Json::parse(text)["reports"];
  ASSERT_GT(reports.size(), 5U);
  ASSERT_LT(reports.size(), 50U);
  EXPECT_EQ(reports.back()["step"], 49);
  EXPECT_EQ(reports.front()["step"], 50 - static_cast<int>(reports.size()));
}

TEST(ResultSize, a_status_has_the_first_jobs_that_fit) {
  StatusAnswer answer;
  for (int job = 0; job < 100; ++job) {
    answer.jobs.emplace_back().job = std::to_string(job);
  }
  EXPECT_EQ(Json::parse(render(answer, 1 << 20))["jobs_left_out"], 0);
  const std::string text = render(answer, 8192);
  EXPECT_LE(text.size(), 8192U);
  const Json status = Json::parse(text);
  ASSERT_GT(status["jobs"].size(), 5U);
  EXPECT_EQ(status["jobs"].size() + status["jobs_left_out"].get<std::size_t>(), 100U);
  EXPECT_EQ(status["jobs"][4]["job"], "4");
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
