// Which sums over ranks a norm takes, and that they are the norm: on random worlds, run as the plan lists them.

#include "declarations.hpp"
#include "plan/explain.hpp"
#include "plan/merge/merge_declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Result<Plan> plan_of(const std::vector<Mesh>& meshes, const std::vector<TensorDeclaration>& tensors) {
  std::vector<RankDeclaration> ranks(static_cast<std::size_t>(meshes.front().size()));
  for (const TensorDeclaration& tensor : tensors) {
    const Mesh& mesh =
        *std::find_if(meshes.begin(), meshes.end(), [&](const Mesh& m) { return m.name == tensor.mesh; });
    const PlacedRanks placed = place_ranks(tensor, mesh);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (placed.ranks[rank].holds) {
        ranks[rank].tensors.own().push_back(tensor);
        ranks[rank].tensors.own().back().local_shape = box_of(tensor.shape, placed.ranks[rank].cuts).extent;
      }
    }
  }
  std::vector<const RankDeclaration*> pointers;
  for (RankDeclaration& rank : ranks) {
    rank.options.data_path = DataPath::Stats;
    pointers.push_back(&rank);
  }
  return plan_job(pointers, meshes, {});
}

std::vector<std::vector<std::string>> axes_of(const Plan& plan) {
  std::vector<std::vector<std::string>> all;
  for (const ScalarCollective& collective : plan.scalar_collectives) {
    all.push_back(collective.axes);
  }
  return all;
}

TEST(NormProgram, nothing_is_summed_over_axes_that_replicate) {
  const Mesh hsdp = mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  const Result<Plan> plan = plan_of(
      {hsdp},
      {tensor("w", {4}, {replicate({"dp_replicate"}), shard({"dp_shard"}, 0)}),
       tensor("b", {4}, {replicate({"dp_replicate", "dp_shard"})})}
  );
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(axes_of(*plan), ElementsAre(ElementsAre("dp_shard")));
  EXPECT_THAT(plan->scalar_collectives[0].groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(plan->scalar_collectives[0].length, 6) << "one sum, one clip group, no layers";
  EXPECT_THAT(plan->norm_groups[1].axes, IsEmpty());
  EXPECT_EQ(plan->norm_groups[1].sum, -1);
}

TEST(NormProgram, one_packed_vector_per_axis_set_experts_once_the_pipeline_once) {
  const Mesh dense = mesh({{"pp", 2}, {"dp_shard", 4}}, "dense");
  const Mesh expert = mesh({{"pp", 2}, {"ep", 2}, {"edp", 2}}, "expert");
  std::vector<TensorDeclaration> tensors;
  for (const std::int64_t stage : {0, 1}) {
    for (int i = 0; i < 3; ++i) {
      const std::string name = std::to_string(stage) + "." + std::to_string(i);
      tensors.push_back(tensor("w" + name, {8}, {only({"pp"}, {stage}), shard({"dp_shard"}, 0)}));
      TensorDeclaration experts =
          tensor("e" + name, {4, 6}, {only({"pp"}, {stage}), shard({"ep"}, 0), shard({"edp"}, 1)});
      experts.mesh = "expert";
      experts.layer = "layer" + std::to_string(stage);
      tensors.push_back(experts);
    }
  }
  const Result<Plan> plan = plan_of({dense, expert}, tensors);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(
      axes_of(*plan), ElementsAre(ElementsAre("dp_shard"), ElementsAre("edp"), ElementsAre("ep"), ElementsAre("pp"))
  ) << "however many tensors";
  for (const ScalarCollective& collective : plan->scalar_collectives) {
    EXPECT_EQ(collective.sums.size(), 1u);
    EXPECT_EQ(collective.length, 6 * (1 + 2));
  }
  const ScalarSum& first = plan->scalar_sums[static_cast<std::size_t>(plan->norm_groups[1].sum)];
  EXPECT_EQ(first.collective, 1u);
  EXPECT_EQ(plan->scalar_sums[static_cast<std::size_t>(first.next)].collective, 2u);
}

TEST(NormProgram, axes_named_ep_and_more_are_expert_axes_and_travel_after_the_others) {
  const Mesh expert = mesh({{"ep_shard", 2}, {"ep", 2}, {"epochs", 2}});
  const Result<Plan> plan =
      plan_of({expert}, {tensor("e", {8, 4}, {shard({"ep_shard"}, 0), shard({"ep"}, 1), shard({"epochs"}, 0)})});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(axes_of(*plan), ElementsAre(ElementsAre("epochs"), ElementsAre("ep_shard", "ep")));
}

TEST(NormProgram, a_tied_copy_is_in_the_clip_set_alone_and_plans_no_sum) {
  TensorDeclaration embed = tensor("embed", {4}, {only({"pp"}, {0})});
  TensorDeclaration head = tensor("head", {4}, {only({"pp"}, {1})});
  embed.tied = head.tied = "vocabulary";
  const Result<Plan> plan = plan_of({mesh({{"pp", 2}})}, {embed, head});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->norm_groups[0].tensors, ElementsAre(0));
  EXPECT_THAT(plan->clip_groups[0].tensors, ElementsAre(0, 1))
      << "the filter of the norm set never reaches the clip set";
  EXPECT_EQ(plan->tensors[1].counted_elements, 0);
  EXPECT_EQ(plan->scalar_collectives.size(), 1u);
}

