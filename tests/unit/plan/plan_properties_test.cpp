// What holds for every plan: checked on random declarations from a fixed seed.

#include "declarations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

namespace gradsync::plan {
namespace {

class RandomJob {
 public:
  explicit RandomJob(std::uint64_t seed) : random_(seed) {
    for (const char* name : {"dp_replicate", "dp_shard", "other", "tp"}) {
      if (below(3) > 0) {
        axes_.push_back({name, 1 + below(3)});
      }
    }
    if (axes_.empty()) {
      axes_.push_back({"dp", 1 + below(5)});
    }
    meshes = {mesh(axes_)};
    world_size = meshes.front().size();
    sizes = {static_cast<std::uint64_t>(below(300)), static_cast<std::uint64_t>(1 + below(3000))};
    const std::int64_t count = 1 + below(60);
    for (std::int64_t i = 0; i < count; ++i) {
      declared.tensors.own().push_back(random_tensor(i));
    }
  }

  RankDeclaration declared;
  std::vector<Mesh> meshes;
  std::int64_t world_size = 1;
  BucketSizes sizes;

 private:
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

  TensorDeclaration random_tensor(std::int64_t i) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(below(3)));
    for (std::int64_t& extent : shape) {
      extent = below(12);
    }
    TensorDeclaration result = tensor("t" + std::to_string(i), shape, {});
    constexpr DType kDTypes[] = {DType::Float32, DType::BFloat16, DType::Float64};
    result.dtype = kDTypes[below(3)];
    result.clip_group = below(4) == 0 ? "other" : "all";
    const bool divided = below(5) == 0;
    if (divided) {
      result.divisor = static_cast<double>(1 + below(3));
    }
    for (const Axis& axis : axes_) {
      const ReduceOp op = divided || below(2) == 0 ? ReduceOp::Sum : ReduceOp::Mean;
      result.placements.push_back(below(3) == 0 ? replicate({axis.name}) : partial({axis.name}, op));
    }
    return result;
  }

  std::mt19937_64 random_;
  std::vector<Axis> axes_;
};

std::uint64_t bytes_of(const PlannedTensor& tensor) {
  return static_cast<std::uint64_t>(numel_of(tensor.declaration.local_shape)) * size_of(tensor.declaration.dtype);
}

void expect_each_tensor_in_one_bucket(const Plan& plan) {
  std::vector<int> seen(plan.tensors.size(), 0);
  for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
    ASSERT_FALSE(plan.buckets[b].tensors.empty());
    EXPECT_TRUE(std::is_sorted(plan.buckets[b].tensors.rbegin(), plan.buckets[b].tensors.rend()));
    for (const std::uint32_t index : plan.buckets[b].tensors) {
      ++seen[index];
      EXPECT_EQ(plan.tensors[index].bucket, b);
      EXPECT_EQ(plan.tensors[index].declaration.dtype, plan.buckets[b].dtype);
    }
  }
  EXPECT_EQ(seen, std::vector<int>(plan.tensors.size(), 1));
}

void expect_arena_is_tiled(const Plan& plan) {
  ASSERT_EQ(plan.layouts.size(), 1U) << "all ranks declare alike";
  const ArenaLayout& layout = plan.layouts.front();
  std::uint64_t end = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    EXPECT_EQ(layout.bucket_offsets[b], end);
    EXPECT_EQ(layout.bucket_rows[b], plan.buckets[b].tensors) << "rows are tensors";
    for (const std::uint32_t index : plan.buckets[b].tensors) {
      EXPECT_EQ(layout.input_offsets[index], end);
      EXPECT_EQ(layout.input_offsets[index] % kArenaAlignment, 0U);
      end += align_up(bytes_of(plan.tensors[index]));
    }
    EXPECT_EQ(plan.buckets[b].size_bytes, end - layout.bucket_offsets[b]);
  }
  EXPECT_EQ(layout.bytes(), end);
  EXPECT_EQ(layout.output_offsets, layout.input_offsets);
  EXPECT_TRUE(plan.rows_are_tensors);
}

