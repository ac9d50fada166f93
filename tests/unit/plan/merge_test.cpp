// Declarations of ranks that hold different tensors: who holds what, which part, and what is refused.

#include "declarations.hpp"
#include "plan/merge/merge_declarations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What `rank` declares of a tensor whose parts follow from the placements.
TensorDeclaration held(TensorDeclaration tensor, const Mesh& mesh, std::int64_t rank) {
  const PlacedRanks placed = place_ranks(tensor, mesh);
  tensor.local_shape = box_of(tensor.shape, placed.ranks[static_cast<std::size_t>(rank)].cuts).extent;
  return tensor;
}

/// Ranks that declare what placements give them.
class Ranks {
 public:
  explicit Ranks(std::vector<Mesh> meshes) : meshes_(std::move(meshes)) {
    ranks_.resize(static_cast<std::size_t>(meshes_.front().size()));
    for (RankDeclaration& rank : ranks_) {
      rank.options.data_path = DataPath::Stats;
    }
  }

  Ranks& add(const TensorDeclaration& tensor) {
    const Mesh& mesh =
        *std::find_if(meshes_.begin(), meshes_.end(), [&](const Mesh& m) { return m.name == tensor.mesh; });
    const PlacedRanks placed = place_ranks(tensor, mesh);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (placed.ranks[rank].holds) {
        ranks_[rank].tensors.own().push_back(held(tensor, mesh, static_cast<std::int64_t>(rank)));
      }
    }
    return *this;
  }

  RankDeclaration& operator[](std::size_t rank) { return ranks_[rank]; }

  [[nodiscard]] Result<Plan> plan() const {
    std::vector<const RankDeclaration*> pointers;
    for (const RankDeclaration& rank : ranks_) {
      const Result<void> valid = validate_declaration(rank, meshes_);
      EXPECT_TRUE(valid) << (valid ? "" : valid.error().message);
      pointers.push_back(&rank);
    }
    return plan_job(pointers, meshes_, {});
  }

  [[nodiscard]] Error refusal() const {
    const Result<Plan> made = plan();
    return made ? make_error(ErrorCode::InternalError, "the declarations were accepted") : made.error();
  }

 private:
  std::vector<Mesh> meshes_;
  std::vector<RankDeclaration> ranks_;
};

const Mesh kFsdp = mesh({{"dp_shard", 3}});
const Mesh kHsdp = mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
const Mesh kShardedTp = mesh({{"dp_shard", 2}, {"tp", 2}});

TEST(Merge, parts_are_those_of_torch_chunk_uneven_and_empty_ones_too) {
  Ranks ranks({kFsdp});
  ranks.add(tensor("a", {7, 2}, {shard({"dp_shard"}, 0)})).add(tensor("b", {2}, {shard({"dp_shard"}, 0)}));
  EXPECT_EQ(ranks[0].tensors[0].local_shape, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(ranks[2].tensors[0].local_shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(ranks[2].tensors[1].local_shape, (std::vector<std::int64_t>{0}));
  const Result<Plan> plan = ranks.plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->tensors[0].boxes, 3);
  EXPECT_EQ(plan->tensors[0].replication, 1);
  EXPECT_EQ(plan->tensors[0].counted_elements, 14);
  EXPECT_THAT(plan->tensors[0].holdings, ElementsAre(Holding{0, 0, 0, 6}, Holding{1, 0, 1, 6}, Holding{2, 0, 2, 2}));
  EXPECT_EQ(plan->tensors[1].holdings[2].elements, 0u);
}

TEST(Merge, replicas_share_a_box) {
  Ranks ranks({kHsdp});
  ranks.add(tensor("a", {4}, {replicate({"dp_replicate"}), shard({"dp_shard"}, 0)}));
  const Result<Plan> plan = ranks.plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->tensors[0].replication, 2);
  std::vector<std::uint32_t> boxes;
  for (const Holding& holding : plan->tensors[0].holdings) {
    boxes.push_back(holding.box);
  }
  EXPECT_THAT(boxes, ElementsAre(0, 1, 0, 1));
}

