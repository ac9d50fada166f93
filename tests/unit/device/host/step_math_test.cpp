// A step on the lane: what is in memory and in the report afterwards.

#include "device/host/host_passes.hpp"
#include "device/step/bucket_step.hpp"
#include "device/step/step_finish.hpp"
#include "fakes/not_finite.hpp"
#include "unit/device/allocation_counter.hpp"
#include "unit/device/lane_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <random>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr auto kFloat32 = plan::DType::Float32;

class StepMathTest : public LaneFixture {};

TEST_F(StepMathTest, sums_divides_and_gives_every_rank_the_result) {
  load(lay_out(3, {{kFloat32, {{0, 1, 2}}, 3}}, {{2, 0}, {1, 0}}));
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    set<float>(0, rank, {3.0F * static_cast<float>(rank), 9});
    set<float>(1, rank, {36});
  }
  reduce_all(1);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(get<float>(0, rank), (std::vector<float>{3, 9}));
    EXPECT_EQ(get<float>(1, rank), (std::vector<float>{36}));
  }
  const StepMath math = finish(1, {strict(std::nullopt)});
  EXPECT_EQ(math.norm, static_cast<float>(std::sqrt(9.0 + 81 + 1296)));
  EXPECT_EQ(math.counted_elements, 3U);
  EXPECT_EQ(math.groups[0].norm, math.norm);
  EXPECT_FALSE(math.groups[0].multiply);
  EXPECT_THAT(math.nonfinite, IsEmpty());
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_THAT(math.absent, IsEmpty());
}

TEST_F(StepMathTest, clips_every_rank_alike) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{2, 0}}));
  set<float>(0, 0, {3, 0});
  set<float>(0, 1, {0, 4});
  reduce_all(1);
  const StepMath math = finish(1, {strict(1.0)});
  EXPECT_EQ(math.norm, 5);
  EXPECT_TRUE(math.groups[0].clipped);
  const auto by = static_cast<float>(math.groups[0].multiplier);
  EXPECT_EQ(get<float>(0, 0), (std::vector<float>{3 * by, 4 * by}));
  EXPECT_EQ(get<float>(0, 1), get<float>(0, 0));
}

TEST_F(StepMathTest, strict_mode_makes_no_pass_when_nothing_is_clipped) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{2, 0}}));
  set<float>(0, 0, {3, 0});
  set<float>(0, 1, {0, 4});
  reduce_all(1);
  // A signalling NaN would be quieted by any multiplication, by 1 too.
  const auto signalling = std::bit_cast<float>(0x7fa0'0001U);
  std::memcpy(values(0, 1), &signalling, 4);
  const StepMath math = finish(1, {strict(5.0)});
  EXPECT_FALSE(math.groups[0].multiply);
  EXPECT_EQ(math.clip_s, 0);
  std::uint32_t bits = 0;
  std::memcpy(&bits, values(0, 1), 4);
  EXPECT_EQ(bits, 0x7fa0'0001U);
}

TEST_F(StepMathTest, torch_mode_always_multiplies) {
  load(lay_out(1, {{kFloat32, {{0}}, 1}}, {{1, 0}}));
  set<float>(0, 0, {2});
  reduce_all(1);
  plan::ClipRule rule = strict(2.0);
  rule.mode = plan::ClipMode::Torch;
  const StepMath math = finish(1, {rule});
  EXPECT_TRUE(math.groups[0].multiply);
  EXPECT_LT(math.groups[0].multiplier, 1);
  EXPECT_EQ(get<float>(0, 0)[0], 2 * static_cast<float>(math.groups[0].multiplier));
}

TEST_F(StepMathTest, a_single_rank_is_measured_and_not_written) {
  load(lay_out(1, {{kFloat32, {{0}}, 1}}, {{2, 0}}));
  const auto signalling = std::bit_cast<float>(0x7fa0'0001U);
  const float given[] = {1, 1};
  std::memcpy(values(0, 0), given, 8);
  std::memcpy(values(0, 0), &signalling, 4);
  reduce_all(1);
  std::uint32_t bits = 0;
  std::memcpy(&bits, values(0, 0), 4);
  EXPECT_EQ(bits, 0x7fa0'0001U);
  EXPECT_EQ(finish(1, {strict(std::nullopt)}).nonfinite_total, 1U);
}

TEST_F(StepMathTest, the_scale_is_taken_out_once) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{2, 0, 0, 0}, {1, 0, 0, 1}}));
  set<float>(0, 0, {3 * 1024, 0});
  set<float>(0, 1, {0, 4 * 1024});
  set<float>(1, 0, {0});
  set<float>(1, 1, {12 * 1024});
  reduce_all(1);
  const StepMath math = finish(1, {strict(100.0)}, 1024);
  EXPECT_EQ(math.norm, 13);
  EXPECT_THAT(math.layer_norms, ElementsAre(5, 12));
  EXPECT_EQ(get<float>(0, 1), (std::vector<float>{3, 4}));
}

