// What the rows say about ranks that should agree, and which rows are refused.

#include "fakes/not_finite.hpp"
#include "unit/device/stats/stats_fixture.hpp"

#include <gmock/gmock.h>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

/// w is whole on ranks 0 to 2, s is cut over 0 and 1, and rank 2 holds a copy of s's second part.
class StatsFindings : public StatsFixture {
 protected:
  void prepare(double p = 2) {
    begin(3, p);
    w = tensor({{0, 0, 3}, {1, 0, 3}, {2, 0, 3}});
    s = tensor({{0, 0, 2}, {1, 1, 2}, {2, 1, 2}});
    load_stats();
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      fill(w, rank, {1, 2, 2});
      fill(s, rank, rank == 0 ? std::vector<double>{2, 2} : std::vector<double>{2, 2 * std::sqrt(2.0)});
    }
  }

  std::uint32_t w = 0;
  std::uint32_t s = 0;
};

TEST_F(StatsFindings, a_nan_on_a_replica_makes_the_norm_nan) {
  prepare();
  fill(w, 1, {1, kNaN, 2});
  const StepMath math = measure();
  EXPECT_TRUE(std::isnan(math.norm));
  EXPECT_TRUE(std::isnan(math.groups[0].norm));
  EXPECT_EQ(math.nonfinite_total, 1);
  ASSERT_EQ(math.nonfinite.size(), 1);
  EXPECT_EQ(math.nonfinite[0].tensor, w);
  EXPECT_EQ(math.nonfinite[0].count, 1);
  EXPECT_THAT(math.nonfinite[0].inputs, ElementsAre(Pair(1, 1)));
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1));
}

TEST_F(StatsFindings, nonfinite_values_count_once_per_part) {
  prepare();
  fill(s, 0, {kInfinity, -kInfinity});
  fill(s, 1, {2, kInfinity});
  fill(s, 2, {2, kInfinity});
  const StepMath math = measure();
  EXPECT_EQ(math.norm, kInfinity);
  EXPECT_EQ(math.nonfinite_total, 3);
  ASSERT_EQ(math.nonfinite.size(), 1);
  EXPECT_EQ(math.nonfinite[0].count, 3);
  EXPECT_THAT(math.nonfinite[0].inputs, ElementsAre(Pair(0, 2), Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(math.divergence, IsEmpty());
}

TEST_F(StatsFindings, a_sum_that_overflowed_beside_a_nan_is_no_fault) {
  prepare();
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    fill(w, rank, {kNaN, 1e200, 1e200});
    row(w, rank).power_sum = kInfinity;
  }
  EXPECT_TRUE(std::isnan(measure().norm));
}

TEST_F(StatsFindings, other_values_on_a_copy_are_divergence) {
  prepare();
  fill(w, 2, {1, 2, 2.5});
  fill(s, 2, {2, 2.0000001});
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 2);
  EXPECT_EQ(math.divergence[0].tensor, w);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(2));
  EXPECT_EQ(math.divergence[1].tensor, s);
  EXPECT_THAT(math.divergence[1].ranks, ElementsAre(2));
  EXPECT_EQ(math.norm, std::sqrt(29.0));  // the lowest rank's
}

TEST_F(StatsFindings, the_majority_is_named_and_a_pair_has_none) {
  prepare();
  fill(w, 0, {1, 2, 2.5});
  fill(s, 2, {2, 2.5});
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 2);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1, 2)) << "they differ from the lowest rank";
  EXPECT_THAT(math.divergence[0].majority, ElementsAre(1, 2));
  EXPECT_THAT(math.divergence[0].suspects, ElementsAre(0));
  EXPECT_THAT(math.divergence[1].majority, IsEmpty());
  EXPECT_THAT(math.divergence[1].suspects, ElementsAre(1, 2)) << "rank 0 holds another part";
}

TEST_F(StatsFindings, three_that_all_differ_have_no_majority) {
  prepare();
  fill(w, 1, {1, 2, 2.5});
  fill(w, 2, {1, 2, 3});
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_THAT(math.divergence[0].majority, IsEmpty());
  EXPECT_THAT(math.divergence[0].suspects, ElementsAre(0, 1, 2));
}

TEST_F(StatsFindings, an_equal_maximum_does_not_hide_another_sum) {
  prepare();
  fill(w, 1, {1.5, 2, 2});
  ASSERT_EQ(row(w, 1).maximum, row(w, 0).maximum);
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1));
}