TEST(Merge, nested_splits_follow_the_mesh_or_the_split_order) {
  TensorDeclaration w = tensor("w", {5}, {shard({"dp_shard"}, 0), shard({"tp"}, 0)});
  const auto extents = [&w] {
    std::vector<std::int64_t> all;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      all.push_back(held(w, kShardedTp, rank).local_shape[0]);
    }
    return all;
  };
  EXPECT_THAT(extents(), ElementsAre(2, 1, 1, 1)) << "dp 3+2, then tp 2+1 and 1+1";
  w.split_order = {"tp", "dp_shard"};
  EXPECT_THAT(extents(), ElementsAre(2, 1, 1, 1)) << "tp 3+2, then dp: ranks (0,0) 2, (0,1) 1, (1,0) 1, (1,1) 1";
  EXPECT_EQ(box_of({5}, place_ranks(w, kShardedTp).ranks[1].cuts).offset[0], 3) << "rank 1 is tp 1: behind tp 0's 3";
  w.split_order.clear();
  EXPECT_EQ(box_of({5}, place_ranks(w, kShardedTp).ranks[1].cuts).offset[0], 2);
}

TEST(Merge, of_axes_taken_as_one_the_first_named_is_the_slowest) {
  const Mesh grid = mesh({{"dp_shard", 2}, {"cp", 3}});  // ranks 0 to 5: (0,0) (0,1) (0,2) (1,0) (1,1) (1,2)
  const auto boxes = [&grid](const TensorDeclaration& tensor) {
    std::vector<std::uint32_t> all;
    for (const RankPlace& rank : place_ranks(tensor, grid).ranks) {
      all.push_back(rank.box);
    }
    return all;
  };
  EXPECT_THAT(boxes(tensor("w", {6}, {shard({"dp_shard", "cp"}, 0)})), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(boxes(tensor("w", {6}, {shard({"cp", "dp_shard"}, 0)})), ElementsAre(0, 2, 4, 1, 3, 5));
  std::vector<bool> holds;
  for (const RankPlace& rank : place_ranks(tensor("e", {6}, {only({"cp", "dp_shard"}, {1, 4})}), grid).ranks) {
    holds.push_back(rank.holds);
  }
  EXPECT_THAT(holds, ElementsAre(false, false, true, true, false, false)) << "cp 0 dp_shard 1, and cp 2 dp_shard 0";
}

TEST(Merge, stages_hold_tensors_of_their_own_and_experts_of_one_name_differ) {
  const Mesh dense = mesh({{"pp", 2}, {"ep", 2}});
  Ranks ranks({dense});
  ranks.add(tensor("embed", {4}, {only({"pp"}, {0}), replicate({"ep"})}));
  ranks.add(tensor("expert", {6}, {only({"pp"}, {1}), only({"ep"}, {0})}));
  ranks.add(tensor("expert", {6}, {only({"pp"}, {1}), only({"ep"}, {1})}));
  const Result<Plan> plan = ranks.plan();
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->tensors.size(), 3u);
  EXPECT_THAT(plan->tensors[1].holdings, ElementsAre(Holding{2, 0, 0, 6}));
  EXPECT_THAT(plan->tensors[2].holdings, ElementsAre(Holding{3, 0, 0, 6}));
}

TEST(Merge, only_at_every_coordinate_is_replicate) {
  Ranks ranks({kHsdp});
  ranks.add(tensor("a", {4}, {only({"dp_replicate"}, {1, 0}), replicate({"dp_shard"})}));
  const Result<Plan> plan = ranks.plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(plan->scalar_collectives.empty());
  EXPECT_EQ(plan->tensors[0].replication, 4);
}

/// `head` shares the weight of `embed`, on the other stage of two.
Ranks tied(TensorDeclaration embed, TensorDeclaration head) {
  embed.tied = head.tied = "vocabulary";
  Ranks ranks({mesh({{"pp", 2}, {"dp_shard", 2}, {"tp", 2}})});
  ranks.add(embed).add(head);
  return ranks;
}

std::vector<std::int32_t> counted_boxes(const Ranks& ranks) {
  const Result<Plan> plan = ranks.plan();
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().message);
  return plan ? plan->tensors.at(1).counted_boxes : std::vector<std::int32_t>{};
}

TEST(Merge, parts_of_a_tied_copy_that_are_cut_alike_are_known) {
  const TensorDeclaration embed =
      tensor("embed", {6, 4}, {only({"pp"}, {0}), shard({"dp_shard"}, 0), shard({"tp"}, 1)});
  TensorDeclaration head = tensor("head", {6, 4}, {only({"pp"}, {1}), shard({"dp_shard"}, 0), shard({"tp"}, 1)});
  EXPECT_THAT(counted_boxes(tied(embed, head)), ElementsAre(0, 1, 2, 3));
  head.split_order = {"tp", "dp_shard"};
  EXPECT_THAT(counted_boxes(tied(embed, head)), ElementsAre(0, 2, 1, 3)) << "boxes are numbered in nesting order";
  head = tensor("head", {6, 4}, {only({"pp"}, {1}), shard({"tp"}, 0), replicate({"dp_shard"})});
  EXPECT_THAT(counted_boxes(tied(embed, head)), ElementsAre(-1, -1)) << "halves are not quarters";
  const Result<Plan> alone = Ranks({mesh({{"dp", 2}})}).add(tensor("w", {2}, {replicate({"dp"})})).plan();
  ASSERT_TRUE(alone);
  EXPECT_TRUE(alone->tensors[0].counted_boxes.empty());
}

