#include "declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Error compared(const std::vector<RankDeclaration>& ranks) {
  std::vector<const RankDeclaration*> pointers;
  for (const RankDeclaration& rank : ranks) {
    pointers.push_back(&rank);
  }
  const auto world = static_cast<std::int64_t>(ranks.size());
  const auto result = plan_job(pointers, {mesh({{"dp", world}})}, {});
  return result ? make_error(ErrorCode::InternalError, "the declarations agree") : result.error();
}

bool agree(const std::vector<RankDeclaration>& ranks) { return compared(ranks).code == ErrorCode::InternalError; }

RankDeclaration model() { return declaration({tensor("a", {4}), tensor("b", {2, 3}), tensor("c", {5})}); }

/// Three ranks, of which the last one differs.
std::vector<RankDeclaration> last_of_three(const std::function<void(RankDeclaration&)>& change) {
  std::vector<RankDeclaration> ranks(3, model());
  change(ranks[2]);
  return ranks;
}

TEST(CompareDeclarations, equal_ones_agree) {
  EXPECT_TRUE(agree({model(), model(), model()}));
  EXPECT_TRUE(agree({model()}));
}

TEST(CompareDeclarations, the_first_difference_is_named_with_both_values_and_ranks) {
  const Error error = compared(last_of_three([](RankDeclaration& d) {
    d.tensors.own()[1].dtype = DType::BFloat16;
    d.tensors.own()[2].shape = {6};
  }));
  EXPECT_EQ(error.code, ErrorCode::PlanMismatch);
  EXPECT_EQ(error.tensor, "b");
  EXPECT_EQ(error.path, "tensors[1].dtype");
  EXPECT_THAT(error.ranks, ElementsAre(0, 2));
  EXPECT_THAT(error.message, HasSubstr("dtype is float32 on rank 0 and bfloat16 on rank 2"));
}

TEST(CompareDeclarations, every_field_of_a_tensor_is_compared) {
  const auto path = [](auto change) {
    return compared(last_of_three([&](RankDeclaration& d) { change(d.tensors.own()[0]); })).path;
  };
  EXPECT_EQ(path([](TensorDeclaration& t) { t.shape = {5}; }), "tensors[0].shape");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.local_shape = {5}; }), "tensors[0].local_shape");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.mesh = "other"; }), "tensors[0].mesh");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.placements = {replicate({"dp"})}; }), "tensors[0].placements[0]");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.placements.push_back(replicate({"tp"})); }), "tensors[0].placements[1]");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.divisor = 2; }), "tensors[0].divisor");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.tied = "t"; }), "tensors[0].tied");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.clip_group = "g"; }), "tensors[0].clip_group");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.layer = "l"; }), "tensors[0].layer");
  EXPECT_EQ(path([](TensorDeclaration& t) { t.split_order = {"dp"}; }), "tensors[0].split_order");
}

TEST(CompareDeclarations, clip_groups_are_compared_by_name_and_not_by_their_place_in_the_list) {
  const auto with = [](std::vector<ClipGroupOptions> clip) {
    RankDeclaration declared = model();
    declared.tensors.own()[0].clip_group = "head";
    declared.options.clip = std::move(clip);
    return declared;
  };
  const ClipGroupOptions all{"all", ClipOptions{1.0}};
  const ClipGroupOptions head{"head", ClipOptions{2.0}};
  EXPECT_TRUE(agree({with({all, head}), with({head, all})}));
  const Error differs = compared({with({all, head}), with({{"head", ClipOptions{3.0}}, all})});
  EXPECT_EQ(differs.path, "options.clip[1]");
  EXPECT_THAT(differs.message, HasSubstr("'head': max_norm 2"));
  EXPECT_THAT(differs.message, HasSubstr("'head': max_norm 3"));
  EXPECT_THAT(compared({with({all}), with({head, all})}).message, HasSubstr("clip[0] is none on rank 0"));
  EXPECT_THAT(compared({with({head, all}), with({all})}).message, HasSubstr("none on rank 1"));
}

TEST(CompareDeclarations, options_are_compared_first) {
  const Error mode = compared(last_of_three([](RankDeclaration& d) {
    d.options.mode = ClipMode::Torch;
    d.tensors.own()[0].name = "z";
  }));
  EXPECT_EQ(mode.path, "options.mode");
  EXPECT_THAT(mode.message, HasSubstr("formula is strict on rank 0 and torch on rank 2"));
  EXPECT_EQ(compared(last_of_three([](RankDeclaration& d) { d.options.accumulate = 4; })).path, "options.accumulate");
  EXPECT_EQ(compared(last_of_three([](RankDeclaration& d) { d.options.norm_type = 1; })).path, "options.norm_type");

  const Error buckets = compared(last_of_three([](RankDeclaration& d) { d.options.buckets = BucketRule::Torch; }));
  EXPECT_EQ(buckets.path, "options.buckets");
  EXPECT_THAT(buckets.message, HasSubstr("buckets is default on rank 0 and torch on rank 2"));

  const Error sums =
      compared(last_of_three([](RankDeclaration& d) { d.options.partial_sums = PartialSums::BFloat16; }));
  EXPECT_EQ(sums.path, "options.partial_sums");
  EXPECT_THAT(sums.message, HasSubstr("partial_sums is exact on rank 0 and bfloat16 on rank 2"));

  const Error prints = compared(last_of_three([](RankDeclaration& d) { d.options.fingerprint = "crc"; }));
  EXPECT_EQ(prints.path, "options.fingerprint");
  EXPECT_THAT(prints.message, HasSubstr("fingerprint is"));
  EXPECT_THAT(prints.message, HasSubstr("and 'crc' on rank 2"));

  const Error clip = compared(last_of_three([](RankDeclaration& d) {
    d.options.clip = {{"all", {0.5, ZeroRule::Off}}};
  }));
  EXPECT_EQ(clip.path, "options.clip[0]");
  EXPECT_THAT(clip.message, HasSubstr("is none on rank 0 and 'all': max_norm 0.5, zero_rule off on rank 2"));
}

