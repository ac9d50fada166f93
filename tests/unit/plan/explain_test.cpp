#include "plan/explain.hpp"

#include "declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Plan plan_of(std::vector<TensorDeclaration> tensors, std::vector<Mesh> meshes, DeclareOptions options = {}) {
  RankDeclaration declared = declaration(std::move(tensors));
  declared.options = std::move(options);
  const std::int64_t world_size = meshes.front().size();
  return make_plan(declared, meshes, world_size, {});
}

TEST(Explain, a_data_parallel_mean) {
  const Plan plan = plan_of({tensor("a", {4})}, {mesh({{"dp", 2}})});
  EXPECT_EQ(
      explain_tensor(plan, 0),
      "summed over dp (2 ranks), then divided by 2; equal on all 2 ranks after sync, counted once"
  );
  EXPECT_THAT(stages_of(plan, 0), ElementsAre(Stage{{"dp"}, ReduceOp::Mean, 2, false}));
}

TEST(Explain, several_stages_in_their_order) {
  const Plan plan = plan_of(
      {tensor("a", {4}, {partial({"dp_replicate", "dp_shard"}), partial({"tp"}, ReduceOp::Sum)}),
       tensor("b", {4}, {replicate({"dp_replicate", "dp_shard", "tp"})})},
      {mesh({{"dp_replicate", 2}, {"dp_shard", 3}, {"tp", 2}})}
  );
  EXPECT_THAT(
      explain_tensor(plan, 0),
      StartsWith("summed over tp (2 ranks), then over dp_replicate and dp_shard (6 ranks), then divided by 6; ")
  );
  EXPECT_THAT(explain_tensor(plan, 1), StartsWith("not reduced; equal on all 12 ranks"));
}

TEST(Explain, a_divisor_without_a_stage_and_a_single_rank) {
  TensorDeclaration a = tensor("a", {4});
  a.placements = {partial({"dp"}, ReduceOp::Sum)};
  a.divisor = 8;
  EXPECT_EQ(explain_tensor(plan_of({a}, {mesh({{"dp", 1}})}), 0), "divided by 8; held by one rank, counted once");
}

TEST(Explain, why_a_norm_group_needs_no_collective) {
  const Plan plan = plan_of({tensor("a", {4}), tensor("b", {4})}, {mesh({{"dp", 2}})});
  EXPECT_THAT(explain_norm_group(plan, 0), StartsWith("2 tensors of mesh 'dense', whole on every rank"));
}

TEST(Explain, what_a_clip_group_does) {
  const auto words = [](ClipOptions clip, ClipMode mode) {
    DeclareOptions options;
    options.mode = mode;
    options.clip = {{"all", clip}};
    return explain_clip_group(plan_of({tensor("a", {4})}, {mesh({{"dp", 2}})}, options), 0);
  };
  EXPECT_THAT(words({1.5, ZeroRule::Refuse}, ClipMode::Strict), HasSubstr("exceeds max_norm 1.5"));
  EXPECT_THAT(words({1.5, ZeroRule::Refuse}, ClipMode::Torch), HasSubstr("min(1, 1.5 / (norm + 1e-6))"));
  EXPECT_EQ(
      words({}, ClipMode::Strict),
      "1 tensor of clip group 'all': no max_norm, so their norm is measured and nothing is clipped"
  );
  EXPECT_THAT(words({0.0, ZeroRule::Off}, ClipMode::Strict), HasSubstr("means off"));
  EXPECT_THAT(words({0.0, ZeroRule::Zero}, ClipMode::Strict), HasSubstr("become 0"));
}

}  // namespace
}  // namespace gradsync::plan
