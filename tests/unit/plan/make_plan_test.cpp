#include "plan/make_plan.hpp"

#include "declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ClipGroupOptions group(std::string name, double max_norm) { return {std::move(name), {max_norm, ZeroRule::Refuse}}; }

TEST(MakePlan, packs_the_arena_in_launch_order_at_aligned_offsets) {
  const Plan plan =
      make_plan(declaration({tensor("a", {3}), tensor("b", {100}), tensor("c", {5})}), kDp2, 2, {400, 4000});
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_THAT(plan.buckets[0].tensors, ElementsAre(2, 1));
  EXPECT_THAT(plan.buckets[1].tensors, ElementsAre(0));
  ASSERT_EQ(plan.layouts.size(), 1U) << "both ranks are laid out alike";
  EXPECT_THAT(plan.layout_of, ElementsAre(0, 0));
  EXPECT_THAT(plan.layout(1).input_offsets, ElementsAre(64U + 448U, 64U, 0U));
  EXPECT_EQ(plan.layout(1).output_offsets, plan.layout(1).input_offsets);
  EXPECT_EQ(plan.buckets[0].size_bytes, 64U + 448U);
  EXPECT_THAT(plan.layout(0).bucket_offsets, ElementsAre(0U, 64U + 448U, 64U + 448U + 64U));
  EXPECT_EQ(plan.layout(0).bytes(), 64U + 448U + 64U);
}

TEST(MakePlan, empty_tensors_take_no_memory) {
  const Plan plan = make_plan(
      declaration({tensor("a", {0}), tensor("b", {std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), tensor("c", {})}),
      kDp2,
      2,
      {}
  );
  EXPECT_EQ(plan.tensors[0].parts[0].elements, 0U);
  EXPECT_EQ(plan.tensors[1].parts[0].elements, 0U);
  EXPECT_EQ(plan.tensors[2].parts[0].elements, 1U) << "a scalar has one element";
  EXPECT_EQ(plan.layout(0).bytes(), 64U);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].tensors.size(), 3U);
}