TEST(CompareDeclarations, a_rank_with_fewer_tensors_is_told_which_one_is_missing) {
  const Error fewer = compared(last_of_three([](RankDeclaration& d) { d.tensors.own().pop_back(); }));
  EXPECT_EQ(fewer.tensor, "c");
  EXPECT_THAT(fewer.ranks, ElementsAre(2));
  EXPECT_THAT(fewer.message, HasSubstr("rank 2 did not declare it"));

  const Error more = compared(last_of_three([](RankDeclaration& d) { d.tensors.own().push_back(tensor("d", {1})); }));
  EXPECT_EQ(more.tensor, "d");
  EXPECT_THAT(more.message, HasSubstr("ranks 0, 1 did not declare it"));
  EXPECT_THAT(more.ranks, ElementsAre(2)) << "the smaller side is the likelier culprit";
  EXPECT_EQ(more.rank, 2) << "whose declaration the path is of";

  const Error middle =
      compared(last_of_three([](RankDeclaration& d) { d.tensors.own().erase(d.tensors.own().begin() + 1); }));
  EXPECT_EQ(middle.tensor, "b");
  EXPECT_THAT(middle.ranks, ElementsAre(2));
}

TEST(CompareDeclarations, another_order_is_no_difference) {
  EXPECT_TRUE(agree(last_of_three([](RankDeclaration& d) { std::swap(d.tensors.own()[0], d.tensors.own()[2]); })));
}

// ---- weights

std::vector<RankDeclaration> with_weights(const std::vector<std::vector<std::string>>& fingerprints) {
  std::vector<RankDeclaration> ranks(fingerprints.size(), model());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].weight_fingerprints = fingerprints[i];
  }
  return ranks;
}

TEST(CompareWeights, equal_or_missing_everywhere_agree) {
  EXPECT_TRUE(agree(with_weights({{"x", "y", "z"}, {"x", "y", "z"}})));
  EXPECT_TRUE(agree(with_weights({{"x", "", "z"}, {"x", "", "z"}})));
  EXPECT_TRUE(agree(with_weights({{}, {"", "", ""}})));
}

TEST(CompareWeights, the_ranks_outside_the_majority_are_named) {
  const Error error =
      compared(with_weights({{"x", "OLD", "z"}, {"x", "y", "z"}, {"x", "y", "OTHER"}, {"x", "y", "z"}}));
  EXPECT_EQ(error.code, ErrorCode::WeightsDiverged);
  EXPECT_EQ(error.tensor, "b");
  EXPECT_THAT(error.ranks, ElementsAre(0));
  EXPECT_THAT(error.tensors, ElementsAre("b", "c"));
  EXPECT_THAT(error.message, HasSubstr("OLD on rank 0, y on ranks 1, 2, 3"));
  EXPECT_THAT(error.message, HasSubstr("2 tensors differ"));
}

TEST(CompareWeights, a_pair_is_named_whole) {
  const Error error = compared(with_weights({{"x", "y", "z"}, {"x", "y", "w"}}));
  EXPECT_EQ(error.tensor, "c");
  EXPECT_THAT(error.ranks, ElementsAre(0, 1));
}

TEST(CompareWeights, without_a_majority_every_rank_is_suspect) {
  EXPECT_THAT(
      compared(with_weights({{"x", "y", "z"}, {"w", "y", "z"}, {"x", "y", "z"}, {"w", "y", "z"}})).ranks,
      ElementsAre(0, 1, 2, 3)
  );
}

TEST(CompareWeights, some_with_and_some_without_is_a_mismatch) {
  const Error whole = compared(with_weights({{"x", "y", "z"}, {}, {"x", "y", "z"}}));
  EXPECT_EQ(whole.code, ErrorCode::PlanMismatch);
  EXPECT_EQ(whole.path, "tensors[0].weight_fingerprint");
  EXPECT_THAT(whole.ranks, ElementsAre(1));
  EXPECT_THAT(whole.message, HasSubstr("rank 1 of 3 gave no weight fingerprint"));
  EXPECT_EQ(compared(with_weights({{"x", "y", "z"}, {"x", "y", ""}})).tensor, "c");
}

}  // namespace
}  // namespace gradsync::plan