/// A bucket is at its limit only with its last tensor, and only the last of its kind may stay below.
void expect_bucket_sizes(const Plan& plan, BucketSizes sizes) {
  std::uint32_t first_opened = 0;
  for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
    if (plan.buckets[b].tensors.front() > plan.buckets[first_opened].tensors.front()) {
      first_opened = b;
    }
  }
  std::map<std::tuple<DType, std::vector<std::vector<std::string>>, double>, bool> open_of_kind;
  for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    const std::uint64_t limit = b == first_opened ? sizes.first_bytes : sizes.bytes;
    std::uint64_t total = 0;
    for (const std::uint32_t index : bucket.tensors) {
      const bool last = index == bucket.tensors.back();
      EXPECT_TRUE(last || total + bytes_of(plan.tensors[index]) < limit);
      total += bytes_of(plan.tensors[index]);
    }
    std::vector<std::vector<std::string>> stages;
    for (const Stage& stage : bucket.stages) {
      stages.push_back(stage.axes);
    }
    bool& open = open_of_kind[{bucket.dtype, stages, bucket.divisor}];
    EXPECT_FALSE(open) << "a bucket was opened although another of its kind had room";
    open = total < limit;
  }
}

void expect_launch_order(const Plan& plan) {
  for (std::size_t b = 1; b < plan.buckets.size(); ++b) {
    EXPECT_GT(plan.buckets[b - 1].tensors.back(), plan.buckets[b].tensors.back());
  }
}

void expect_groups_partition_the_ranks(const Plan& plan) {
  for (const Bucket& bucket : plan.buckets) {
    std::vector<std::int64_t> ranks;
    for (const std::vector<std::int64_t>& group : bucket.groups) {
      EXPECT_EQ(group.size(), bucket.groups.front().size());
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      ranks.insert(ranks.end(), group.begin(), group.end());
    }
    EXPECT_EQ(bucket.groups.front().front(), 0);
    std::sort(ranks.begin(), ranks.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(plan.world_size));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(ranks, all);
    EXPECT_EQ(bucket.axes.empty(), bucket.groups.front().size() == 1);
  }
}

/// The norm set and the clip set are computed apart; both hold every tensor once.
void expect_complete_sets(const Plan& plan) {
  std::vector<std::uint32_t> all(plan.tensors.size());
  std::iota(all.begin(), all.end(), 0U);
  std::vector<std::uint32_t> counted;
  for (const NormGroup& group : plan.norm_groups) {
    counted.insert(counted.end(), group.tensors.begin(), group.tensors.end());
  }
  std::vector<std::uint32_t> clipped;
  for (std::uint32_t g = 0; g < plan.clip_groups.size(); ++g) {
    for (const std::uint32_t index : plan.clip_groups[g].tensors) {
      EXPECT_EQ(plan.tensors[index].clip_group, g);
      clipped.push_back(index);
    }
  }
  std::sort(counted.begin(), counted.end());
  std::sort(clipped.begin(), clipped.end());
  EXPECT_EQ(counted, all);
  EXPECT_EQ(clipped, all);
}

TEST(PlanProperties, hold_for_random_declarations) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const RandomJob job(seed);
    const auto valid = validate_declaration(job.declared, job.meshes);
    ASSERT_TRUE(valid.has_value()) << valid.error().message;
    const Plan plan = make_plan(job.declared, job.meshes, job.world_size, job.sizes);
    expect_each_tensor_in_one_bucket(plan);
    expect_arena_is_tiled(plan);
    expect_bucket_sizes(plan, job.sizes);
    expect_launch_order(plan);
    expect_groups_partition_the_ranks(plan);
    expect_complete_sets(plan);
    EXPECT_EQ(plan.digest, make_plan(job.declared, job.meshes, job.world_size, job.sizes).digest);
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace gradsync::plan
