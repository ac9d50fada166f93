// Who is summed with whom, what each rank gets of it, and where it lies (docs/adr/0009).

#include "declarations.hpp"
#include "plan/explain.hpp"
#include "plan/layout/rank_sums.hpp"
#include "plan/merge/placed_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace gradsync::plan {

void PrintTo(const SumMember& member, std::ostream* out) { *out << member.rank << '/' << member.copy; }

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Placement scatter(std::vector<std::string> axes, std::int64_t dim, ReduceOp op = ReduceOp::Mean) {
  return {std::move(axes), Partial{op, Shard{dim}}};
}

/// Every tensor on the ranks that its `only` placements name, cut by its `shard` placements.
class Job {
 public:
  explicit Job(std::vector<Mesh> meshes)
      : meshes_(std::move(meshes)), ranks_(static_cast<std::size_t>(meshes_[0].size())) {}

  Job& add(TensorDeclaration tensor) {
    const Mesh& on = meshes_[mesh_index(meshes_, tensor.mesh)];
    const PlacedRanks placed = place_ranks(tensor, on);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (placed.ranks[rank].holds) {
        tensor.local_shape = input_box_of(tensor, placed, placed.ranks[rank]).extent;
        ranks_[rank].tensors.own().push_back(tensor);
      }
    }
    return *this;
  }

  RankDeclaration& operator[](std::size_t rank) { return ranks_[rank]; }

  [[nodiscard]] Result<Plan> result(BucketSizes sizes = {}) const {
    std::vector<const RankDeclaration*> pointers;
    for (const RankDeclaration& rank : ranks_) {
      if (const auto valid = validate_declaration(rank, meshes_); !valid) {
        return valid.error();
      }
      pointers.push_back(&rank);
    }
    return plan_job(pointers, meshes_, sizes);
  }

  [[nodiscard]] Plan plan(BucketSizes sizes = {}) const {
    Result<Plan> made = result(sizes);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return made ? *made : Plan{};
  }

  [[nodiscard]] Error refusal() const {
    const Result<Plan> made = result();
    return made ? make_error(ErrorCode::InternalError, "a plan was made") : made.error();
  }

 private:
  std::vector<Mesh> meshes_;
  std::vector<RankDeclaration> ranks_;
};

const Mesh kGrid = mesh({{"dp", 2}, {"tp", 2}});

std::vector<std::int64_t> ranks_of(const std::vector<SumMember>& members) {
  std::vector<std::int64_t> ranks;
  for (const SumMember& member : members) {
    ranks.push_back(member.rank);
  }
  return ranks;
}

TEST(SyncPlan, fsdp_over_tp_has_four_parts) {
  const Plan plan = Job({kGrid}).add(tensor("w", {6, 4}, {scatter({"dp"}, 0), shard({"tp"}, 0)})).plan();
  const PlannedTensor& w = plan.tensors[0];
  ASSERT_EQ(w.parts.size(), 4U);
  EXPECT_EQ(w.replication, 1);
  EXPECT_EQ(w.counted_elements, 24);
  // tp cuts first: rank (dp 0, tp 1) gets the first two of its three rows.
  const PlannedPart& part = w.parts[2];
  EXPECT_EQ(part.elements, 8U);
  EXPECT_EQ(part.first, 0U);
  EXPECT_EQ(part.run, 8U);
  EXPECT_THAT(part.strides, IsEmpty());
  ASSERT_EQ(plan.sums[part.sums].size(), 1U);
  EXPECT_THAT(ranks_of(plan.sums[part.sums][0].sources), ElementsAre(1, 3));
  EXPECT_THAT(ranks_of(plan.sums[part.sums][0].destinations), ElementsAre(1));
  EXPECT_EQ(w.parts[3].first, 8U);
  EXPECT_EQ(w.parts[3].elements, 4U) << "torch.chunk: the first part is the larger one";
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].divisor, 2);
  EXPECT_THAT(plan.buckets[0].stages, ElementsAre(Stage{{"dp"}, ReduceOp::Mean, 2, true}));
  EXPECT_THAT(plan.norm_groups[0].axes, ElementsAre("dp", "tp"));
  EXPECT_THAT(
      explain_tensor(plan, 0), HasSubstr("each keeps its part), then divided by 2; after sync cut into 4 parts")
  );
}

TEST(SyncPlan, replicas_of_a_part_are_several_sums) {
  const Plan plan =
      Job({mesh({{"r", 2}, {"s", 2}})}).add(tensor("w", {4}, {replicate({"r"}), scatter({"s"}, 0)})).plan();
  const PlannedTensor& w = plan.tensors[0];
  ASSERT_EQ(w.parts.size(), 2U);
  ASSERT_EQ(plan.sums[w.parts[0].sums].size(), 2U);
  EXPECT_THAT(ranks_of(plan.sums[w.parts[0].sums][1].sources), ElementsAre(2, 3));
  EXPECT_THAT(ranks_of(plan.sums[w.parts[0].sums][1].destinations), ElementsAre(2));
  EXPECT_EQ(w.replication, 2);
}

