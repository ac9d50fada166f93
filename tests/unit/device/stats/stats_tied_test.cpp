// What the rows of tied copies say beside those of the tensor that is counted for them.

#include "fakes/not_finite.hpp"
#include "unit/device/stats/stats_fixture.hpp"

#include <gmock/gmock.h>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// An embedding cut over ranks 0 and 1, and on ranks 2 and 3 the head that shares its weight, cut alike.
class TiedFindings : public StatsFixture {
 protected:
  void prepare() {
    begin(4);
    embed = tensor({{0, 0, 2}, {1, 1, 2}});
    head = tensor({{2, 0, 2}, {3, 1, 2}});
    plan_.tensors[head].counted = false;
    plan_.ties = {{head, embed, {0, 1}}};
  }

  void fill_all() {
    for (const std::uint32_t rank : {0, 1}) {
      fill(embed, rank, {2, static_cast<double>(rank)});
      fill(head, rank + 2, {2, static_cast<double>(rank)});
    }
  }

  std::uint32_t embed = 0;
  std::uint32_t head = 0;
};

TEST_F(TiedFindings, equal_copies_are_no_divergence_and_count_once) {
  prepare();
  load_stats();
  fill_all();
  const StepMath math = measure();
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_THAT(math.absent, IsEmpty());
  EXPECT_EQ(math.norm, 3);
  EXPECT_EQ(math.counted_elements, 4);
}

TEST_F(TiedFindings, a_copy_that_differs_from_what_is_counted_is_named) {
  prepare();
  load_stats();
  fill_all();
  fill(head, 3, {2, 1.5});
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_EQ(math.divergence[0].tensor, head);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(3));
  EXPECT_EQ(math.norm, 3);
}

TEST_F(TiedFindings, fingerprints_decide_here_too) {
  prepare();
  load_stats();
  fill_all();
  row(embed, 0).fingerprint = 7;
  row(head, 2).fingerprint = 8;
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(2));
}

TEST_F(TiedFindings, every_replica_of_a_copy_is_compared_with_what_is_counted) {
  begin(3);
  embed = tensor({{0, 0, 1}});
  head = tensor({{1, 0, 1}, {2, 0, 1}});
  plan_.tensors[head].counted = false;
  plan_.ties = {{head, embed, {0}}};
  load_stats();
  fill(embed, 0, {3});
  fill(head, 1, {4});
  fill(head, 2, {4});
  EXPECT_THAT(measure().divergence[0].ranks, ElementsAre(1, 2)) << "equal to each other is not enough";
  row(head, 1) = {};
  fill(head, 2, {3});
  const StepMath math = measure(1);
  EXPECT_THAT(math.divergence, IsEmpty());
  ASSERT_EQ(math.missing.size(), 1);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(1));
  EXPECT_THAT(math.absent, IsEmpty());
}

TEST_F(TiedFindings, boxes_that_are_cut_otherwise_are_not_compared) {
  prepare();
  plan_.ties[0].boxes = {-1, 0};  // its second part is the embedding's first
  load_stats();
  fill_all();
  fill(head, 2, {9, 9});
  fill(head, 3, {2, 0});
  EXPECT_THAT(measure().divergence, IsEmpty());
}

TEST_F(TiedFindings, a_copy_without_a_gradient_is_missing_and_not_compared) {
  prepare();
  load_stats();
  fill_all();
  row(head, 3) = {};
  StepMath math = measure();
  EXPECT_THAT(math.divergence, IsEmpty());
  ASSERT_EQ(math.missing.size(), 1);
  EXPECT_EQ(math.missing[0].tensor, head);
  row(head, 2) = {};
  math = measure(1);
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_THAT(math.missing, IsEmpty());
  EXPECT_THAT(math.absent, ElementsAre(head));
  EXPECT_EQ(math.norm, 3) << "nothing is lost: the embedding is what counts";
}

