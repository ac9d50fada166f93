// `gradsyncd policy replay`: policies and traces as texts, and what comes of them.

#include "app/replay/policy_replay.hpp"

#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/replay/norm_trace.hpp"
#include "app/replay/policy_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gradsync::app {
namespace {

using ::testing::HasSubstr;

TEST(PolicyText, has_the_defaults_of_a_declaration_and_a_ceiling_of_one) {
  const Result<NamedPolicy> policy = read_policy("percentile");
  ASSERT_TRUE(policy);
  EXPECT_EQ(policy->clip.policy, plan::PolicyOptions{plan::PercentilePolicy{}});
  EXPECT_EQ(policy->clip.max_norm, 1);
}

TEST(PolicyText, sets_what_is_written) {
  const Result<NamedPolicy> policy =
      read_policy("zscore:z=3.5,alpha=0.9,warmup=7,max_norm=none,spike=skip,spike_factor=4,nonfinite=zero,formula=torch"
      );
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(policy->clip.policy, plan::PolicyOptions(plan::ZScorePolicy{3.5, 0.9, 7}));
  EXPECT_EQ(policy->clip.max_norm, std::nullopt);
  EXPECT_EQ(policy->clip.spike, plan::SpikeAction::Skip);
  EXPECT_EQ(policy->clip.spike_factor, 4);
  EXPECT_EQ(policy->clip.nonfinite, plan::NonfiniteAction::Zero);
  EXPECT_EQ(policy->mode, plan::ClipMode::Torch);
}

TEST(PolicyText, has_the_formula_of_torch_for_auto_unless_another_is_written) {
  const Result<NamedPolicy> policy = read_policy("auto:percentile=90,window=500,warmup=50");
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(policy->clip.policy, plan::PolicyOptions(plan::AutoPolicy{{90, 500, 50}}));
  EXPECT_EQ(policy->clip.zero_rule, plan::ZeroRule::Zero);
  EXPECT_EQ(policy->mode, plan::ClipMode::Torch);
  EXPECT_EQ(read_policy("auto:formula=strict")->mode, plan::ClipMode::Strict);
  EXPECT_EQ(read_policy("percentile")->mode, plan::ClipMode::Strict);
}

TEST(PolicyText, is_refused_by_the_name_that_is_wrong) {
  const std::pair<const char*, const char*> texts[] = {
      {"median", "policy"},
      {"", "policy"},
      {"percentile:window", "policy"},
      {"percentile:=3", "policy"},
      {"percentile:z=3", "z"},
      {"percentile:window=1e3", "window"},
      {"percentile:percentile=95%", "percentile"},
      {"fixed:max_norm=-1", "max_norm"},
      {"fixed:max_norm=0", "max_norm"},
      {"fixed:spike=explode", "spike"},
      {"zscore:nonfinite=", "nonfinite"},
      {"percentile:percentile=101", "percentile:percentile=101.policy.percentile"},
      {"percentile:window=10", "percentile:window=10.policy.warmup"}};
  for (const auto& [text, path] : texts) {
    const Result<NamedPolicy> policy = read_policy(text);
    ASSERT_TRUE(policy.has_error()) << text;
    EXPECT_EQ(policy.error().path, path) << text;
    EXPECT_FALSE(policy.error().message.empty());
  }
}

Result<NormTrace> read(const std::string& text, const std::string& key = "", const std::string& group = "") {
  std::istringstream in(text);
  return read_norm_trace(in, key, group);
}

TEST(NormTrace, reads_what_trackers_and_reports_write) {
  const Result<NormTrace> tracked = read(
      "{\"step\":7,\"grad_norm\":0.5,\"grad_clipped\":0}\n\n{\"step\":8,\"grad_norm\":\"NaN\"}\n{\"loss\":3}\n"
      "{\"grad_norm\":\"Infinity\"}\r\n"
  );
  ASSERT_TRUE(tracked) << tracked.error().message;
  ASSERT_EQ(tracked->norms.size(), 3U);
  EXPECT_EQ(tracked->norms[0].step, 7);
  EXPECT_EQ(tracked->norms[0].norm, 0.5);
  EXPECT_TRUE(std::isnan(tracked->norms[1].norm));
  EXPECT_TRUE(std::isinf(tracked->norms[2].norm));
  EXPECT_EQ(tracked->norms[2].step, 2);
  EXPECT_EQ(tracked->other_lines, 1U);
  const std::string reports = "{\"norm\":3,\"groups\":[{\"name\":\"a\",\"norm\":1},{\"name\":\"b\",\"norm\":2}]}\n";
  EXPECT_EQ(read(reports)->norms.at(0).norm, 3);
  EXPECT_EQ(read(reports, "", "b")->norms.at(0).norm, 2);
  EXPECT_EQ(read("{\"norm\":3,\"total\":4}\n", "total")->norms.at(0).norm, 4);
}

TEST(NormTrace, is_refused_by_its_line) {
  const std::pair<const char*, const char*> texts[] = {
      {"{\"norm\":1}\n{\"norm\":-1}\n", "line 2"},
      {"{\"norm\":\"-Infinity\"}\n", "line 1"},
      {"{\"norm\":true}\n", "line 1"},
      {"{\"norm\":\"much\"}\n", "line 1"},
      {"{\"norm\":1}\n\n{\"norm\":\n", "line 3"},
      {"[1]\n", "line 1"},
      {"{\"loss\":1}\n", "trace"},
      {"{\"norm\":\"NaN\"}\n{\"norm\":\"Infinity\"}\n", "trace"},
      {"", "trace"}};
  for (const auto& [text, path] : texts) {
    const Result<NormTrace> trace = read(text);
    ASSERT_TRUE(trace.has_error()) << text;
    EXPECT_EQ(trace.error().path, path) << text;
    EXPECT_FALSE(trace.error().hint.empty());
  }
}

class PolicyReplay : public ::testing::Test {
 protected:
  PolicyReplay() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    command.file = ::testing::TempDir() + "policy_replay_" + test->name() + ".jsonl";
    command.plot = command.file + ".svg";
    std::ofstream file(command.file);
    for (int step = 0; step < 40; ++step) {
      file << "{\"step\":" << step << ",\"norm\":" << (step == 30 ? "9" : step == 35 ? "\"NaN\"" : "0.5") << "}\n";
    }
  }

