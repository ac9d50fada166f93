// Norms, coefficients and what is counted, of tables as trainers fill them.

#include "fakes/not_finite.hpp"
#include "unit/device/stats/stats_fixture.hpp"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using StatsNorm = StatsFixture;

TEST_F(StatsNorm, counts_every_part_once) {
  begin(4);  // w: cut over {0, 1} and copied to {2, 3}; b: whole on all
  const auto w = tensor({{0, 0, 2}, {2, 0, 2}, {1, 1, 1}, {3, 1, 1}});
  const auto b = tensor({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}, {3, 0, 1}});
  load_stats();
  for (const std::uint32_t rank : {0U, 2U}) {
    fill(w, rank, {1, -2});
    fill(w, rank + 1, {4});
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    fill(b, rank, {-2});
  }
  const StepMath math = measure();
  EXPECT_EQ(math.norm, 5);
  EXPECT_THAT(math.raw_group_norms, ElementsAre(5.0));
  EXPECT_EQ(math.counted_elements, 4);
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_THAT(math.missing, IsEmpty());
  EXPECT_THAT(math.absent, IsEmpty());
  EXPECT_EQ(math.nonfinite_total, 0);
}

TEST_F(StatsNorm, eight_ranks_of_pp_4_and_ep_2_make_the_root_of_192) {
  begin(8);  // stage s is ranks 2s, 2s + 1: one dense weight that both hold whole, one expert weight that is cut
  std::vector<std::uint32_t> dense;
  std::vector<std::uint32_t> expert;
  for (std::uint32_t stage = 0; stage < 4; ++stage) {
    dense.push_back(tensor({{2 * stage, 0, 16}, {2 * stage + 1, 0, 16}}));
    expert.push_back(tensor({{2 * stage, 0, 16}, {2 * stage + 1, 1, 16}}));
  }
  load_stats();
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    fill(dense[rank / 2], rank, std::vector<double>(16, 1.0));
    fill(expert[rank / 2], rank, std::vector<double>(16, 1.0));
  }
  const StepMath math = measure();
  EXPECT_EQ(math.norm, std::sqrt(192.0));
  EXPECT_EQ(math.counted_elements, 192);
}

TEST_F(StatsNorm, bits_are_those_of_the_canonical_order_for_every_p) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const double p : {1.0, 2.0, 3.0, 2.5, kInfinity}) {
    lane_.reset();
    arenas_.clear();
    begin(3, p);
    NormSum expected(p);
    std::vector<std::vector<std::vector<double>>> values(20);
    for (auto& boxes : values) {
      tensor({{0, 0, 5}, {1, 0, 5}, {2, 1, 3}});
      for (const std::size_t elements : {5, 3}) {
        std::vector<double>& box = boxes.emplace_back(elements);
        std::generate(box.begin(), box.end(), [&] { return normal(random); });
        expected.add(sum_of(row_of(box, p)));
      }
    }
    load_stats();
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      fill(i, 0, values[i][0]);
      fill(i, 1, values[i][0]);
      fill(i, 2, values[i][1]);
    }
    EXPECT_EQ(measure().norm, expected.norm()) << p;
  }
}

TEST_F(StatsNorm, rescaled_rows_neither_overflow_nor_vanish) {
  for (const double p : {1.0, 2.0, 3.0, 2.5, 100.0}) {
    lane_.reset();
    arenas_.clear();
    begin(2, p);
    const auto big = tensor({{0, 0, 2}, {1, 0, 2}});
    const auto small = tensor({{0, 0, 1}, {1, 0, 1}});
    load_stats();
    for (const double size : {1e-200, 1e200}) {
      for (const std::uint32_t rank : {0U, 1U}) {
        fill(big, rank, {size, -size});
        fill(small, rank, {size});
      }
      const StepMath math = measure(size > 1 ? 1 : 0);
      EXPECT_NEAR(math.norm / size, std::pow(3.0, 1 / p), 1e-14) << p << " " << size;
      EXPECT_THAT(math.divergence, IsEmpty()) << p;
    }
  }
}