TEST(Explain, says_who_holds_what_and_over_which_ranks_it_is_summed) {
  TensorDeclaration embed = tensor("embed", {4}, {only({"pp"}, {0}), shard({"dp_shard"}, 0)});
  TensorDeclaration head = tensor("head", {4}, {only({"pp"}, {1}), shard({"dp_shard"}, 0)});
  embed.tied = head.tied = "vocabulary";
  const Result<Plan> plan = plan_of(
      {mesh({{"pp", 2}, {"dp_shard", 2}})},
      {embed, head, tensor("b", {3}, {replicate({"pp"}), replicate({"dp_shard"})})}
  );
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(
      explain_tensor(*plan, 0),
      "cut into 2 parts, each on 1 rank; its 4 elements are counted once, summed over dp_shard (2 ranks), then over pp "
      "(2 ranks)"
  );
  EXPECT_THAT(
      explain_tensor(*plan, 2),
      ::testing::EndsWith("tied to 'embed' and counted there, clipped here too; 2 of its 2 parts "
                          "compared with it")
  );
  EXPECT_EQ(
      explain_tensor(*plan, 1), "whole on 4 ranks, equal on them; its 3 elements are counted once, summed over no rank"
  );
  EXPECT_THAT(explain_norm_group(*plan, 0), ::testing::HasSubstr("spread over pp and dp_shard"));
  EXPECT_THAT(explain_norm_group(*plan, 1), ::testing::HasSubstr("whole on every rank:"));
}

TEST(Explain, empty_parts_are_not_counted) {
  const auto told = [](std::int64_t rows, std::vector<Placement> placed) {
    TensorDeclaration embed = tensor("embed", {rows}, {only({"pp"}, {0}), shard({"dp"}, 0)});
    TensorDeclaration head = tensor("head", {rows}, std::move(placed));
    embed.tied = head.tied = "vocabulary";
    const Result<Plan> plan = plan_of({mesh({{"pp", 2}, {"dp", 4}})}, {embed, head});
    return plan ? explain_tensor(*plan, 1) : plan.error().message;
  };
  const std::vector<Placement> alike = {only({"pp"}, {1}), shard({"dp"}, 0)};
  const std::string tied = "; tied to 'embed' and counted there, clipped here too; ";
  EXPECT_EQ(told(3, alike), "cut into 3 parts, each on 1 rank" + tied + "3 of its 3 parts compared with it");
  EXPECT_EQ(told(1, alike), "whole on 1 rank" + tied + "1 of its 1 parts compared with it");
  EXPECT_EQ(told(0, alike), "without elements" + tied + "nothing to compare with it");
  EXPECT_EQ(
      told(3, {only({"pp"}, {1}), replicate({"dp"})}),
      "whole on 4 ranks, equal on them" + tied + "cut otherwise, so not compared with it"
  );
}