TEST(Merge, empty_parts_of_a_tied_copy_are_not_compared_and_offsets_count) {
  TensorDeclaration embed = tensor("embed", {1}, {only({"pp"}, {0}), shard({"dp_shard"}, 0), replicate({"tp"})});
  TensorDeclaration head = tensor("head", {1}, {only({"pp"}, {1}), shard({"dp_shard"}, 0), replicate({"tp"})});
  EXPECT_THAT(counted_boxes(tied(embed, head)), ElementsAre(0, -1));
  embed.shape = head.shape = {4};
  Ranks ranks = tied(embed, head);
  for (const std::size_t rank : {4, 5, 6, 7}) {  // the head is cut the other way round
    ranks[rank].tensors.own()[0].local_offset = {rank < 6 ? 2 : 0};
  }
  EXPECT_THAT(counted_boxes(ranks), ElementsAre(1, 0));
}

TEST(Merge, a_rank_may_hold_nothing_and_so_may_all_ranks) {
  Ranks ranks({mesh({{"pp", 3}})});
  Result<Plan> plan = ranks.plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->tensors, IsEmpty());
  EXPECT_THAT(plan->scalar_collectives, IsEmpty());
  ASSERT_EQ(plan->clip_groups.size(), 1u) << "whose norm is said";
  EXPECT_EQ(plan->clip_groups[0].name, "all");
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks[rank].options.clip = {{"experts", {1.0, ZeroRule::Refuse}}, {"dense", {}}};
  }
  plan = ranks.plan();
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->clip_groups.size(), 2u) << "those that are listed";
  EXPECT_EQ(plan->clip_groups[0].name, "experts");
  ranks.add(tensor("a", {4}, {only({"pp"}, {1})}));
  EXPECT_EQ(ranks.refusal().path, "options.clip[0].group") << "where one holds a tensor, it belongs to some group";
}

TEST(Merge, the_elements_of_all_ranks_are_fewer_than_2_to_the_62) {
  const auto ranks_with = [](std::int64_t tensors) {
    Ranks ranks({mesh({{"dp", 16}})});
    for (std::int64_t i = 0; i < tensors; ++i) {
      TensorDeclaration half = tensor("half" + std::to_string(i), {std::int64_t{1} << 60}, {shard({"dp"}, 0)});
      half.dtype = DType::Float16;
      ranks.add(half);  // 2^57 bytes on each rank
    }
    return ranks;
  };
  EXPECT_TRUE(ranks_with(3).plan());
  for (const std::int64_t tensors : {4, 16}) {  // the sum of 16 is 2^64
    const Error error = ranks_with(tensors).refusal();
    EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
    EXPECT_EQ(error.path, "tensors");
    EXPECT_THAT(error.message, HasSubstr("up to 'half3' have 2^62 elements or more together"));
  }
}

TEST(Merge, ranks_that_hold_nothing_have_arenas_of_no_bytes) {
  const RankDeclaration nothing = declaration({});
  const Plan plan = make_plan(nothing, kDp2, 2, {});
  EXPECT_THAT(plan.buckets, IsEmpty());
  ASSERT_EQ(plan.layouts.size(), 1u);
  EXPECT_EQ(plan.layout(1).bytes(), 0u);
  EXPECT_THAT(plan.digest, SizeIs(16));
}

// ---- refused

TEST(MergeRefuses, a_tensor_called_sharded_but_held_whole) {
  Ranks ranks({kFsdp});
  ranks.add(tensor("w", {6}, {shard({"dp_shard"}, 0)}));
  ranks[1].tensors.own()[0].local_shape = {6};
  const Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.tensor, "w");
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.path, "tensors[0].local_shape");
  EXPECT_THAT(
      error.message, HasSubstr("rank 1 holds [6], but of shape [6] its placements (dp_shard: shard(0)) leave it [2]")
  );
  EXPECT_THAT(error.hint, HasSubstr("held whole"));
}