TEST(MakePlan, tensors_of_a_bucket_agree_in_dtype_axes_and_divisor) {
  const std::vector<Mesh> meshes{mesh({{"dp", 2}, {"tp", 2}})};
  TensorDeclaration half = tensor("half", {4}, {partial({"dp", "tp"})});
  half.dtype = DType::BFloat16;
  TensorDeclaration divided = tensor("divided", {4}, {partial({"dp", "tp"}, ReduceOp::Sum)});
  divided.divisor = 4;
  const Plan plan = make_plan(
      declaration(
          {tensor("mean", {4}, {partial({"tp"}), partial({"dp"})}),
           tensor("sum", {4}, {partial({"dp", "tp"}, ReduceOp::Sum)}),
           tensor("dp_only", {4}, {partial({"dp"}), replicate({"tp"})}),
           tensor("nothing", {4}, {replicate({"dp", "tp"})}),
           half,
           divided}
      ),
      meshes,
      4,
      {}
  );
  // `divided` and `sum` take one stage over both axes, `mean` takes two.
  ASSERT_EQ(plan.buckets.size(), 6U);
  const Bucket& mean = plan.buckets[plan.tensors[0].bucket];
  EXPECT_EQ(mean.divisor, 4);
  EXPECT_THAT(mean.axes, ElementsAre("tp", "dp"));
  EXPECT_THAT(mean.groups, ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_EQ(plan.buckets[plan.tensors[1].bucket].divisor, 1);
  EXPECT_THAT(plan.buckets[plan.tensors[2].bucket].groups, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(plan.buckets[plan.tensors[3].bucket].axes, IsEmpty());
  EXPECT_EQ(plan.buckets[plan.tensors[3].bucket].groups.size(), 4U);
  EXPECT_EQ(plan.buckets[plan.tensors[4].bucket].dtype, DType::BFloat16);
}

TEST(MakePlan, every_logical_element_is_counted_once) {
  const Plan plan = make_plan(declaration({tensor("a", {3, 5}), tensor("b", {7})}), kDp2, 2, {});
  ASSERT_EQ(plan.norm_groups.size(), 1U);
  EXPECT_EQ(plan.norm_groups[0].mesh, "dense");
  EXPECT_THAT(plan.norm_groups[0].axes, IsEmpty());
  EXPECT_THAT(plan.norm_groups[0].tensors, ElementsAre(0, 1));
  EXPECT_EQ(plan.tensors[0].counted_elements, 15);
  EXPECT_EQ(plan.tensors[0].replication, 2);
}

TEST(MakePlan, each_mesh_has_a_norm_group_of_its_own) {
  TensorDeclaration expert = tensor("e", {4}, {partial({"edp"})});
  expert.mesh = "expert";
  const Plan plan =
      make_plan(declaration({expert, tensor("a", {4})}), {mesh({{"dp", 2}}), mesh({{"edp", 2}}, "expert")}, 2, {});
  ASSERT_EQ(plan.norm_groups.size(), 2U);
  EXPECT_EQ(plan.norm_groups[0].mesh, "expert");
  EXPECT_EQ(plan.tensors[1].norm_group, 1U);
  EXPECT_EQ(plan.buckets.size(), 2U) << "equal ranks, but different meshes";
}

TEST(MakePlan, listed_clip_groups_come_first_and_others_only_measure) {
  TensorDeclaration a = tensor("a", {4});
  a.clip_group = "unlisted";
  TensorDeclaration b = tensor("b", {4});
  b.clip_group = "muon";
  RankDeclaration declared = declaration({a, b, tensor("c", {4})});
  declared.options.clip = {group("all", 1), group("muon", 2)};
  const Plan plan = make_plan(declared, kDp2, 2, {});
  ASSERT_EQ(plan.clip_groups.size(), 3U);
  EXPECT_EQ(plan.clip_groups[0].name, "all");
  EXPECT_THAT(plan.clip_groups[0].tensors, ElementsAre(2));
  EXPECT_EQ(plan.clip_groups[1].clip.max_norm, 2);
  EXPECT_THAT(plan.clip_groups[1].tensors, ElementsAre(1));
  EXPECT_EQ(plan.clip_groups[2].name, "unlisted");
  EXPECT_EQ(plan.clip_groups[2].clip.max_norm, std::nullopt);
  EXPECT_EQ(plan.tensors[0].clip_group, 2U);
}

TEST(MakePlan, a_float64_member_makes_the_norm_of_its_clip_group_float64) {
  TensorDeclaration wide = tensor("wide", {4});
  wide.dtype = DType::Float64;
  wide.clip_group = "wide";
  const Plan plan = make_plan(declaration({tensor("a", {4}), wide}), kDp2, 2, {});
  EXPECT_EQ(plan.clip_groups[0].norm_dtype, DType::Float32);
  EXPECT_EQ(plan.clip_groups[1].norm_dtype, DType::Float64);
}

TEST(MakePlan, one_rank_alone_reduces_nothing) {
  const Plan plan = make_plan(declaration({tensor("a", {4})}), {mesh({{"dp", 1}})}, 1, {});
  EXPECT_THAT(plan.buckets[0].axes, IsEmpty());
  EXPECT_THAT(plan.buckets[0].groups, ElementsAre(ElementsAre(0)));
  EXPECT_EQ(plan.buckets[0].divisor, 1);
  EXPECT_EQ(plan.tensors[0].replication, 1);
}

std::string digest_on_two(const RankDeclaration& declared) { return make_plan(declared, kDp2, 2, {}).digest; }

TEST(PlanDigest, is_a_fixed_function_of_the_declaration) {
  RankDeclaration declared = declaration({tensor("a", {4}), tensor("b", {2, 3})});
  declared.options.clip = {group("all", 1)};
  // A change of this value is a change of what peers compare: it needs a new version in the canonical text.
  EXPECT_EQ(digest_on_two(declared), "88cc8e89ee205ea5");
}

TEST(PlanDigest, ignores_weight_fingerprints) {
  RankDeclaration declared = declaration({tensor("a", {4})});
  const std::string before = digest_on_two(declared);
  declared.weight_fingerprints = {"abc"};
  EXPECT_EQ(digest_on_two(declared), before);
}

TEST(PlanDigest, changes_with_everything_that_matters) {
  const RankDeclaration base = declaration({tensor("a", {4}), tensor("b", {4})});
  const auto changes = [&](auto change) {
    RankDeclaration other = base;
    change(other);
    return digest_on_two(other) != digest_on_two(base);
  };
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.options.accumulate = 2; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.options.norm_type = 1; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.options.mode = ClipMode::Torch; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.options.clip = {group("all", 1)}; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.options.buckets = BucketRule::Torch; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.options.partial_sums = PartialSums::BFloat16; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { std::swap(d.tensors.own()[0], d.tensors.own()[1]); }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].name = "a1"; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].shape = d.tensors.own()[0].local_shape = {2, 2}; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].local_offset = {0}; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].dtype = DType::Float16; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].placements = {replicate({"dp"})}; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].placements = {partial({"dp"}, ReduceOp::Sum)}; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) {
    d.tensors.own()[0].placements = {{{"dp"}, Partial{ReduceOp::Mean, Shard{0}}}};
  }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].divisor = 2; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].tied = "t"; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].clip_group = "g"; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].layer = "l"; }));
  EXPECT_TRUE(changes([](RankDeclaration& d) { d.tensors.own()[0].split_order = {"dp"}; }));
  EXPECT_NE(make_plan(base, {mesh({{"dp", 4}})}, 4, {}).digest, digest_on_two(base));
}

TEST(PlanDigest, plans_that_differ_only_in_bucket_sizes_differ) {
  const RankDeclaration declared = declaration({tensor("a", {100}), tensor("b", {100}), tensor("c", {100})});
  const Plan whole = make_plan(declared, kDp2, 2, {4000, 4000});
  const Plan first_alone = make_plan(declared, kDp2, 2, {400, 4000});
  const Plan halves = make_plan(declared, kDp2, 2, {4000, 800});
  ASSERT_EQ(whole.buckets.size(), 1U);
  ASSERT_EQ(first_alone.buckets.size(), 2U);
  EXPECT_NE(whole.digest, first_alone.digest);
  EXPECT_NE(whole.digest, halves.digest);
  EXPECT_NE(first_alone.digest, halves.digest);
  EXPECT_EQ(whole.digest, make_plan(declared, kDp2, 2, {4000, 4000}).digest);
}

TEST(PlanDigest, does_not_confuse_where_one_text_ends_and_the_next_begins) {
  RankDeclaration first = declaration({tensor("a", {4})});
  RankDeclaration second = first;
  first.tensors.own()[0].clip_group = "ab";
  first.tensors.own()[0].layer = "c";
  second.tensors.own()[0].clip_group = "a";
  second.tensors.own()[0].layer = "bc";
  EXPECT_NE(digest_on_two(first), digest_on_two(second));
}

}  // namespace
}  // namespace gradsync::plan