TEST(SyncPlan, what_is_reduced_on_an_axis_more_has_more_destinations) {
  const Plan plan = Job({mesh({{"r", 2}, {"s", 2}})}).add(tensor("w", {4}, {partial({"r"}), scatter({"s"}, 0)})).plan();
  const std::vector<RankSum>& sums = plan.sums[plan.tensors[0].parts[1].sums];
  ASSERT_EQ(sums.size(), 1U);
  EXPECT_THAT(ranks_of(sums[0].sources), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ranks_of(sums[0].destinations), ElementsAre(1, 3));
  EXPECT_EQ(plan.buckets[0].divisor, 4);
}

TEST(SyncPlan, empty_parts_are_left_out_and_an_empty_tensor_has_one) {
  const Plan plan = Job({mesh({{"dp", 4}})})
                        .add(tensor("w", {2}, {scatter({"dp"}, 0)}))
                        .add(tensor("e", {0}, {scatter({"dp"}, 0)}))
                        .plan();
  EXPECT_EQ(plan.tensors[0].parts.size(), 2U);
  ASSERT_EQ(plan.tensors[1].parts.size(), 1U);
  EXPECT_EQ(plan.tensors[1].parts[0].elements, 0U);
  EXPECT_THAT(ranks_of(plan.sums[plan.tensors[1].parts[0].sums][0].sources), ElementsAre(0, 1, 2, 3));
}

TEST(SyncPlan, scattered_outputs_follow_their_inputs_with_room_for_the_largest_part) {
  const Plan plan = Job({mesh({{"dp", 4}})})
                        .add(tensor("w", {5, 10}, {scatter({"dp"}, 0)}))
                        .add(tensor("b", {3}, {partial({"dp"})}))
                        .plan({1 << 20, 1 << 20});
  ASSERT_EQ(plan.layouts.size(), 1U) << "the same on all ranks, although parts have 2, 2, 1 and 0 rows";
  const ArenaLayout& layout = plan.layouts[0];
  EXPECT_THAT(layout.input_offsets, ElementsAre(64U, 0U));
  EXPECT_THAT(layout.output_offsets, ElementsAre(64U + 256U, 0U));
  EXPECT_EQ(layout.bytes(), 64U + 256U + 128U) << "3 floats; 50 floats; 2 rows of 10 floats";
}