TEST_F(StatsFindings, a_maximum_need_not_be_taken) {
  prepare();
  row(w, 1).maximum = -1;
  row(s, 1).maximum = -1;
  const StepMath math = measure();
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_EQ(math.norm, std::sqrt(29.0));
  row(w, 0).maximum = -1;
  EXPECT_EQ(measure(1).norm, std::sqrt(29.0));
  row(w, 1).power_sum *= 1 + 1e-11;  // the sums still say it
  EXPECT_EQ(measure(2).divergence.size(), 1);
}

TEST_F(StatsFindings, no_maximum_is_not_all_zeros) {
  prepare();
  fill(w, 0, {0, 0, 0});
  row(w, 1).maximum = -1;
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1, 2));
}

TEST_F(StatsFindings, the_order_of_addition_is_no_divergence) {
  prepare();
  row(w, 1).power_sum *= 1 + 1e-13;
  row(w, 1).power_sum_low = 0;
  EXPECT_THAT(measure().divergence, IsEmpty());
  row(w, 1).power_sum *= 1 + 1e-11;
  EXPECT_EQ(measure(1).divergence.size(), 1);
}

TEST_F(StatsFindings, sums_of_two_scales_are_compared) {
  prepare();
  StatsRow& scaled = row(w, 1);
  scaled.scale = 2;
  scaled.power_sum /= 4;
  EXPECT_THAT(measure().divergence, IsEmpty());
  scaled.power_sum *= 1.01;
  EXPECT_EQ(measure(1).divergence.size(), 1);
}

TEST_F(StatsFindings, fingerprints_decide_where_both_have_one) {
  prepare();
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    row(w, rank).fingerprint = 77;
  }
  row(w, 1).fingerprint = 78;  // two elements swapped: every sum is equal
  row(w, 2).power_sum *= 1 + 1e-9;
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1));
  row(w, 1).fingerprint = 0;
  row(w, 2).fingerprint = 0;
  EXPECT_THAT(measure(1).divergence[0].ranks, ElementsAre(2));
}

TEST_F(StatsFindings, ranks_without_a_gradient_are_missing) {
  prepare();
  row(w, 0) = {};  // the next rank's counts
  row(s, 1) = {};
  row(s, 2).stamp = 0;  // whatever the rest says
  row(s, 2).maximum = -1;
  const StepMath math = measure();
  ASSERT_EQ(math.missing.size(), 2);
  EXPECT_EQ(math.missing[0].tensor, w);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(0));
  EXPECT_EQ(math.missing[1].tensor, s);
  EXPECT_THAT(math.missing[1].ranks, ElementsAre(1, 2));
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_THAT(math.absent, IsEmpty());
  EXPECT_EQ(math.norm, std::sqrt(17.0));
  EXPECT_EQ(math.counted_elements, 5);
}

TEST_F(StatsFindings, a_tensor_without_any_gradient_is_absent_and_not_missing) {
  prepare();
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    row(w, rank) = {};
  }
  const StepMath math = measure();
  EXPECT_THAT(math.absent, ElementsAre(w));
  EXPECT_THAT(math.missing, IsEmpty());
  EXPECT_EQ(math.counted_elements, 4);
}

TEST_F(StatsFindings, findings_are_limited_and_the_totals_are_not) {
  begin(2);
  for (std::size_t i = 0; i < kMaxFindings + 5; ++i) {
    tensor({{0, 0, 1}, {1, 0, 1}});
    tensor({{0, 0, 1}, {1, 0, 1}});
  }
  load_stats();
  for (std::uint32_t i = 0; i < 2 * (kMaxFindings + 5); ++i) {
    fill(i, 0, {kNaN});
    if (i % 2 == 0) {
      fill(i, 1, {1});
    }
  }
  const StepMath math = measure();
  EXPECT_EQ(math.nonfinite.size(), kMaxFindings);
  EXPECT_EQ(math.divergence.size(), kMaxFindings);
  EXPECT_EQ(math.missing.size(), kMaxFindings);
  EXPECT_EQ(math.nonfinite_total, 2 * (kMaxFindings + 5));
}

struct Fault {
  const char* field;
  double p;
  void (*spoil)(StatsRow& row);
};

class StatsRefusal : public StatsFindings, public testing::WithParamInterface<Fault> {};

