// What nodes say of their copies, as hashes.

#include "device/stats/box_hash.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace gradsync::device {
namespace {

/// Σ g² is `square`; 0: no gradient.
StatsRow stats_of(double square) {
  StatsRow row;
  if (square > 0) {
    row.stamp = 9;
    row.power_sum = square;
    row.maximum = std::sqrt(square);
  }
  return row;
}

std::uint64_t hash_of(std::vector<StatsRow> rows, HashSums sums, std::uint32_t rank = 3) {
  return hash_of_box(rows, rank, sums);
}

TEST(BoxHash, a_node_with_several_equal_copies_has_the_hash_of_a_node_with_one) {
  const std::vector<StatsRow> one{stats_of(4)};
  const std::vector<StatsRow> more{stats_of(0), stats_of(4), stats_of(4)};
  const std::vector<StatsRow> other{stats_of(4), stats_of(5)};
  EXPECT_EQ(hash_of(one, HashSums::In), hash_of(more, HashSums::In));
  EXPECT_NE(hash_of(one, HashSums::In), hash_of(other, HashSums::In));
  EXPECT_NE(hash_of(one, HashSums::In), 0U);
}

TEST(BoxHash, tells_the_node_where_copies_on_it_differ_and_only_there) {
  const std::vector<StatsRow> most_alike{stats_of(4), stats_of(4), stats_of(5)};
  const std::vector<StatsRow> most_other{stats_of(4), stats_of(5), stats_of(5)};
  EXPECT_NE(hash_of(most_alike, HashSums::In, 0), hash_of(most_other, HashSums::In, 3));
  EXPECT_EQ(hash_of({stats_of(4)}, HashSums::In, 0), hash_of({stats_of(4), stats_of(4)}, HashSums::In, 3));
  EXPECT_FALSE(is_uncounted(hash_of(most_alike, HashSums::In)));
  EXPECT_FALSE(is_uncounted(hash_of({stats_of(4)}, HashSums::In)));
  EXPECT_TRUE(is_uncounted(hash_of_copies_alone(4095)));
}

TEST(BoxHash, leaves_sums_out_of_values_that_are_not_finite) {
  StatsRow row = stats_of(4);
  row.nonfinite = 1;
  StatsRow other = row;
  other.power_sum = std::nan("");
  EXPECT_EQ(hash_of({row, other}, HashSums::In), hash_of({row}, HashSums::In));
}

TEST(BoxHash, is_0_where_no_rank_has_a_gradient_and_does_not_depend_on_the_attempt) {
  EXPECT_EQ(hash_of({stats_of(0)}, HashSums::In), 0U);
  StatsRow later = stats_of(4);
  later.stamp = 10;
  EXPECT_EQ(hash_of({later}, HashSums::In), hash_of({stats_of(4)}, HashSums::In));
}

TEST(BoxHash, leaves_sums_out_when_told_and_nothing_else) {
  StatsRow rounded = stats_of(4);
  rounded.power_sum = std::nextafter(4.0, 5.0);
  StatsRow other = stats_of(4);
  other.maximum = 1;
  StatsRow bytes = stats_of(4);
  bytes.fingerprint = 1;
  const std::uint64_t hash = hash_of({stats_of(4)}, HashSums::Out);
  EXPECT_EQ(hash_of({rounded}, HashSums::Out), hash);
  EXPECT_NE(hash_of({rounded}, HashSums::In), hash_of({stats_of(4)}, HashSums::In));
  EXPECT_NE(hash_of({other}, HashSums::Out), hash);
  EXPECT_NE(hash_of({bytes}, HashSums::Out), hash);
}

TEST(BoxHash, that_of_a_class_tells_the_order_of_its_boxes) {
  EXPECT_EQ(hash_of_class(std::vector<std::uint64_t>{1, 2}), hash_of_class(std::vector<std::uint64_t>{1, 2}));
  EXPECT_NE(hash_of_class(std::vector<std::uint64_t>{1, 2}), hash_of_class(std::vector<std::uint64_t>{2, 1}));
}

}  // namespace
}  // namespace gradsync::device
