// Ranks that declare alike hold one list of tensors, and nobody can tell from the plan.

#include "plan/declaration_pool.hpp"

#include "declarations.hpp"
#include "plan/interrupt.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>

namespace gradsync::plan {
namespace {

std::size_t same_for_all(std::string_view /*text*/) { return 7; }

TensorList admitted(DeclarationPool& pool, const RankDeclaration& declared) {
  Result<TensorList> tensors = pool.admit(declared);
  EXPECT_TRUE(tensors) << (tensors ? "" : tensors.error().message);
  return tensors ? *tensors : TensorList{};
}

RankDeclaration two(std::int64_t extent = 4) { return declaration({tensor("a", {extent}), tensor("b", {2, 3})}); }

TEST(TensorList, copies_share_until_one_is_written) {
  const RankDeclaration first = two();
  RankDeclaration copy = first;
  EXPECT_EQ(copy.tensors.identity(), first.tensors.identity());
  copy.tensors.own()[0].name = "other";
  EXPECT_NE(copy.tensors.identity(), first.tensors.identity());
  EXPECT_EQ(first.tensors[0].name, "a");
  const void* const alone = copy.tensors.identity();
  copy.tensors.own()[1].name = "more";
  EXPECT_EQ(copy.tensors.identity(), alone) << "nobody else has it";
  EXPECT_NE(copy.tensors, first.tensors);
  EXPECT_EQ(two().tensors, first.tensors) << "content is compared";
  EXPECT_EQ(TensorList{}, TensorList(std::vector<TensorDeclaration>{}));
}

TEST(DeclarationPool, equal_tensors_are_held_once) {
  DeclarationPool pool(kDp2);
  const RankDeclaration first = two();
  EXPECT_EQ(admitted(pool, first).identity(), first.tensors.identity());
  RankDeclaration other = two();
  other.weight_fingerprints = {"1", "2"};
  other.measured_by = "hooks";
  EXPECT_NE(other.tensors.identity(), first.tensors.identity());
  EXPECT_EQ(admitted(pool, other).identity(), first.tensors.identity());
}

TEST(DeclarationPool, any_difference_of_a_tensor_is_kept_also_where_hashes_are_equal) {
  for (const bool collide : {false, true}) {
    DeclarationPool pool = collide ? DeclarationPool(kDp2, same_for_all) : DeclarationPool(kDp2);
    const RankDeclaration base = two();
    std::vector<TensorList> held{admitted(pool, base)};
    for (const auto& change : std::vector<std::function<void(std::vector<TensorDeclaration>&)>>{
             [](auto& tensors) { tensors[0].name = "c"; },
             [](auto& tensors) { tensors[0].shape = tensors[0].local_shape = {5}; },
             [](auto& tensors) {
               tensors[1].local_offset = {0, 0};
             },
             [](auto& tensors) { tensors[1].dtype = DType::Float16; },
             [](auto& tensors) { tensors[1].placements = {replicate({"dp"})}; },
             [](auto& tensors) { tensors[1].placements = {partial({"dp"}, ReduceOp::Sum)}; },
             [](auto& tensors) { tensors[1].layer = "l"; },
             [](auto& tensors) { tensors[1].tied = "l"; },
             [](auto& tensors) { tensors[1].clip_group = "g"; },
             [](auto& tensors) { std::swap(tensors[0], tensors[1]); },
             [](auto& tensors) { tensors.pop_back(); }}) {
      RankDeclaration other = base;
      change(other.tensors.own());
      EXPECT_EQ(admitted(pool, other).identity(), other.tensors.identity()) << held.size();
      for (const TensorList& before : held) {
        EXPECT_NE(other.tensors.identity(), before.identity());
      }
      held.push_back(other.tensors);
      EXPECT_EQ(admitted(pool, RankDeclaration(other)).identity(), other.tensors.identity()) << "its own equal";
    }
    EXPECT_EQ(admitted(pool, two()).identity(), base.tensors.identity());
  }
}

// The content of a shard may be what its neighbour's is, in another place of the list.
TEST(DeclarationPool, the_parts_of_a_shard_are_of_the_ranks_that_hold_alike) {
  const std::vector<Mesh> meshes{mesh({{"dp", 4}})};
  DeclarationPool pool(meshes);
  std::vector<RankDeclaration> ranks;
  for (const std::int64_t held : {2, 2, 1, 0}) {  // of 5 elements
    ranks.push_back(declaration({tensor("w", {5}, {shard({"dp"}, 0)})}));
    ranks.back().options.data_path = DataPath::Stats;
    ranks.back().tensors.own()[0].local_shape = {held};
  }
  std::vector<const RankDeclaration*> apart;
  for (const RankDeclaration& rank : ranks) {
    apart.push_back(&rank);
  }
  const Result<Plan> before = plan_job(apart, meshes, {});
  ASSERT_TRUE(before);
  std::vector<RankDeclaration> sharing = ranks;
  std::vector<const RankDeclaration*> together;
  for (RankDeclaration& rank : sharing) {
    rank.tensors = admitted(pool, rank);
    together.push_back(&rank);
  }
  EXPECT_EQ(sharing[0].tensors.identity(), sharing[1].tensors.identity());
  EXPECT_NE(sharing[1].tensors.identity(), sharing[2].tensors.identity());
  const Result<Plan> plan = plan_job(together, meshes, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->digest, before->digest);
  EXPECT_EQ(plan->tensors[0].holdings, before->tensors[0].holdings);
}

TEST(DeclarationPool, what_was_refused_is_refused_again) {
  DeclarationPool pool(kDp2);
  RankDeclaration wrong = two();
  wrong.tensors.own()[1].mesh = "sparse";
  const Error first = pool.admit(wrong).error();
  EXPECT_EQ(first.message, validate_declaration(wrong, kDp2).error().message);
  EXPECT_EQ(first.path, "tensors[1].mesh");
  EXPECT_EQ(pool.admit(wrong).error().message, first.message);
}

TEST(DeclarationPool, checks_what_is_beside_tensors_that_it_knows) {
  DeclarationPool pool(kDp2);
  const RankDeclaration valid = two();
  (void)admitted(pool, valid);
  RankDeclaration other = two();
  other.weight_fingerprints = {"1"};
  EXPECT_EQ(pool.admit(other).error().message, "1 weight fingerprints for 2 tensors");
  other = two();
  other.options.accumulate = 0;
  EXPECT_EQ(pool.admit(other).error().path, "options.accumulate");
  other = two();
  other.options.data_path = DataPath::Stats;
  EXPECT_EQ(pool.admit(other).error().code, ErrorCode::UnsupportedPlacement) << "they are valid on data path arena";
}

TEST(DeclarationPool, keeps_nothing_alive) {
  DeclarationPool pool(kDp2);
  std::optional<RankDeclaration> left = two();
  (void)admitted(pool, *left);
  const TensorList::Watch watch(left->tensors);
  left.reset();
  EXPECT_TRUE(watch.list().empty());
  for (std::int64_t extent = 1; extent < 100; ++extent) {
    EXPECT_EQ(admitted(pool, two(extent)).size(), 2U);
  }
  const RankDeclaration again = two();
  EXPECT_EQ(admitted(pool, again).identity(), again.tensors.identity());
}

TEST(DeclarationPool, stops_when_it_is_interrupted) {
  DeclarationPool pool(kDp2);
  const std::atomic<bool> raised{true};
  const Interruptible interruptible(raised);
  EXPECT_THROW((void)pool.admit(two()), Interrupted);
}

}  // namespace
}  // namespace gradsync::plan
