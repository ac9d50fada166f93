// An entry of `options.clip` as it comes over the wire: what each field becomes, and where an error points.

#include "plan/limits.hpp"
#include "rpc/wire/wire_declare.hpp"

#include <gtest/gtest.h>

namespace gradsync::rpc {
namespace {

Result<plan::ClipGroupOptions> read_clip(const std::string& fields) {
  const std::string text = R"({"clip":[{"group":"all")" + fields + "}]}";
  const Result<Tape> tape = read_json(text, 32);
  EXPECT_TRUE(tape) << text;
  plan::DeclareOptions options;
  if (const Result<void> done = read_params(tape->root(), options); !done) {
    return done.error();
  }
  return options.clip.front();
}

plan::ClipOptions clip(const std::string& fields) {
  const Result<plan::ClipGroupOptions> options = read_clip(fields);
  EXPECT_TRUE(options) << fields << (options ? "" : options.error().message);
  return options ? options->clip : plan::ClipOptions{};
}

Error refused_clip(const std::string& fields) {
  const Result<plan::ClipGroupOptions> options = read_clip(fields);
  EXPECT_FALSE(options) << fields;
  return options ? Error{} : options.error();
}

plan::PolicyOptions policy(const std::string& text) { return clip(R"(,"policy":)" + text).policy; }

TEST(ClipWire, what_is_absent_is_as_it_always_was) {
  const plan::ClipOptions read = clip(R"(,"max_norm":1)");
  EXPECT_EQ(read, plan::ClipOptions{1.0});
  EXPECT_EQ(clip(R"(,"max_norm":null)"), plan::ClipOptions{});
}

TEST(ClipWire, reads_every_kind_of_policy) {
  EXPECT_EQ(policy(R"({"kind":"fixed"})"), plan::PolicyOptions(plan::FixedPolicy{}));
  EXPECT_EQ(policy(R"({"kind":"observe"})"), plan::PolicyOptions(plan::ObservePolicy{}));
  EXPECT_EQ(
      policy(R"({"kind":"percentile","percentile":90,"window":500,"warmup":50})"),
      plan::PolicyOptions(plan::PercentilePolicy{90, 500, 50})
  );
  EXPECT_EQ(
      policy(R"({"kind":"zscore","z":3,"alpha":0.9,"warmup":10})"), plan::PolicyOptions(plan::ZScorePolicy{3, 0.9, 10})
  );
  EXPECT_EQ(
      policy(R"({"kind":"auto","percentile":90,"window":500,"warmup":50})"),
      plan::PolicyOptions(plan::AutoPolicy{{90, 500, 50}})
  );
}

TEST(ClipWire, a_policy_has_the_usual_numbers_where_none_are_given) {
  EXPECT_EQ(policy(R"({"kind":"percentile"})"), plan::PolicyOptions(plan::PercentilePolicy{}));
  EXPECT_EQ(policy(R"({"kind":"zscore"})"), plan::PolicyOptions(plan::ZScorePolicy{}));
  EXPECT_EQ(policy(R"({"kind":"auto"})"), plan::PolicyOptions(plan::AutoPolicy{}));
  EXPECT_EQ(policy(R"({"warmup":7,"kind":"zscore"})"), plan::PolicyOptions(plan::ZScorePolicy{2.5, 0.97, 7}));
}

TEST(ClipWire, reads_what_becomes_of_a_step) {
  const plan::ClipOptions read = clip(R"(,"nonfinite":"raise","spike":"skip","spike_factor":2.5)");
  EXPECT_EQ(read.nonfinite, plan::NonfiniteAction::Raise);
  EXPECT_EQ(read.spike, plan::SpikeAction::Skip);
  EXPECT_EQ(read.spike_factor, 2.5);
  EXPECT_EQ(clip(R"(,"nonfinite":"zero")").nonfinite, plan::NonfiniteAction::Zero);
  EXPECT_EQ(clip(R"(,"nonfinite":"skip","spike":"raise")").spike, plan::SpikeAction::Raise);
}

TEST(ClipWire, reads_the_policies_that_watch_in_their_order) {
  EXPECT_EQ(
      clip(R"(,"watch":[{"kind":"zscore"},{"kind":"percentile","percentile":99}])").watch,
      (std::vector<plan::PolicyOptions>{plan::ZScorePolicy{}, plan::PercentilePolicy{99}})
  );
}

TEST(ClipWire, a_field_of_another_kind_is_refused) {
  const Error error = refused_clip(R"(,"policy":{"kind":"fixed","window":10})");
  EXPECT_EQ(error.path, "clip[0].policy.window");
  EXPECT_EQ(error.message, R"(clip[0].policy.window does not belong to the kind "fixed")");
  EXPECT_EQ(error.code, ErrorCode::InvalidParams);
  EXPECT_EQ(refused_clip(R"(,"policy":{"kind":"observe","warmup":10})").path, "clip[0].policy.warmup");
  EXPECT_EQ(refused_clip(R"(,"policy":{"kind":"zscore","percentile":95})").path, "clip[0].policy.percentile");
  EXPECT_EQ(refused_clip(R"(,"policy":{"kind":"percentile","z":2})").path, "clip[0].policy.z");
  EXPECT_EQ(refused_clip(R"(,"policy":{"kind":"auto","z":2})").path, "clip[0].policy.z");
  EXPECT_EQ(
      refused_clip(R"(,"watch":[{"kind":"fixed"},{"kind":"percentile","alpha":0.5}])").path, "clip[0].watch[1].alpha"
  );
}

TEST(ClipWire, says_what_it_expected) {
  EXPECT_EQ(refused_clip(R"(,"policy":"percentile")").path, "clip[0].policy");
  EXPECT_EQ(refused_clip(R"(,"policy":{"percentile":95})").path, "clip[0].policy.kind");
  EXPECT_EQ(
      refused_clip(R"(,"policy":{"kind":"median"})").message,
      R"(clip[0].policy.kind is "median"; expected one of "fixed", "observe", "percentile", "zscore", "auto")"
  );
  EXPECT_EQ(
      refused_clip(R"(,"nonfinite":"ignore")").message,
      R"(clip[0].nonfinite is "ignore"; expected one of "propagate", "skip", "zero", "raise")"
  );
  EXPECT_EQ(
      refused_clip(R"(,"spike":"zero")").message, R"(clip[0].spike is "zero"; expected one of "clip", "skip", "raise")"
  );
  EXPECT_EQ(refused_clip(R"(,"policy":{"kind":"percentile","window":1.5})").path, "clip[0].policy.window");
  EXPECT_EQ(refused_clip(R"(,"polcy":{})").hint, R"(did you mean "policy"?)");
}

TEST(ClipWire, takes_as_many_watching_policies_as_the_planner_does) {
  const auto watching = [](std::size_t policies) {
    std::string list;
    for (std::size_t i = 0; i < policies; ++i) {
      list += std::string(i == 0 ? "" : ",") + R"({"kind":"zscore"})";
    }
    return R"(,"watch":[)" + list + "]";
  };
  EXPECT_EQ(clip(watching(plan::kMaxWatchingPolicies)).watch.size(), plan::kMaxWatchingPolicies);
  EXPECT_EQ(refused_clip(watching(plan::kMaxWatchingPolicies + 1)).path, "clip[0].watch");
}

TEST(ClipWire, what_is_written_reads_back_equal) {
  plan::DeclareOptions options;
  options.clip = {
      {"all",
       {1.5,
        plan::ZeroRule::Off,
        plan::PercentilePolicy{90, 200, 20},
        plan::NonfiniteAction::Skip,
        plan::SpikeAction::Raise,
        4,
        {plan::ZScorePolicy{3, 0.5, 30}, plan::ObservePolicy{}, plan::FixedPolicy{}, plan::AutoPolicy{{80, 40, 4}}}}},
      {"others", {}}};
  const std::string text = to_json(options);
  const Result<Tape> tape = read_json(text, 32);
  ASSERT_TRUE(tape) << text;
  plan::DeclareOptions copy;
  ASSERT_TRUE(read_params(tape->root(), copy)) << text;
  EXPECT_EQ(copy, options) << text;
}

}  // namespace
}  // namespace gradsync::rpc