TEST_F(StepMathTest, clip_groups_have_their_own_norms_and_one_norm_is_over_all) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}, {kFloat32, {{0, 1}}, 1}}, {{1, 0, 0}, {1, 1, 1}, {1, 0, 1}}));
  for (const std::uint32_t tensor : {0U, 1U, 2U}) {
    set<float>(tensor, 0, {static_cast<float>(std::vector<double>{2, 3, 6}[tensor])});
    set<float>(tensor, 1, {0});
  }
  reduce_all(1);
  const StepMath math = finish(1, {strict(std::nullopt), strict(1.0)});
  EXPECT_EQ(math.norm, 7);
  EXPECT_EQ(math.groups[0].norm, 2);
  EXPECT_EQ(math.groups[1].norm, static_cast<float>(std::sqrt(45.0)));
  EXPECT_EQ(get<float>(0, 0)[0], 2);
  EXPECT_LT(get<float>(1, 1)[0], 3);
  EXPECT_EQ(get<float>(2, 0)[0], 6 * static_cast<float>(math.groups[1].multiplier));
}

TEST_F(StepMathTest, groups_are_summed_apart_and_counted_once) {
  load(lay_out(4, {{kFloat32, {{0, 2}, {1, 3}}, 2}}, {{1, 0}}));
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    set<float>(0, rank, {rank < 2 ? 2.0F : 4.0F});
  }
  reduce_all(1, {}, true);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(get<float>(0, rank)[0], 3);
  }
  const StepMath math = finish(1, {strict(1.5)});
  EXPECT_EQ(math.norm, 3);
  EXPECT_EQ(math.counted_elements, 1U);
  EXPECT_THAT(math.divergence, IsEmpty());
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(get<float>(0, rank)[0], 1.5F);  // the clip set is every rank
  }
}