TEST(MergeRefuses, an_axis_that_cuts_in_the_declaration_alone) {
  Ranks ranks({kShardedTp});
  ranks.add(tensor("w", {8}, {shard({"dp_shard"}, 0), shard({"tp"}, 0)}));
  ranks[0].tensors.own()[0].local_shape = {4};
  EXPECT_THAT(ranks.refusal().hint, HasSubstr("axis 'dp_shard' of size 2 did not cut dim 0"));
}

TEST(MergeRefuses, one_name_for_two_tensors) {
  Ranks ranks({kHsdp});
  ranks.add(tensor("w", {4}, {replicate({"dp_replicate", "dp_shard"})}));
  ranks[2].tensors.own()[0].shape = ranks[2].tensors.own()[0].local_shape = {5};
  Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::PlanMismatch);
  EXPECT_THAT(error.ranks, ElementsAre(0, 2));
  EXPECT_THAT(error.message, HasSubstr("tensor 'w': shape is [4] on rank 0 and [5] on rank 2"));
  ranks[2].tensors.own()[0].shape = ranks[2].tensors.own()[0].local_shape = {4};
  ranks[2].tensors.own()[0].dtype = DType::BFloat16;
  EXPECT_THAT(ranks.refusal().message, HasSubstr("dtype is float32 on rank 0 and bfloat16 on rank 2"));
}

TEST(MergeRefuses, shards_of_different_dims_and_a_shard_beside_a_replica_by_their_axis) {
  Ranks ranks({kFsdp});
  ranks.add(tensor("w", {6, 6}, {shard({"dp_shard"}, 0)}));
  ranks[1].tensors.own()[0].placements = {shard({"dp_shard"}, 1)};
  ranks[1].tensors.own()[0].local_shape = {6, 2};
  Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::PlanMismatch);
  EXPECT_EQ(error.path, "tensors[0].placements[0]");
  EXPECT_EQ(error.tensor, "w");
  EXPECT_THAT(error.ranks, ElementsAre(0, 1));
  EXPECT_THAT(error.message, HasSubstr("dp_shard: shard(0) on rank 0 and dp_shard: shard(1) on rank 1"));
  ranks[1].tensors.own()[0].placements = {replicate({"dp_shard"})};
  ranks[1].tensors.own()[0].local_shape = {6, 6};
  EXPECT_THAT(ranks.refusal().message, HasSubstr("dp_shard: shard(0) on rank 0 and dp_shard: replicate on rank 1"));
}

TEST(MergeRefuses, a_holder_that_did_not_declare_and_one_that_should_not_have) {
  Ranks ranks({kHsdp});
  ranks.add(tensor("w", {4}, {replicate({"dp_replicate"}), shard({"dp_shard"}, 0)}));
  ranks[3].tensors.own().clear();
  Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::PlanMismatch);
  EXPECT_THAT(error.ranks, ElementsAre(3));
  EXPECT_THAT(error.message, HasSubstr("declared by 3 of the 4 ranks"));

  Ranks stages({mesh({{"pp", 2}})});
  stages.add(tensor("head", {4}, {only({"pp"}, {1})}));
  stages[0].tensors = stages[1].tensors;
  error = stages.refusal();
  EXPECT_EQ(error.rank, 0);
  EXPECT_THAT(error.message, HasSubstr("declared by rank 0 at pp=0, where 'pp: only(1)' does not put it"));
}

TEST(MergeRefuses, overlap_and_gap_of_equal_size) {
  Ranks ranks({mesh({{"dp_shard", 2}})});
  TensorDeclaration w = tensor("w", {8}, {shard({"dp_shard"}, 0)});
  ranks.add(w);
  ranks[0].tensors.own()[0].local_offset = {0};
  ranks[1].tensors.own()[0].local_offset = {4};
  EXPECT_TRUE(ranks.plan());
  ranks[1].tensors.own()[0].local_offset = {3};  // 3 is held twice and 7 by nobody; the sizes add up
  Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "tensors[0].local_offset");
  EXPECT_THAT(error.message, HasSubstr("ranks 0 and 1 hold overlapping shards: [4] at [0] and [4] at [3]"));
  EXPECT_THAT(error.message, HasSubstr("they differ on axis 'dp_shard' (dp_shard: shard(0))"));
  ranks[1].tensors.own()[0].local_offset = {5};
  ranks[1].tensors.own()[0].local_shape = {3};
  EXPECT_THAT(ranks.refusal().message, HasSubstr("its shards (dp_shard: shard(0)) hold 7 of the 8 elements"));
}