TEST(SyncPlan, ranks_that_hold_other_tensors_have_other_layouts_and_buckets) {
  const Plan plan = Job({mesh({{"pp", 2}, {"dp", 2}})})
                        .add(tensor("first", {4}, {only({"pp"}, {0}), partial({"dp"})}))
                        .add(tensor("last", {4}, {only({"pp"}, {1}), partial({"dp"})}))
                        .plan();
  ASSERT_EQ(plan.layouts.size(), 2U);
  EXPECT_THAT(plan.layout_of, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(plan.layouts[1].tensors, ElementsAre(1));
  EXPECT_FALSE(plan.rows_are_tensors);
  ASSERT_EQ(plan.buckets.size(), 2U) << "a bucket waits for its holders alone";
  EXPECT_THAT(plan.buckets[plan.tensors[1].bucket].groups, ElementsAre(ElementsAre(2, 3)));
  EXPECT_THAT(plan.layouts[0].bucket_rows[plan.tensors[1].bucket], IsEmpty());
  EXPECT_EQ(plan.scalar_collectives.size(), 1U) << "the norm is summed over pp";
}

TEST(SyncPlan, the_divisor_of_an_expert_needs_no_stage) {
  TensorDeclaration expert = tensor("expert", {4}, {only({"ep"}, {1}), partial({"edp"}, ReduceOp::Sum)});
  expert.mesh = "expert";
  expert.divisor = 4;
  const Plan plan = Job({mesh({{"dp", 4}}), mesh({{"ep", 4}, {"edp", 1}}, "expert")}).add(expert).plan();
  EXPECT_THAT(plan.buckets[0].stages, IsEmpty());
  EXPECT_EQ(plan.buckets[0].divisor, 4);
  EXPECT_THAT(ranks_of(plan.sums[plan.tensors[0].parts[0].sums][0].sources), ElementsAre(1));
}

// ---- tied copies

TEST(SyncPlan, tied_copies_on_two_stages_are_summed_over_both) {
  TensorDeclaration embed = tensor("embed", {4}, {only({"pp"}, {0}), partial({"dp"})});
  TensorDeclaration head = tensor("head", {4}, {only({"pp"}, {1}), partial({"dp"})});
  embed.tied = head.tied = "vocabulary";
  const Plan plan = Job({mesh({{"pp", 2}, {"dp", 2}})}).add(embed).add(head).plan();
  EXPECT_THAT(plan.tensors[0].copies, ElementsAre(1));
  EXPECT_THAT(plan.tensors[1].parts, IsEmpty());
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_THAT(plan.buckets[0].tensors, ElementsAre(0, 1));
  EXPECT_EQ(plan.buckets[0].divisor, 2) << "of the mean over dp; copies are added";
  const std::vector<RankSum>& sums = plan.sums[plan.tensors[0].parts[0].sums];
  ASSERT_EQ(sums.size(), 1U);
  EXPECT_THAT(sums[0].sources, ElementsAre(SumMember{0, 0}, SumMember{1, 0}, SumMember{2, 1}, SumMember{3, 1}));
  EXPECT_EQ(sums[0].destinations, sums[0].sources);
  EXPECT_THAT(plan.norm_groups[0].tensors, ElementsAre(0));
}

TEST(SyncPlan, two_copies_on_one_rank_are_added_in_the_order_of_its_rows) {
  TensorDeclaration one = tensor("one", {4});
  TensorDeclaration two = tensor("two", {4});
  one.tied = two.tied = "same";
  const Plan plan = Job({mesh({{"dp", 2}})}).add(one).add(two).plan();
  EXPECT_THAT(
      plan.sums[plan.tensors[0].parts[0].sums][0].sources,
      ElementsAre(SumMember{0, 0}, SumMember{0, 1}, SumMember{1, 0}, SumMember{1, 1})
  );
}

TEST(SyncPlan, copies_that_are_not_reduced_alike_are_refused) {
  TensorDeclaration embed = tensor("embed", {4}, {only({"pp"}, {0}), partial({"dp"})});
  TensorDeclaration head = tensor("head", {4}, {only({"pp"}, {1}), partial({"dp"}, ReduceOp::Sum)});
  embed.tied = head.tied = "vocabulary";
  const Error error = Job({mesh({{"pp", 2}, {"dp", 2}})}).add(embed).add(head).refusal();
  EXPECT_EQ(error.tensor, "head");
  EXPECT_EQ(error.path, "tensors[0].tied");
  EXPECT_THAT(error.message, HasSubstr("partial(mean)"));
  EXPECT_THAT(error.message, HasSubstr("partial(sum)"));
}

TEST(SyncPlan, copies_that_are_cut_otherwise_are_refused) {
  TensorDeclaration first = tensor("first", {6}, {only({"pp"}, {0}), shard({"tp"}, 0)});
  TensorDeclaration other = tensor("other", {6}, {only({"pp"}, {1}), shard({"tp"}, 0)});
  first.tied = other.tied = "one weight";
  Job job({mesh({{"pp", 2}, {"tp", 2}})});
  job.add(first).add(other);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    job[rank].tensors.own()[0].local_offset = {rank % 2 == 0 ? 0 : 3};
  }
  EXPECT_TRUE(job.result().has_value());
  job[2].tensors.own()[0].local_shape = {2};
  job[3].tensors.own()[0].local_shape = {4};
  job[3].tensors.own()[0].local_offset = {2};
  EXPECT_EQ(job.refusal().path, "tensors[0].tied") << "halves of the one are not the parts of the other";
}

TEST(SyncPlan, parts_without_elements_may_be_anywhere) {
  Job job({mesh({{"tp", 2}, {"dp", 2}})});
  job.add(tensor("w", {4}, {shard({"tp"}, 0), partial({"dp"})}));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    job[rank].tensors.own()[0].local_shape = {rank < 2 ? 4 : 0};
    job[rank].tensors.own()[0].local_offset = {rank == 3 ? 4 : 0};
  }
  EXPECT_TRUE(job.result().has_value());
}

TEST(SyncPlan, stages_say_what_the_rank_brings_that_brings_most) {
  Job job({mesh({{"tp", 2}, {"r", 2}, {"s", 2}})});
  job.add(tensor("w", {9, 3}, {shard({"tp"}, 0), partial({"r"}), scatter({"s"}, 0)}));
  const Plan even = job.plan();
  EXPECT_THAT(
      even.buckets[0].stages, ElementsAre(Stage{{"r"}, ReduceOp::Mean, 2, false}, Stage{{"s"}, ReduceOp::Mean, 2, true})
  );
  EXPECT_THAT(even.buckets[0].stage_bytes, ElementsAre(5U * 3 * 4, 5U * 3 * 4));
  for (std::size_t rank = 0; rank < 8; ++rank) {  // the same room in the arena
    job[rank].tensors.own()[0].local_shape = {rank < 4 ? 4 : 5, 3};
    job[rank].tensors.own()[0].local_offset = {rank < 4 ? 0 : 4, 0};
  }
  EXPECT_EQ(job.plan().layouts.size(), 1U);
  EXPECT_THAT(job.plan().buckets[0].stage_bytes, ElementsAre(5U * 3 * 4, 5U * 3 * 4));
}

