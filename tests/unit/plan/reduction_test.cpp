#include "plan/layout/reduction.hpp"

#include "declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Mesh kDense = mesh({{"pp", 1}, {"dp_replicate", 2}, {"dp_shard", 3}, {"cp", 2}, {"tp", 2}});

TEST(Reduction, stages_follow_the_conventional_order_whatever_the_order_of_placements) {
  const TensorDeclaration w = tensor(
      "w", {4}, {partial({"dp_replicate"}), partial({"dp_shard"}), partial({"cp"}), partial({"tp"}, ReduceOp::Sum)}
  );
  EXPECT_THAT(
      stages_of(w, kDense),
      ElementsAre(
          Stage{{"tp"}, ReduceOp::Sum, 2},
          Stage{{"cp"}, ReduceOp::Mean, 2},
          Stage{{"dp_shard"}, ReduceOp::Mean, 3},
          Stage{{"dp_replicate"}, ReduceOp::Mean, 2}
      )
  );
  EXPECT_THAT(reduced_axes(w, kDense), ElementsAre("tp", "cp", "dp_shard", "dp_replicate"));
}

TEST(Reduction, axes_without_a_convention_come_last_in_mesh_order) {
  const Mesh odd = mesh({{"zeta", 2}, {"alpha", 2}, {"tp", 2}});
  const TensorDeclaration w = tensor("w", {4}, {partial({"alpha"}), partial({"zeta"}), partial({"tp"})});
  EXPECT_THAT(reduced_axes(w, odd), ElementsAre("tp", "zeta", "alpha"));
}

TEST(Reduction, the_mesh_may_say_its_own_order) {
  Mesh own = mesh({{"dp", 2}, {"tp", 2}});
  own.sync_order = {"dp", "tp"};
  EXPECT_THAT(reduced_axes(tensor("w", {4}, {partial({"tp"}), partial({"dp"})}), own), ElementsAre("dp", "tp"));
}

TEST(Reduction, axes_of_size_1_and_replicated_axes_never_count) {
  const TensorDeclaration w = tensor("w", {4}, {partial({"pp"}), replicate({"dp_replicate", "dp_shard", "cp", "tp"})});
  EXPECT_THAT(stages_of(w, kDense), IsEmpty());
  EXPECT_EQ(divisor_of(w, kDense), 1);
}

TEST(Reduction, several_axes_of_one_placement_are_one_stage) {
  const TensorDeclaration w = tensor("w", {4}, {partial({"dp_replicate", "dp_shard", "pp"})});
  EXPECT_THAT(stages_of(w, kDense), ElementsAre(Stage{{"dp_replicate", "dp_shard"}, ReduceOp::Mean, 6}));
}

TEST(Reduction, means_divide_by_their_axes_and_sums_do_not) {
  EXPECT_EQ(divisor_of(tensor("w", {4}, {partial({"dp_shard"}), partial({"tp"}, ReduceOp::Sum)}), kDense), 3);
  EXPECT_EQ(divisor_of(tensor("w", {4}, {partial({"dp_shard"}), partial({"cp"})}), kDense), 6);
}

TEST(Reduction, a_declared_divisor_is_applied_even_without_a_stage) {
  TensorDeclaration w = tensor("w", {4}, {replicate({"dp_replicate", "dp_shard", "cp", "tp"})});
  w.divisor = 8;
  EXPECT_EQ(divisor_of(w, kDense), 8);
}

TEST(Reduction, groups_hold_the_ranks_that_differ_in_reduced_axes_only) {
  const Mesh grid = mesh({{"dp", 2}, {"tp", 3}});
  EXPECT_THAT(reduction_groups(grid, {"dp"}), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(reduction_groups(grid, {"tp"}), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  EXPECT_THAT(reduction_groups(grid, {"tp", "dp"}), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_EQ(reduction_groups(grid, {}).size(), 6U);
}

}  // namespace
}  // namespace gradsync::plan