TEST_F(StepMathTest, a_group_whose_bits_differ_is_named_only_when_asked) {
  load(lay_out(4, {{kFloat32, {{0, 2}, {1, 3}}, 1}}, {{40'000, 0}, {5, 0}}));
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    set<float>(0, rank, std::vector<float>(40'000, 1.0F));
    set<float>(1, rank, std::vector<float>(5, 0.0F));
  }
  values(0, 3)[39'999] = std::nextafter(1.0F, 2.0F) + 1e-6F;
  reduce_all(1, {}, true);
  const StepMath math = finish(1, {strict(std::nullopt)});
  ASSERT_EQ(math.divergence.size(), 1U);
  EXPECT_EQ(math.divergence[0].tensor, 0U);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(1, 3));
  EXPECT_THAT(math.divergence[0].majority, IsEmpty());
  EXPECT_THAT(math.divergence[0].suspects, ElementsAre(0, 1, 2, 3));
  reduce_all(2, {}, false);
  EXPECT_THAT(finish(2, {strict(std::nullopt)}).divergence, IsEmpty());
}

TEST_F(StepMathTest, replicated_tensors_without_a_reduction_are_compared_too) {
  load(lay_out(3, {{plan::DType::BFloat16, {{0}, {1}, {2}}, 1}}, {{3, 0}}));
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    set<std::uint16_t>(0, rank, {0x3f80, 0, static_cast<std::uint16_t>(rank == 2 ? 0x8000 : 0)});
  }
  reduce_all(1, {}, true);
  const StepMath math = finish(1, {strict(std::nullopt)});
  EXPECT_EQ(math.norm, 1);
  ASSERT_EQ(math.divergence.size(), 1U);
  EXPECT_THAT(math.divergence[0].ranks, ElementsAre(2));  // −0 is not 0 in bits
  EXPECT_THAT(math.divergence[0].majority, ElementsAre(0, 1));
  EXPECT_THAT(math.divergence[0].suspects, ElementsAre(2));
}

TEST_F(StepMathTest, an_unused_rank_is_not_read_but_gets_the_result) {
  load(lay_out(3, {{kFloat32, {{0, 1, 2}}, 2}}, {{1, 0}}));
  set<float>(0, 0, {2});
  set<float>(0, 1, {std::nanf("")});
  set<float>(0, 2, {4});
  reduce_all(1, {{0, 1}});
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(get<float>(0, rank)[0], 3);
  }
  const StepMath math = finish(1, {strict(std::nullopt)});
  EXPECT_EQ(math.norm, 3);
  EXPECT_THAT(math.nonfinite, IsEmpty());
  // It was unused in that attempt only.
  reduce_all(2);
  EXPECT_EQ(get<float>(0, 1)[0], 4.5F);
}

TEST_F(StepMathTest, a_tensor_unused_everywhere_is_absent) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{1, 0}, {1, 0}}));
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    set<float>(0, rank, {100});
    set<float>(1, rank, {3});
  }
  reduce_all(1, {{0, 0}, {0, 1}}, true);
  const StepMath math = finish(1, {strict(1.0)});
  EXPECT_EQ(math.norm, 6);
  EXPECT_EQ(math.counted_elements, 1U);
  EXPECT_THAT(math.absent, ElementsAre(0U));
  EXPECT_THAT(math.divergence, IsEmpty());
  EXPECT_EQ(get<float>(0, 0)[0], 100);  // neither summed nor clipped
  EXPECT_LT(get<float>(1, 0)[0], 3);
}

TEST_F(StepMathTest, a_group_without_a_gradient_beside_one_with_gets_zeros_and_is_divergence) {
  load(lay_out(4, {{kFloat32, {{0, 1}, {2, 3}}, 1}}, {{1, 0}}));
  for (const bool compare : {false, true}) {
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      set<float>(0, rank, {2});
    }
    const Tag tag = compare ? 2 : 1;
    reduce_all(tag, {{0, 0}, {0, 1}}, compare);
    const StepMath math = finish(tag, {strict(1.0)});
    EXPECT_EQ(math.norm, 4);  // of the group that has one
    EXPECT_EQ(math.counted_elements, 1U);
    ASSERT_EQ(math.divergence.size(), 1U);
    EXPECT_THAT(math.divergence[0].ranks, ElementsAre(0, 1));
    ASSERT_EQ(math.missing.size(), 1U);
    EXPECT_EQ(math.missing[0].tensor, 0U);
    EXPECT_THAT(math.missing[0].ranks, ElementsAre(0, 1));
    EXPECT_THAT(math.absent, IsEmpty());
    EXPECT_EQ(get<float>(0, 0)[0], 0);
    EXPECT_EQ(get<float>(0, 1)[0], 0);
    EXPECT_EQ(get<float>(0, 3)[0], 1);
  }
  reduce_all(3);
  const StepMath next = finish(3, {strict(std::nullopt)});
  EXPECT_THAT(next.missing, IsEmpty());
  EXPECT_THAT(next.divergence, IsEmpty());
}