TEST_P(StatsRefusal, names_tensor_rank_and_field) {
  prepare(GetParam().p);
  GetParam().spoil(row(s, 1));
  const Failed failed = refusal();
  EXPECT_FALSE(failed.aborted);
  EXPECT_THAT(failed.message, HasSubstr("tensor 1, rank 1: " + std::string(GetParam().field) + " is "));
  ASSERT_TRUE(failed.row.has_value());
  EXPECT_EQ(failed.row->tensor, s);
  EXPECT_EQ(failed.row->rank, 1);
  EXPECT_EQ(failed.row->field, GetParam().field);
  fill(s, 1, {2, 2 * std::sqrt(2.0)});
  EXPECT_GT(measure(1).norm, 0);  // the plan lives
}

INSTANTIATE_TEST_SUITE_P(
    every_field,
    StatsRefusal,
    testing::Values(
        Fault{"stamp", 2, [](StatsRow& row) { row.stamp = kStamp - 1; }},
        Fault{"stamp", 2, [](StatsRow& row) { row.stamp = kStamp + (std::uint64_t{1} << 32); }},
        Fault{"nonfinite", 2, [](StatsRow& row) { row.nonfinite = 3; }},
        Fault{"nonfinite", 2, [](StatsRow& row) { row.nonfinite = ~std::uint64_t{0}; }},
        Fault{"nan", 2, [](StatsRow& row) { row.nan = 1; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = -2; }},
        Fault{"maximum", kInfinity, [](StatsRow& row) { row.maximum = -1; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = -1, row.scale = 2; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = -1, row.nonfinite = 1; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = -1, row.power_sum = 0, row.power_sum_low = 0; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = -1, row.power_sum = 1e-300, row.power_sum_low = 0; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = -1, row.power_sum = kNaN; }},
        Fault{"maximum", 3, [](StatsRow& row) { row.maximum = -1, row.power_sum = 1e301; }},
        Fault{"power_sum_low", 2, [](StatsRow& row) { row.maximum = -1, row.power_sum_low = 1; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.maximum = kNaN; }},
        Fault{"maximum", kInfinity, [](StatsRow& row) { row.maximum = kInfinity; }},
        Fault{"maximum", 2, [](StatsRow& row) { row.nonfinite = 2; }},
        Fault{"scale", 2, [](StatsRow& row) { row.scale = 0; }},
        Fault{"scale", 2, [](StatsRow& row) { row.scale = kInfinity; }},
        Fault{"scale", 2, [](StatsRow& row) { row.scale = 1e-300; }},
        Fault{"scale", 3, [](StatsRow& row) { row.scale = 1e300; }},
        Fault{"scale", 2, [](StatsRow& row) { row.maximum = 1e152, row.power_sum = 1.5e304; }},  // no room to add
        Fault{"power_sum", 2, [](StatsRow& row) { row.power_sum = kNaN; }},
        Fault{"power_sum", 2, [](StatsRow& row) { row.power_sum = kInfinity; }},
        Fault{"power_sum", 2, [](StatsRow& row) { row.power_sum = -1, row.power_sum_low = 0; }},
        Fault{"power_sum", 2, [](StatsRow& row) { row.power_sum = 0, row.power_sum_low = 0; }},
        Fault{"power_sum", 2, [](StatsRow& row) { row.maximum = 0; }},
        Fault{"power_sum", 2, [](StatsRow& row) { row.power_sum = 17, row.power_sum_low = 0; }},
        Fault{"power_sum", 2, [](StatsRow& row) { row.power_sum = 4.8, row.power_sum_low = 0; }},  // p = 1 was taken
        Fault{"power_sum", kInfinity, [](StatsRow& row) { row.power_sum = 1; }},
        Fault{"power_sum_low", 2, [](StatsRow& row) { row.power_sum_low = 1; }},
        Fault{"power_sum_low", 2, [](StatsRow& row) { row.power_sum_low = kNaN; }}
    )
);

TEST_F(StatsFindings, a_row_of_the_attempt_before_is_refused) {
  prepare();
  (void)measure();
  FinishStep finish = command(1);
  finish.stamp = kStamp + 1;
  lane_->submit(finish);
  const Failed failed = expect<Failed>();
  ASSERT_TRUE(failed.row.has_value());
  EXPECT_EQ(failed.row->field, "stamp");
  EXPECT_EQ(failed.row->tensor, 0);
  EXPECT_EQ(failed.row->rank, 0);
}

}  // namespace
}  // namespace gradsync::device
