// The sums of several lanes, against one lane that has all of them.

#include "engine/step/join_cells.hpp"

#include "device/math/norm_totals.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;

constexpr std::uint32_t kTensors = 200;

JoinPlan plan_with(double p) {
  JoinPlan plan{p, 3, 2, {}};
  for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    plan.tensors.push_back(
        {tensor % 3, static_cast<std::int32_t>(tensor % 4) - 2 < 0 ? -1 : static_cast<std::int32_t>(tensor % 2)}
    );
  }
  return plan;
}

/// Sums as lanes make them, some of which had to be rescaled.
device::TensorCell cell(std::uint32_t tensor, std::mt19937_64& random) {
  std::uniform_real_distribution<double> exponent(-40, 40);
  device::TensorCell made{tensor, {}, 1 + random() % 1000};
  made.sum.power_sum = {std::exp2(exponent(random)), 0};
  made.sum.power_sum.low = made.sum.power_sum.high * 1e-17;
  made.sum.maximum = std::sqrt(made.sum.power_sum.high);
  made.sum.scale = tensor % 50 == 7 ? 0x1p600 : 1;
  return made;
}

TEST(JoinCells, has_the_bits_of_one_lane_however_the_plan_was_cut) {
  std::mt19937_64 random(7);
  const std::vector<plan::ClipRule> rules(3);
  for (int round = 0; round < 300; ++round) {
    const JoinPlan plan = plan_with(round % 2 == 0 ? 2.0 : 1.0);
    std::vector<device::Measured> parts(1 + random() % 8);
    device::NormTotals totals(plan.norm_type, plan.clip_groups, plan.layers);
    std::uint64_t elements = 0;
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      const device::TensorCell made = cell(tensor, random);
      totals.add(made.sum, plan.tensors[tensor].clip_group, plan.tensors[tensor].layer);
      elements += made.elements;
      parts[random() % parts.size()].cells.push_back(made);
    }
    device::StepMath whole;
    totals.write(rules, 4.0, whole);
    const device::StepMath joined = join_cells(plan, parts, rules, 4.0);
    ASSERT_EQ(joined.norm, whole.norm);
    ASSERT_EQ(joined.raw_group_norms, whole.raw_group_norms);
    ASSERT_EQ(joined.layer_norms, whole.layer_norms);
    ASSERT_EQ(joined.counted_elements, elements);
  }
}

TEST(JoinCells, adds_in_the_order_of_tensors_where_another_order_has_another_bit) {
  // 1 + 2^-53 is half-way between two doubles, and what is below it decides. One 2^-107 after the other is lost beside
  // 2^-53; eight of them added first are not.
  const JoinPlan plan = plan_with(1.0);
  std::vector<plan::ClipRule> rules(3);
  rules[0].norm_dtype = plan::DType::Float64;
  std::vector<device::Measured> parts(2);
  const auto add = [&](std::uint32_t tensor, double power_sum) {
    device::TensorCell made{tensor, {}, 1};
    made.sum.power_sum = {power_sum, 0};
    made.sum.maximum = power_sum;
    parts[tensor < 2 ? 1 : 0].cells.push_back(made);
  };
  add(0, 1.0);
  add(1, 0x1p-53);
  for (std::uint32_t tensor = 2; tensor < 10; ++tensor) {
    add(tensor, 0x1p-107);
  }
  const auto norm_of = [&](std::size_t first, std::size_t second) {
    device::NormTotals totals(plan.norm_type, plan.clip_groups, plan.layers);
    for (const std::size_t part : {first, second}) {
      for (const device::TensorCell& one : parts[part].cells) {
        totals.add(one.sum, plan.tensors[one.tensor].clip_group, plan.tensors[one.tensor].layer);
      }
    }
    device::StepMath math;
    totals.write(rules, 1.0, math);
    return math.norm;
  };
  ASSERT_NE(norm_of(1, 0), norm_of(0, 1)) << "the order does not matter here: the test says nothing";
  EXPECT_EQ(join_cells(plan, parts, rules, 1.0).norm, norm_of(1, 0));
}

TEST(JoinCells, findings_are_in_the_order_of_tensors_and_as_few_as_one_lane_gives) {
  std::vector<device::Measured> parts(2);
  for (std::uint32_t tensor = 0; tensor < 100; ++tensor) {
    parts[tensor % 2].findings.nonfinite.push_back({tensor, 1, {}});
    parts[tensor % 2].findings.absent.push_back(tensor);
  }
  parts[0].findings.nonfinite_total = 50;
  parts[1].findings.nonfinite_total = 50;
  parts[1].findings.divergence = {{3, {1}}};
  parts[0].findings.divergence = {{4, {0}}};
  const device::StepMath joined = join_cells(plan_with(2), parts, std::vector<plan::ClipRule>(3), 1.0);
  ASSERT_EQ(joined.nonfinite.size(), device::kMaxFindings);
  for (std::uint32_t place = 0; place < device::kMaxFindings; ++place) {
    EXPECT_EQ(joined.nonfinite[place].tensor, place);
  }
  EXPECT_EQ(joined.nonfinite_total, 100u);
  EXPECT_EQ(joined.absent.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(joined.absent));
  EXPECT_EQ(joined.divergence[0].tensor, 3u);
}

TEST(JoinCells, a_value_that_is_not_finite_on_one_lane_makes_the_norm_so) {
  std::vector<device::Measured> parts(2);
  parts[0].cells.push_back({0, {{4, 0}, 1, 2, 0, 0}, 1});
  parts[1].cells.push_back({1, {{0, 0}, 1, 0, 1, 1}, 1});
  const device::StepMath joined = join_cells(plan_with(2), parts, std::vector<plan::ClipRule>(3), 1.0);
  EXPECT_TRUE(std::isnan(joined.norm));
  EXPECT_EQ(joined.raw_group_norms[0], 2.0) << "its own group's is not touched";
}

}  // namespace
}  // namespace gradsync::engine