TEST_F(TiedFindings, what_is_counted_having_no_gradient_while_a_copy_has_one_is_missing_and_divergence) {
  prepare();
  load_stats();
  fill_all();
  row(embed, 0) = {};
  StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_EQ(math.divergence[0].tensor, head);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(2));
  ASSERT_EQ(math.missing.size(), 1);
  EXPECT_EQ(math.missing[0].tensor, embed);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(0));
  row(embed, 1) = {};
  math = measure(1);
  ASSERT_EQ(math.divergence.size(), 1);
  EXPECT_EQ(math.divergence[0].tensor, head);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(2, 3));
  ASSERT_EQ(math.missing.size(), 1);
  EXPECT_EQ(math.missing[0].tensor, embed);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(math.absent, IsEmpty());
  EXPECT_EQ(math.norm, 0) << "the norm is still that of the embedding";
  EXPECT_EQ(math.counted_elements, 0);
  row(head, 2) = row(head, 3) = {};
  math = measure(2);
  EXPECT_THAT(math.absent, ElementsAre(embed, head));
  EXPECT_THAT(math.missing, IsEmpty());
  EXPECT_THAT(math.divergence, IsEmpty());
}

TEST_F(TiedFindings, every_replica_of_a_copy_that_nothing_is_counted_for_is_named) {
  begin(4);
  embed = tensor({{0, 0, 1}, {1, 1, 0}});
  const std::uint32_t between = tensor({{0, 0, 1}, {3, 0, 1}});
  head = tensor({{1, 0, 1}, {2, 0, 1}});
  const std::uint32_t second = tensor({{3, 0, 1}});
  plan_.tensors[head].counted = plan_.tensors[second].counted = false;
  plan_.ties = {{head, embed, {0}}, {second, embed, {0}}};
  load_stats();
  fill(between, 0, {3});
  fill(head, 1, {4});
  fill(head, 2, {4});
  fill(second, 3, {kNaN});
  const StepMath math = measure();
  ASSERT_EQ(math.divergence.size(), 2);
  EXPECT_EQ(math.divergence[0].tensor, head);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1, 2)) << "equal to each other is not enough";
  EXPECT_EQ(math.divergence[1].tensor, second);
  ASSERT_EQ(math.missing.size(), 2);
  EXPECT_EQ(math.missing[0].tensor, embed) << "in plan order, once for two copies";
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(0)) << "rank 1 holds no element";
  EXPECT_EQ(math.missing[1].tensor, between);
  EXPECT_THAT(math.absent, IsEmpty());
  EXPECT_TRUE(std::isnan(math.norm));
}

TEST_F(TiedFindings, what_is_counted_is_missing_also_where_the_copy_is_cut_otherwise) {
  prepare();
  plan_.ties[0].boxes = {-1, -1};
  load_stats();
  fill_all();
  row(embed, 0) = row(embed, 1) = {};
  const StepMath math = measure();
  EXPECT_THAT(math.divergence, IsEmpty());
  ASSERT_EQ(math.missing.size(), 1);
  EXPECT_EQ(math.missing[0].tensor, embed);
  EXPECT_THAT(math.missing[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(math.absent, IsEmpty());
}

TEST_F(TiedFindings, a_nan_on_a_tied_copy_makes_the_norm_of_its_group_nan) {
  begin(1);
  tensor({{0, 0, 1}}, 0);
  tensor({{0, 0, 1}}, 1);
  tensor({{0, 0, 1}}, 1, 0);
  plan_.tensors[2].counted = false;
  load_stats();
  fill(0, 0, {3});
  fill(1, 0, {4});
  fill(2, 0, {kNaN});
  const StepMath math = measure();
  EXPECT_EQ(math.raw_group_norms[0], 3);
  EXPECT_TRUE(std::isnan(math.raw_group_norms[1]));
  EXPECT_TRUE(std::isnan(math.layer_norms[0]));
  EXPECT_TRUE(std::isnan(math.norm));
  EXPECT_EQ(math.nonfinite_total, 1);
}

}  // namespace
}  // namespace gradsync::device