TEST(MergeRefuses, replicas_that_hold_different_parts) {
  Ranks ranks({kHsdp});
  ranks.add(tensor("w", {8}, {replicate({"dp_replicate"}), shard({"dp_shard"}, 0)}));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ranks[rank].tensors.own()[0].local_offset = {rank % 2 == 0 ? 0 : 4};
  }
  EXPECT_TRUE(ranks.plan());
  ranks[2].tensors.own()[0].local_offset = {4};
  ranks[3].tensors.own()[0].local_offset = {0};
  EXPECT_THAT(ranks.refusal().message, HasSubstr("ranks 0 and 2 hold the same part"));
  EXPECT_THAT(ranks.refusal().message, HasSubstr("they differ on axis 'dp_replicate'"));
}

TEST(MergeRefuses, tied_tensors_that_cannot_be_one_weight) {
  Ranks ranks({mesh({{"pp", 2}})});
  TensorDeclaration embed = tensor("embed", {4}, {only({"pp"}, {0})});
  TensorDeclaration head = tensor("head", {4}, {only({"pp"}, {1})});
  embed.tied = head.tied = "vocabulary";
  head.clip_group = "head";
  ranks.add(embed).add(head);
  const Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::PlanMismatch);
  EXPECT_EQ(error.tensor, "head");
  EXPECT_THAT(error.message, HasSubstr("'embed' and 'head' are tied"));
}

TEST(MergeRefuses, different_weights_of_one_box_and_options_that_differ) {
  Ranks ranks({kHsdp});
  ranks.add(tensor("w", {4}, {replicate({"dp_replicate"}), shard({"dp_shard"}, 0)}));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ranks[rank].weight_fingerprints = {rank % 2 == 0 ? "a" : "b"};
  }
  EXPECT_TRUE(ranks.plan()) << "the two shards may differ";
  ranks[3].weight_fingerprints = {"c"};
  EXPECT_EQ(ranks.refusal().code, ErrorCode::WeightsDiverged);
  EXPECT_THAT(ranks.refusal().ranks, ElementsAre(1, 3));
  ranks[3].options.norm_type = 1;
  EXPECT_THAT(ranks.refusal().message, HasSubstr("norm_type is 2 on rank 0 and 1 on rank 3"));
}

TEST(MergeRefuses, tied_copies_that_start_from_different_weights) {
  Ranks ranks = tied(
      tensor("embed", {4}, {only({"pp"}, {0}), shard({"dp_shard"}, 0), replicate({"tp"})}),
      tensor("head", {4}, {only({"pp"}, {1}), shard({"dp_shard"}, 0), replicate({"tp"})})
  );
  for (std::size_t rank = 0; rank < 8; ++rank) {
    ranks[rank].weight_fingerprints = {rank % 4 < 2 ? "first half" : "second half"};
  }
  EXPECT_TRUE(ranks.plan());
  ranks[6].weight_fingerprints = ranks[7].weight_fingerprints = {"another"};
  const Error error = ranks.refusal();
  EXPECT_EQ(error.code, ErrorCode::WeightsDiverged);
  EXPECT_EQ(error.tensor, "head");
  EXPECT_THAT(error.ranks, ElementsAre(2, 6));
  EXPECT_THAT(error.message, HasSubstr("tied tensors 'embed' on rank 2 and 'head' on rank 6 differ"));
  ranks[6].weight_fingerprints = ranks[7].weight_fingerprints = {""};
  EXPECT_TRUE(ranks.plan()) << "compared where both gave one";
}

TEST(MergeRefuses, more_clip_groups_than_a_report_can_name) {
  Ranks ranks({mesh({{"pp", 2}})});
  for (int i = 0; i < 1002; ++i) {
    TensorDeclaration tensor_of_its_own = tensor(std::to_string(i), {1}, {only({"pp"}, {i % 2})});
    tensor_of_its_own.clip_group = "group" + std::to_string(i);
    ranks.add(tensor_of_its_own);
  }
  EXPECT_EQ(ranks.refusal().path, "options.clip") << "501 on each rank, 1,002 in all";
  EXPECT_THAT(ranks.refusal().message, HasSubstr("1002 clip groups, at most 1000"));
}

TEST(MergeRefuses, a_clip_group_without_tensors) {
  Ranks ranks({mesh({{"pp", 2}})});
  ranks.add(tensor("a", {4}, {only({"pp"}, {0})})).add(tensor("b", {4}, {only({"pp"}, {1})}));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks[rank].options.clip = {{"all", {}}, {"experts", {}}};
  }
  EXPECT_EQ(ranks.refusal().path, "options.clip[1].group");
}

}  // namespace
}  // namespace gradsync::plan