TEST_F(StepMathTest, nonfinite_values_are_named_by_tensor_and_rank) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{100, 0}, {20'000, 0}}));
  values(1, 1)[19'999] = std::nanf("");
  values(1, 1)[5] = std::numeric_limits<float>::infinity();
  values(1, 0)[5] = -std::numeric_limits<float>::infinity();
  values(0, 0)[0] = 3e38F;
  values(0, 1)[0] = 3e38F;  // the sum overflows, the inputs are finite
  reduce_all(1);
  const StepMath math = finish(1, {strict(1.0)});
  EXPECT_TRUE(std::isnan(math.norm));
  EXPECT_EQ(math.nonfinite_total, 3U);
  ASSERT_EQ(math.nonfinite.size(), 2U);
  EXPECT_EQ(math.nonfinite[0].tensor, 0U);
  EXPECT_EQ(math.nonfinite[0].count, 1U);
  EXPECT_THAT(math.nonfinite[0].inputs, IsEmpty());
  EXPECT_EQ(math.nonfinite[1].tensor, 1U);
  EXPECT_EQ(math.nonfinite[1].count, 2U);
  EXPECT_THAT(math.nonfinite[1].inputs, ElementsAre(Pair(0, 1U), Pair(1, 2U)));
  // The next attempt starts clean.
  set<float>(0, 0, std::vector<float>(100, 1));
  set<float>(0, 1, std::vector<float>(100, 1));
  set<float>(1, 0, std::vector<float>(20'000, 0));
  set<float>(1, 1, std::vector<float>(20'000, 0));
  reduce_all(2);
  const StepMath next = finish(2, {strict(std::nullopt)});
  EXPECT_EQ(next.norm, 20);
  EXPECT_THAT(next.nonfinite, IsEmpty());
}

TEST_F(StepMathTest, infinity_norm_is_infinite_or_nan_with_the_values) {
  load(lay_out(1, {{kFloat32, {{0}}, 1}}, {{3, 0}}, kInfinity));
  set<float>(0, 0, {1, -7, 3});
  reduce_all(1);
  EXPECT_EQ(finish(1, {strict(std::nullopt)}).norm, 7);
  set<float>(0, 0, {1, -HUGE_VALF, 3});
  reduce_all(2);
  EXPECT_EQ(finish(2, {strict(std::nullopt)}).norm, kInfinity);
  set<float>(0, 0, {std::nanf(""), -HUGE_VALF, 3});
  reduce_all(3);
  EXPECT_TRUE(std::isnan(finish(3, {strict(std::nullopt)}).norm));
}

TEST_F(StepMathTest, powers_that_overflow_or_underflow_still_have_a_norm) {
  plan::ClipRule wide = strict(std::nullopt);
  wide.norm_dtype = plan::DType::Float64;
  load(lay_out(1, {{plan::DType::Float64, {{0}}, 1}}, {{2, 0}, {40'000, 0}}));
  set<double>(0, 0, {6e200, 4});
  set<double>(1, 0, std::vector<double>(40'000, 4e198));  // norm 8e200
  reduce_all(1);
  EXPECT_NEAR(finish(1, {wide}).norm / 1e201, 1, 1e-14);
  set<double>(0, 0, {1e-200, 0});
  set<double>(1, 0, std::vector<double>(40'000, 0));
  reduce_all(2);
  EXPECT_DOUBLE_EQ(finish(2, {wide}).norm, 1e-200);
}

TEST_F(StepMathTest, other_powers_are_norms_too) {
  for (const double p : {1.0, 3.0, 50.0}) {
    arenas_.clear();
    lane_.reset();
    load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{3, 0}, {1, 0}}, p));
    set<float>(0, 0, {1e-6F, 0, 2e-6F});
    set<float>(0, 1, {0, 0, 0});
    set<float>(1, 0, {2e-6F});
    set<float>(1, 1, {0});
    reduce_all(1);
    const double expected = 2e-6 * std::pow(std::pow(0.5, p) + 2, 1 / p);
    EXPECT_NEAR(finish(1, {strict(std::nullopt)}).norm / expected, 1, 2e-7) << p;
  }
}

TEST_F(StepMathTest, measuring_and_clipping_can_be_apart) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{1, 0}}));
  set<float>(0, 0, {4});
  set<float>(0, 1, {4});
  reduce_all(1);
  const StepMath math = finish(1, {strict(2.0)}, 1, false);
  EXPECT_EQ(math.norm, 8);
  EXPECT_EQ(get<float>(0, 0)[0], 8);
  lane_->submit(ScaleGradients{kPlan, 1, math.groups});
  EXPECT_EQ(expect<Scaled>().tag, 1U);
  EXPECT_EQ(get<float>(0, 1)[0], 2);
  lane_->submit(ScaleGradients{kPlan, 1, math.groups});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("multiplied once"));
  EXPECT_EQ(get<float>(0, 1)[0], 2);
}

TEST_F(StepMathTest, a_later_clip_by_the_raw_norms_has_the_bits_of_the_fused_one) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}}, {{3, 0, 0}, {2, 0, 1}}));
  Tag tag = 0;
  const auto step = [&](const plan::ClipRule& rule, double scale, bool apply) {
    for (const std::int64_t rank : {0, 1}) {
      set<float>(0, rank, {0.1F, 7.3F, -1.7F});
      set<float>(1, rank, {0.3F, 11});
    }
    reduce_all(++tag);
    return finish(tag, {rule, rule}, scale, apply);
  };
  for (const plan::ClipMode mode : {plan::ClipMode::Strict, plan::ClipMode::Torch}) {
    for (const double scale : {1.0, 3.0, 1024.0}) {
      plan::ClipRule rule = strict(0.3);
      rule.mode = mode;
      const StepMath fused = step(rule, scale, true);
      const StepMath measured = step(strict(std::nullopt), scale, false);
      ASSERT_EQ(measured.raw_group_norms.size(), 2U);
      EXPECT_EQ(measured.raw_group_norms, fused.raw_group_norms);
      for (std::size_t group = 0; group < 2; ++group) {
        const double raw_norm = measured.raw_group_norms[group];
        EXPECT_NE(raw_norm, static_cast<float>(raw_norm)) << "rounded";
        const plan::ClipOutcome later = plan::apply_clip_rule(rule, raw_norm, scale);
        EXPECT_EQ(later.coefficient, fused.groups[group].coefficient);
        EXPECT_EQ(later.multiplier, fused.groups[group].multiplier);
        EXPECT_EQ(later.norm, fused.groups[group].norm);
        EXPECT_EQ(later.reason, fused.groups[group].reason);
      }
    }
  }
}

