// The constants come from PyTorch's ComputeBucketAssignmentTest (test/distributed/test_c10d_common.py). DDP hands its
// parameters over in the order in which they become ready; here the last item is ready first, so its lists are
// reversed.

#include "plan/layout/bucket_assignment.hpp"

#include "bucket_items.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace gradsync::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Assigns a list given in the order of readiness and names items by their place in it, buckets by their first item.
Buckets in_order_of_readiness(std::vector<BucketItem> items, BucketSizes sizes) {
  std::reverse(items.begin(), items.end());
  Buckets buckets = assign_buckets(items, sizes);
  for (std::vector<std::uint32_t>& bucket : buckets) {
    for (std::uint32_t& index : bucket) {
      index = static_cast<std::uint32_t>(items.size()) - 1 - index;
    }
  }
  std::sort(buckets.begin(), buckets.end());
  return buckets;
}

TEST(BucketAssignment, one_limit_and_one_dtype_as_torch_does) {
  EXPECT_THAT(
      in_order_of_readiness({{kFloat, 400}, {kFloat, 800}, {kFloat, 400}, {kFloat, 200}}, {400, 400}),
      ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3))
  );
}

TEST(BucketAssignment, dtypes_are_kept_apart_as_torch_does) {
  EXPECT_THAT(
      in_order_of_readiness(kAlternating, {400, 400}),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4), ElementsAre(5))
  );
}

TEST(BucketAssignment, a_small_first_bucket_as_torch_does) {
  EXPECT_THAT(
      in_order_of_readiness({{kFloat, 40}, {kFloat, 40}, {kFloat, 40}, {kFloat, 40}}, {40, 80}),
      ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3))
  );
}

// torch starts every dtype with a small bucket: [[0], [1], [2, 4], [3, 5]]. Only the very first collective gains from
// being early, so here one bucket of the plan is small.
TEST(BucketAssignment, only_the_first_bucket_of_the_plan_is_small) {
  EXPECT_THAT(
      in_order_of_readiness(kAlternating, {200, 400}),
      ElementsAre(ElementsAre(0), ElementsAre(1, 3), ElementsAre(2, 4), ElementsAre(5))
  );
}

TEST(BucketAssignment, buckets_are_launched_in_the_order_in_which_they_are_complete) {
  // From the back: 4 opens the float bucket, 3 and 2 fill the double one, 1 completes the floats.
  const std::vector<BucketItem> items{{kFloat, 10}, {kFloat, 60}, {kDouble, 50}, {kDouble, 50}, {kFloat, 40}};
  EXPECT_THAT(assign_buckets(items, {100, 100}), ElementsAre(ElementsAre(3, 2), ElementsAre(4, 1), ElementsAre(0)));
}

TEST(BucketAssignment, an_item_larger_than_the_limit_joins_the_bucket_it_completes) {
  const std::vector<BucketItem> items{{kFloat, 8}, {kFloat, 1000}, {kFloat, 8}};
  EXPECT_THAT(assign_buckets(items, {100, 100}), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketAssignment, empty_items_are_in_a_bucket_too) {
  const std::vector<BucketItem> items{{kFloat, 0}, {kFloat, 0}};
  EXPECT_THAT(assign_buckets(items, {100, 100}), ElementsAre(ElementsAre(1, 0)));
  EXPECT_THAT(assign_buckets({}, {100, 100}), IsEmpty());
}

}  // namespace
}  // namespace gradsync::plan