TEST(SyncPlan, ranks_that_are_summed_hold_the_same_elements) {
  Job job({mesh({{"a", 2}, {"dp", 2}})});
  job.add(tensor("w", {6}, {shard({"a"}, 0), partial({"dp"})}));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    job[rank].tensors.own()[0].local_shape = {rank < 2 ? 2 : 4};
    job[rank].tensors.own()[0].local_offset = {rank < 2 ? 0 : 2};
  }
  EXPECT_TRUE(job.result().has_value()) << "cut otherwise than torch.chunk does";
  job[1].tensors.own()[0].local_offset = {1};
  EXPECT_EQ(job.refusal().path, "tensors[0].local_shape") << "they are one box after sync, too";
}

// ---- geometry

TEST(PartOf, runs_and_strides) {
  const auto box = [](std::vector<std::int64_t> offset, std::vector<std::int64_t> extent) {
    return Box{std::move(offset), std::move(extent)};
  };
  const PlannedPart columns = part_of(box({0, 0}, {3, 8}), box({0, 2}, {3, 4}));
  EXPECT_EQ(columns.first, 2U);
  EXPECT_EQ(columns.run, 4U);
  EXPECT_THAT(columns.strides, ElementsAre(Stride{3, 8}));
  const PlannedPart inner = part_of(box({0, 0, 0}, {4, 6, 8}), box({0, 2, 4}, {4, 2, 4}));
  EXPECT_EQ(inner.first, 2U * 8 + 4);
  EXPECT_EQ(inner.run, 4U);
  EXPECT_THAT(inner.strides, ElementsAre(Stride{2, 8}, Stride{4, 48}));
  const PlannedPart merged = part_of(box({0, 0, 0}, {4, 6, 8}), box({0, 0, 4}, {4, 6, 4}));
  EXPECT_THAT(merged.strides, ElementsAre(Stride{24, 8})) << "whole inner dims are one stride";
  EXPECT_EQ(part_of(box({4}, {4}), box({6}, {2})).first, 2U) << "offsets are those of the logical tensor";
  EXPECT_EQ(part_of(box({}, {}), box({}, {})).elements, 1U);
}

/// Every element of the input, by its coordinates, against the runs.
TEST(PartOf, names_exactly_the_elements_of_the_part) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    Box whole;
    Box part;
    for (std::size_t dims = random() % 5; dims > 0; --dims) {
      const auto extent = static_cast<std::int64_t>(1 + random() % 5);
      const auto offset = static_cast<std::int64_t>(random() % 3);
      const auto first = static_cast<std::int64_t>(random() % static_cast<unsigned>(extent));
      whole.offset.push_back(offset);
      whole.extent.push_back(extent);
      part.offset.push_back(offset + first);
      part.extent.push_back(1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(extent - first)));
    }
    std::vector<std::uint64_t> wanted;
    const auto numel = static_cast<std::uint64_t>(numel_of(whole.extent));
    for (std::uint64_t element = 0; element < numel; ++element) {
      std::uint64_t left = element;
      bool inside = true;
      for (std::size_t d = whole.extent.size(); d-- > 0;) {
        const auto at = static_cast<std::int64_t>(left % static_cast<std::uint64_t>(whole.extent[d])) + whole.offset[d];
        left /= static_cast<std::uint64_t>(whole.extent[d]);
        inside = inside && at >= part.offset[d] && at < part.offset[d] + part.extent[d];
      }
      if (inside) {
        wanted.push_back(element);
      }
    }
    const PlannedPart lies = part_of(whole, part);
    std::vector<std::uint64_t> starts{lies.first};
    for (const Stride& stride : lies.strides) {  // innermost first: outer ones repeat what is there
      std::vector<std::uint64_t> repeated;
      for (std::uint64_t k = 0; k < stride.count; ++k) {
        for (const std::uint64_t start : starts) {
          repeated.push_back(start + k * stride.distance);
        }
      }
      starts = std::move(repeated);
    }
    std::vector<std::uint64_t> found;
    for (const std::uint64_t start : starts) {
      for (std::uint64_t k = 0; k < lies.run; ++k) {
        found.push_back(start + k);
      }
    }
    EXPECT_EQ(found, wanted);
    EXPECT_EQ(lies.elements, wanted.size());
  }
}

}  // namespace
}  // namespace gradsync::plan