/// Sums of integers by the plan's program: every rank's result.
std::vector<std::int64_t> run(
    const Plan& plan, const std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t>& values
) {
  const auto world = static_cast<std::size_t>(plan.world_size);
  std::vector<std::int64_t> result(world, 0);
  std::vector<std::vector<std::int64_t>> sums(plan.scalar_sums.size(), std::vector<std::int64_t>(world, 0));
  const auto into = [&](std::int32_t sum) -> std::vector<std::int64_t>& {
    return sum < 0 ? result : sums[static_cast<std::size_t>(sum)];
  };
  for (const NormGroup& group : plan.norm_groups) {
    for (const std::uint32_t tensor : group.tensors) {
      for (const Holding& holding : plan.tensors[tensor].holdings) {
        into(group.sum)[holding.rank] += values.at({tensor, holding.box});
      }
    }
  }
  for (const ScalarCollective& collective : plan.scalar_collectives) {
    for (const std::uint32_t sum : collective.sums) {
      for (const std::vector<std::int64_t>& group : collective.groups) {
        std::int64_t total = 0;
        for (const std::int64_t rank : group) {
          total += sums[sum][static_cast<std::size_t>(rank)];
        }
        for (const std::int64_t rank : group) {
          into(plan.scalar_sums[sum].next)[static_cast<std::size_t>(rank)] += total;
        }
      }
    }
  }
  return result;
}

TEST(NormProgram, its_sums_are_the_norm_on_every_rank_of_random_worlds) {
  std::mt19937 random(7);
  const auto below = [&random](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 400; ++round) {
    const std::int64_t pp = 1 + below(3), rep = 1 + below(2), shards = 1 + below(3), ep = 1 + below(2);
    const Mesh dense = mesh({{"pp", pp}, {"dp_replicate", rep}, {"dp_shard", shards * ep}}, "dense");
    const Mesh expert = mesh({{"pp", pp}, {"dp_replicate", rep}, {"ep", ep}, {"edp", shards}}, "expert");
    std::vector<TensorDeclaration> tensors;
    std::int64_t expected = 0;
    for (int i = 0; i < 6; ++i) {
      TensorDeclaration t = tensor("t" + std::to_string(i), {below(7), 1 + below(4)}, {});
      const auto place = [&](const std::string& axis) {
        t.placements.push_back(below(2) != 0 ? shard({axis}, below(2)) : replicate({axis}));
      };
      t.placements.push_back(below(2) != 0 ? only({"pp"}, {below(static_cast<int>(pp))}) : replicate({"pp"}));
      t.placements.push_back(replicate({"dp_replicate"}));
      if (below(2) != 0) {
        place("dp_shard");
      } else {
        t.mesh = "expert";
        place("ep");
        place("edp");
      }
      tensors.push_back(t);
    }
    const Result<Plan> plan = plan_of({dense, expert}, tensors);
    ASSERT_TRUE(plan) << plan.error().message;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> values;
    for (std::uint32_t tensor = 0; tensor < plan->tensors.size(); ++tensor) {
      for (const Holding& holding : plan->tensors[tensor].holdings) {
        const auto [entry, fresh] = values.emplace(std::pair(tensor, holding.box), below(1000));
        expected += fresh ? entry->second : 0;
      }
    }
    EXPECT_THAT(run(*plan, values), ::testing::Each(expected)) << "round " << round;
    for (const ScalarCollective& collective : plan->scalar_collectives) {
      EXPECT_EQ(std::count(collective.axes.begin(), collective.axes.end(), "dp_replicate"), 0);
    }
  }
}

}  // namespace
}  // namespace gradsync::plan
