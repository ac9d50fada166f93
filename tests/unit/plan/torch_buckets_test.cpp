// Bucket rule `torch`: what torch's DistributedDataParallel makes of the same list. The constants are those of
// PyTorch's ComputeBucketAssignmentTest (test/distributed/test_c10d_common.py); DDP reverses the buckets. Long lists of
// cases come from tests/python/synced/test_torch_buckets.py, which asks torch.

#include "bucket_items.hpp"
#include "declarations.hpp"
#include "plan/layout/bucket_assignment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<Mesh> kDp2{mesh({{"dp", 2}})};
constexpr std::int64_t kMiB = 1 << 20;

Buckets buckets_of(const Plan& plan) {
  Buckets buckets;
  for (const Bucket& bucket : plan.buckets) {
    buckets.push_back(bucket.tensors);
  }
  return buckets;
}

RankDeclaration as_torch(std::vector<TensorDeclaration> tensors) {
  RankDeclaration declared = declaration(std::move(tensors));
  declared.options.buckets = BucketRule::Torch;
  return declared;
}

TEST(TorchBuckets, one_limit_and_one_dtype) {
  const std::vector<BucketItem> items{{kFloat, 400}, {kFloat, 800}, {kFloat, 400}, {kFloat, 200}};
  EXPECT_THAT(
      assign_torch_buckets(items, {400, 400}),
      ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(1), ElementsAre(0))
  );
}

TEST(TorchBuckets, every_dtype_begins_with_a_small_bucket) {
  EXPECT_THAT(
      assign_torch_buckets(kAlternating, {200, 400}),
      ElementsAre(ElementsAre(3, 5), ElementsAre(2, 4), ElementsAre(1), ElementsAre(0))
  );
}

TEST(TorchBuckets, the_small_bucket_is_that_of_the_tensors_declared_first) {
  const std::vector<BucketItem> items{{kFloat, 40}, {kFloat, 40}, {kFloat, 40}, {kFloat, 40}};
  EXPECT_THAT(assign_torch_buckets(items, {40, 80}), ElementsAre(ElementsAre(3), ElementsAre(1, 2), ElementsAre(0)));
}

TEST(TorchBuckets, of_nothing_are_none) { EXPECT_THAT(assign_torch_buckets({}), IsEmpty()); }

TEST(TorchBuckets, do_not_depend_on_the_daemons_sizes) {
  const RankDeclaration declared = as_torch({tensor("a", {100}), tensor("b", {kMiB}), tensor("c", {100})});
  const Plan large = make_plan(declared, kDp2, 2, {});
  const Plan small = make_plan(declared, kDp2, 2, {1, 1});
  EXPECT_THAT(buckets_of(large), ElementsAre(ElementsAre(2), ElementsAre(0, 1)));
  EXPECT_EQ(buckets_of(small), buckets_of(large));
  EXPECT_EQ(small.digest, large.digest);
}

TEST(TorchBuckets, tensors_that_are_reduced_apart_are_kept_apart) {
  const RankDeclaration declared = as_torch(
      {tensor("a", {4}),
       tensor("b", {4}, {partial({"dp"}, ReduceOp::Sum)}),
       tensor("c", {4}),
       tensor("d", {4}, {replicate({"dp"})})}
  );
  EXPECT_THAT(
      buckets_of(make_plan(declared, kDp2, 2, {})), ElementsAre(ElementsAre(3), ElementsAre(1), ElementsAre(0, 2))
  );
}

TEST(TorchBuckets, lie_in_the_arena_as_any_others_do) {
  const RankDeclaration declared = as_torch({tensor("a", {kMiB / 4}), tensor("b", {20}), tensor("c", {3})});
  const Plan plan = make_plan(declared, kDp2, 2, {});
  ASSERT_THAT(buckets_of(plan), ElementsAre(ElementsAre(1, 2), ElementsAre(0)));
  EXPECT_THAT(plan.layout(1).input_offsets, ElementsAre(192U, 0U, 128U));
  EXPECT_EQ(plan.layout(1).bytes(), 192U + kMiB);
  RankDeclaration other = declared;
  other.options.buckets = BucketRule::Default;
  EXPECT_EQ(make_plan(other, kDp2, 2, {}).layout(0).bytes(), plan.layout(0).bytes()) << "clients allocate before";
}

TEST(TorchBuckets, a_plan_of_another_rule_is_another_plan) {
  const RankDeclaration torch = as_torch({tensor("a", {4})});
  RankDeclaration other = torch;
  other.options.buckets = BucketRule::Default;
  EXPECT_NE(make_plan(torch, kDp2, 2, {}).digest, make_plan(other, kDp2, 2, kTorchBucketSizes).digest);
}

// ---- lists of a file, one per line: `dtype elements dtype elements … : 3 4, 2, 0 1`

struct Case {
  std::vector<TensorDeclaration> tensors;
  Buckets buckets;
};

Case read_case(const std::string& line) {
  Case read;
  const std::size_t colon = line.find(':');
  std::istringstream list(line.substr(0, colon));
  std::string dtype;
  for (std::int64_t elements = 0; list >> dtype >> elements;) {
    read.tensors.push_back(tensor(std::to_string(read.tensors.size()), {elements}));
    for (const DType known : {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64}) {
      read.tensors.back().dtype = name_of(known) == dtype ? known : read.tensors.back().dtype;
    }
    EXPECT_EQ(name_of(read.tensors.back().dtype), dtype);
  }
  std::istringstream buckets(line.substr(colon + 1));
  for (std::string members; std::getline(buckets, members, ',');) {
    std::istringstream bucket(members);
    std::vector<std::uint32_t>& numbers = read.buckets.emplace_back();
    for (std::uint32_t number = 0; bucket >> number;) {
      numbers.push_back(number);
    }
  }
  return read;
}

class TorchBucketsOfFile : public ::testing::TestWithParam<std::string> {};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TorchBucketsOfFile);

std::vector<std::string> files() {
  const char* name = std::getenv("GRADSYNC_TORCH_BUCKETS");  // NOLINT(concurrency-mt-unsafe): before any thread
  return name == nullptr ? std::vector<std::string>{} : std::vector<std::string>{name};
}

INSTANTIATE_TEST_SUITE_P(Named, TorchBucketsOfFile, ::testing::ValuesIn(files()));

TEST_P(TorchBucketsOfFile, equal_torchs) {
  std::ifstream file(GetParam());
  ASSERT_TRUE(file) << GetParam();
  std::size_t equal = 0;
  for (std::string line; std::getline(file, line);) {
    const Case expected = read_case(line);
    ASSERT_FALSE(expected.tensors.empty()) << line;
    ASSERT_EQ(buckets_of(make_plan(as_torch(expected.tensors), kDp2, 2, {})), expected.buckets) << line;
    ++equal;
  }
  std::cout << equal << " lists are equal\n";
}

}  // namespace
}  // namespace gradsync::plan