  ~PolicyReplay() override {
    std::filesystem::remove(command.file);
    std::filesystem::remove(command.plot);
  }

  std::string run(int expected = kExitOk) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(execute(command), expected);
    return ::testing::internal::GetCapturedStdout();
  }

  PolicyReplayCommand command{
      "", {"percentile:window=20,warmup=10", "observe", "zscore:nonfinite=skip"}, "", "", "", false};
};

TEST_F(PolicyReplay, sums_up_each_policy) {
  const std::string text = run();
  EXPECT_THAT(text, HasSubstr("40 steps, 0 to 39; 1 norms are not finite"));
  EXPECT_THAT(
      text, HasSubstr("percentile:window=20,warmup=10\n  1 steps clipped (2.50 %), 0 skipped, 0 raised, 0 zeroed")
  );
  EXPECT_THAT(text, HasSubstr("observe\n  0 steps clipped (0.00 %)"));
  EXPECT_THAT(text, HasSubstr("no threshold"));
  EXPECT_THAT(text, HasSubstr("zscore:nonfinite=skip\n  1 steps clipped (2.50 %), 1 skipped"));
}

TEST_F(PolicyReplay, says_of_each_step_what_each_policy_would_have_done) {
  command.json = true;
  std::istringstream lines(run());
  std::string line;
  for (int step = 0; std::getline(lines, line); ++step) {
    const nlohmann::json json = nlohmann::json::parse(line);
    ASSERT_EQ(json["step"], step);
    ASSERT_EQ(json["policies"].size(), 3U);
    if (step <= 30) {
      EXPECT_EQ(json["policies"][0]["threshold"], step < 10 ? 1 : 0.5);
    } else {  // the spike is the largest of twenty
      EXPECT_NEAR(json["policies"][0]["threshold"].get<double>(), 0.5 + 0.05 * 8.5, 1e-12);
    }
    EXPECT_EQ(json["policies"][0]["clipped"], step == 30);
    EXPECT_EQ(json["policies"][1]["threshold"], "Infinity");
    EXPECT_EQ(json["policies"][2]["action"], step == 35 ? "skip" : "step");
    if (step == 30) {
      EXPECT_THAT(json["policies"][0]["reason"], HasSubstr("norm 9 exceeds the percentile 0.5"));
    }
  }
}

TEST_F(PolicyReplay, draws_a_line_and_the_clips_of_each_policy) {
  run();
  std::ifstream file(command.plot);
  const std::string svg((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(svg, ::testing::StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("percentile:window=20,warmup=10: 1 of 40 steps clipped"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<path"); at != std::string::npos; at = svg.find("<path", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 3U);
}

TEST_F(PolicyReplay, refuses_before_it_prints) {
  command.policies = {"percentile", "zscore:z=-1"};
  EXPECT_EQ(run(kExitUsage), "");
  command.policies = {"percentile"};
  command.clip_group = "experts";
  EXPECT_EQ(run(kExitFailure), "");
  command.clip_group.clear();
  command.file = "/nowhere/run.jsonl";
  EXPECT_EQ(run(kExitUsage), "");
}

TEST(ThresholdPlot, bears_traces_of_one_step_of_zeros_and_of_very_many) {
  const Result<NamedPolicy> policy = read_policy("percentile:window=10,warmup=2");
  for (const std::size_t steps : {1U, 100'000U}) {
    std::vector<RecordedNorm> norms;
    for (std::size_t i = 0; i < steps; ++i) {
      norms.push_back({static_cast<std::int64_t>(i), i % 3 == 0 ? 0 : std::exp(static_cast<double>(i % 50) - 25)});
    }
    const std::vector<Replay> replays{replay_policy(*policy, norms)};
    const std::string svg = plot_thresholds(norms, replays);
    EXPECT_LT(svg.size(), 500'000U);
    EXPECT_THAT(svg, ::testing::Not(HasSubstr("nan")));
    EXPECT_THAT(svg, ::testing::Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace gradsync::app