TEST_F(StepMathTest, a_finish_before_all_reductions_is_refused) {
  load(lay_out(2, {{kFloat32, {{0, 1}}, 1}, {kFloat32, {{0, 1}}, 1}}, {{1, 0}, {1, 1}}));
  const auto refusal = [&](FinishStep command) {
    lane_->submit(std::move(command));
    return expect<Failed>().message;
  };
  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
  expect<Reduced>();
  EXPECT_THAT(refusal({kPlan, 1, 1.0, {strict(1.0)}, true}), HasSubstr("bucket 1"));
  lane_->submit(ReduceBucket{kPlan, 2, 1, {}, false});
  expect<Reduced>();
  EXPECT_THAT(refusal({kPlan, 2, 1.0, {strict(1.0)}, true}), HasSubstr("bucket 0"));
  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("already reduced in attempt 1"));
  reduce_all(3);
  EXPECT_THAT(refusal({kPlan, 3, 1.0, {}, true}), HasSubstr("0 clip rules for 1"));
  EXPECT_THAT(refusal({kPlan, 3, 0.0, {strict(1.0)}, true}), HasSubstr("scale is 0"));
  lane_->submit(ScaleGradients{kPlan, 3, {{}}});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("was not finished"));
  finish(3, {strict(1.0)});
  EXPECT_THAT(refusal({kPlan, 3, 1.0, {strict(1.0)}, true}), HasSubstr("multiplied once"));
}

/// Everything at once, for comparisons between thread counts: several dtypes, ragged sizes, two groups.
struct Everything {
  double norm = 0;
  std::vector<double> layers;
  std::vector<std::vector<std::byte>> memory;
};

