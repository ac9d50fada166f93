#include "rpc/result_size.hpp"

#include <gtest/gtest.h>

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