TEST_F(StatsNorm, groups_and_layers_have_norms_of_their_own) {
  begin(2);
  const auto a = tensor({{0, 0, 1}, {1, 1, 1}}, 0, 0);
  const auto b = tensor({{0, 0, 1}}, 1, 1);
  const auto c = tensor({{1, 0, 1}}, 1, 0);
  load_stats();
  fill(a, 0, {3});
  fill(a, 1, {4});
  fill(b, 0, {12});
  fill(c, 1, {5});
  FinishStep finish = command();
  finish.scale = 2;
  finish.rules = {exact(2), exact(1.0)};
  lane_->submit(finish);
  const StepMath math = expect<Finished>().math;
  EXPECT_THAT(math.raw_group_norms, ElementsAre(5.0, 13.0));
  EXPECT_EQ(math.groups[0].norm, 2.5);
  EXPECT_EQ(math.groups[0].coefficient, 0.8);
  EXPECT_TRUE(math.groups[1].clipped);
  EXPECT_THAT(math.layer_norms, ElementsAre(std::sqrt(50.0) / 2, 6.0));
  EXPECT_EQ(math.norm, std::sqrt(194.0) / 2);
}

TEST_F(StatsNorm, a_tied_copy_is_clipped_but_not_counted) {
  begin(2);
  const auto first = tensor({{0, 0, 2}});
  const auto copy = tensor({{1, 0, 2}});
  plan_.tensors[copy].counted = false;
  load_stats();
  fill(first, 0, {3, 4});
  fill(copy, 1, {3, 4});
  const StepMath math = measure();
  EXPECT_EQ(math.norm, 5);
  EXPECT_EQ(math.counted_elements, 2);
}

TEST_F(StatsNorm, empty_boxes_take_no_part) {
  begin(3);
  const auto w = tensor({{0, 0, 2}, {1, 1, 0}, {2, 1, 0}});
  const auto nothing = tensor({{0, 0, 0}, {1, 0, 0}});
  load_stats();
  fill(w, 0, {3, 4});
  fill(w, 1, {});  // an empty gradient here, none there
  const StepMath math = measure();
  EXPECT_EQ(math.norm, 5);
  EXPECT_THAT(math.missing, IsEmpty());
  EXPECT_THAT(math.absent, IsEmpty());
  EXPECT_THAT(math.divergence, IsEmpty());
  row(nothing, 1) = row_of({});
  EXPECT_EQ(measure(1).norm, 5);
}

TEST_F(StatsNorm, a_step_without_any_gradient_has_norm_0) {
  begin(2);
  tensor({{0, 0, 2}, {1, 0, 2}});
  load_stats();
  const StepMath math = measure();
  EXPECT_EQ(math.norm, 0);
  EXPECT_THAT(math.absent, ElementsAre(0));
  EXPECT_EQ(math.counted_elements, 0);
}

TEST_F(StatsNorm, the_second_half_has_nothing_to_multiply) {
  begin(1);
  const auto w = tensor({{0, 0, 2}});
  load_stats();
  fill(w, 0, {3, 4});
  FinishStep finish = command();
  finish.apply = false;
  lane_->submit(finish);
  const StepMath math = expect<Finished>().math;
  lane_->submit(ScaleGradients{kPlan, 0, {plan::apply_clip_rule(exact(1), math.raw_group_norms[0], 1)}});
  EXPECT_EQ(expect<Scaled>().clip_s, 0);
  lane_->submit(ScaleGradients{kPlan, 0, math.groups});
  EXPECT_THAT(expect<Failed>().message, testing::HasSubstr("already finished"));
  EXPECT_THAT(refusal(0).message, testing::HasSubstr("already finished"));
  lane_->submit(ScaleGradients{kPlan, 1, math.groups});
  EXPECT_THAT(expect<Failed>().message, testing::HasSubstr("no norm to clip by"));
}

}  // namespace
}  // namespace gradsync::device