class EveryThreadCount : public LaneFixture {
 protected:
  Everything run(int threads, double p) {
    lane_.reset();
    arenas_.clear();
    const std::vector<std::vector<std::int64_t>> groups = {{0, 2}, {1, 3}};
    std::vector<TensorSpec> tensors;
    for (int i = 0; i < 300; ++i) {
      tensors.push_back({static_cast<std::uint64_t>(1 + (i * 7919) % 501), static_cast<std::uint32_t>(i % 4), 0, i % 5}
      );
    }
    tensors.push_back({0, 0, 0, 0});
    tensors.push_back({100'003, 0, 0, 0});
    tensors.push_back({70'001, 1, 0, 1});
    tensors.push_back({65'536, 2, 0, 2});
    tensors.push_back({33'333, 3, 0, 3});
    load(
        lay_out(
            4,
            {{kFloat32, groups, 3},
             {plan::DType::BFloat16, groups, 2},
             {plan::DType::Float16, groups, 2},
             {plan::DType::Float64, groups, 3}},
            tensors,
            p
        ),
        threads
    );
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < layout_.tensors.size(); ++i) {
      const auto tensor = static_cast<std::uint32_t>(i);
      for (std::uint64_t element = 0; element < numel(i); ++element) {
        const auto value = static_cast<float>(std::normal_distribution<double>()(random));
        for (std::int64_t rank = 0; rank < 4; ++rank) {
          write(tensor, rank, element, rank < 2 ? value : -0.25F * value);
        }
      }
    }
    reduce_all(1, {}, true);
    const StepMath math = finish(1, {strict(0.37)});
    EXPECT_THAT(math.divergence, IsEmpty());
    Everything result{math.norm, math.layer_norms, {}};
    for (const ClientArena& arena : arenas_) {
      result.memory.emplace_back(arena.data(), arena.data() + arena.size_bytes());
    }
    return result;
  }

  void write(std::uint32_t tensor, std::int64_t rank, std::uint64_t element, float value) {
    switch (layout_.buckets[layout_.tensors[tensor].bucket].dtype) {
      case plan::DType::Float32:
        values<float>(tensor, rank)[element] = value;
        break;
      case plan::DType::Float64:
        values<double>(tensor, rank)[element] = value;
        break;
      case plan::DType::BFloat16:
        values<std::uint16_t>(tensor, rank)[element] = arithmetic::float_to_bfloat16(value);
        break;
      case plan::DType::Float16:
        values<std::uint16_t>(tensor, rank)[element] = arithmetic::float_to_float16(value);
        break;
    }
  }
};

TEST_F(EveryThreadCount, gives_the_same_bits) {
  for (const double p : {2.0, 1.0, 2.5}) {
    const Everything one = run(1, p);
    EXPECT_TRUE(one.memory[0] == one.memory[1] && one.memory[0] == one.memory[2] && one.memory[0] == one.memory[3]);
    for (const int threads : {2, 3, 4}) {
      const Everything many = run(threads, p);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(many.norm), std::bit_cast<std::uint64_t>(one.norm)) << threads;
      EXPECT_EQ(many.layers, one.layers) << threads;
      EXPECT_TRUE(many.memory == one.memory) << threads;
    }
  }
}

TEST_F(EveryThreadCount, and_the_norm_is_within_an_ulp_of_exact_arithmetic) {
  run(2, 2);
  // The memory was clipped; its exact norm is that of what is stored, so measure it again in long double.
  long double squares = 0;
  for (std::size_t i = 0; i < layout_.tensors.size(); ++i) {
    const auto tensor = static_cast<std::uint32_t>(i);
    for (std::uint64_t element = 0; element < numel(i); ++element) {
      long double value = 0;
      switch (layout_.buckets[layout_.tensors[i].bucket].dtype) {
        case plan::DType::Float32:
          value = values<float>(tensor, 0)[element];
          break;
        case plan::DType::Float64:
          value = values<double>(tensor, 0)[element];
          break;
        case plan::DType::BFloat16:
          value = arithmetic::bfloat16_to_float(values<std::uint16_t>(tensor, 0)[element]);
          break;
        case plan::DType::Float16:
          value = arithmetic::float16_to_float(values<std::uint16_t>(tensor, 0)[element]);
          break;
      }
      squares += value * value;
    }
  }
  // Replicated from here on: every rank by itself, nothing to reduce.
  LanePlan single = layout_;
  for (std::size_t bucket = 0; bucket < single.buckets.size(); ++bucket) {
    single.sums[bucket] = sums_of_groups({{0}, {1}, {2}, {3}});
    single.buckets[bucket].divisor = 1;
  }
  lane_->submit(LoadPlan{77, single});
  expect<Loaded>();
  for (std::uint32_t bucket = 0; bucket < 4; ++bucket) {
    lane_->submit(ReduceBucket{77, 1, bucket, {}, true});
    expect<Reduced>();
  }
  lane_->submit(FinishStep{77, 1, 1.0, {strict(std::nullopt)}, true});
  const StepMath math = expect<Finished>().math;
  EXPECT_THAT(math.divergence, IsEmpty());
  const auto exact = static_cast<double>(std::sqrt(squares));
  EXPECT_LE(std::abs(math.norm - exact), std::nextafterf(static_cast<float>(exact), 1e30F) - static_cast<float>(exact));
}

/// The functions under the lane, without its queue.
class SteadyStep : public LaneFixture {};

TEST_F(SteadyStep, allocates_only_its_report) {
  const LanePlan layout = lay_out(2, {{kFloat32, {{0, 1}}, 2}}, {{50'000, 0}, {3, 0}});
  std::vector<BufferView> views;
  for (const ClientArena& arena : arenas_) {
    std::memset(arena.data(), 0x3f, arena.size_bytes());
    views.push_back({arena.data(), arena.size_bytes()});
  }
  WorkerPool pool(2, "test");
  LoadedPlan plan(layout, views, 2);
  const std::atomic<bool> cancel{false};
  std::vector<ReduceBucket> reductions;
  std::vector<FinishStep> finishes;
  std::vector<ScaleGradients> scalings;
  for (Tag tag = 1; tag <= 3; ++tag) {
    reductions.push_back({kPlan, tag, 0, {{0, 1}, {1, 0}, {1, 1}}, true});
    plan::ClipOutcome half;
    half.multiply = true;
    half.multiplier = 0.5;
    finishes.push_back({kPlan, tag, 1.0, {strict(1.0)}, false});
    scalings.push_back({kPlan, tag, {half}});
  }
  StepMath math;
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(allocations_during([&] { reduce_bucket(plan, reductions[step], HostPasses(pool, cancel)); }), 0);
    // The report is a value of its own: the groups, their norms, and the text of a reason.
    EXPECT_LE(allocations_during([&] { math = finish_step(plan, finishes[step], HostPasses(pool, cancel)); }), 4);
    EXPECT_EQ(allocations_during([&] { scale_gradients(plan, scalings[step], HostPasses(pool, cancel)); }), 0);
  }
}

TEST_F(SteadyStep, a_raised_flag_stops_before_memory_is_touched) {
  const LanePlan layout = lay_out(2, {{kFloat32, {{0, 1}}, 2}}, {{4, 0}});
  std::vector<BufferView> views;
  for (const ClientArena& arena : arenas_) {
    std::memset(arena.data(), 0x3f, arena.size_bytes());
    views.push_back({arena.data(), arena.size_bytes()});
  }
  arenas_[1].data()[0] = std::byte{1};
  WorkerPool pool(1, "test");
  LoadedPlan plan(layout, views, 1);
  const std::atomic<bool> cancel{true};
  EXPECT_THROW(reduce_bucket(plan, {kPlan, 1, 0, {}, false}, HostPasses(pool, cancel)), std::runtime_error);
  EXPECT_EQ(arenas_[0].data()[0], std::byte{0x3f});
  EXPECT_EQ(arenas_[1].data()[0], std::byte{1});
  const std::atomic<bool> go{false};
  EXPECT_THROW((void)finish_step(plan, {kPlan, 1, 1.0, {strict(1.0)}, true}, HostPasses(pool, go)), std::runtime_error);
}

}  // namespace
}  // namespace gradsync::device
