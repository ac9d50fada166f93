// What every implementation of measure, decide and scale must do. One suite for plain C++, the emulation and a GPU.

#include "kernels/gradients.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace gradsync::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kAllDTypes[] = {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64};
constexpr double kAllPowers[] = {1, 2, 2.5, 3, kInfinity};

class Conformance : public testing::TestWithParam<NamedImplementation> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    implementation_ = GetParam().make();
  }

  PowerSum measure_one(const HostTensor& tensor, double p) {
    return implementation_->measure({tensor}, p, false).tensors.at(0);
  }

  std::unique_ptr<Implementation> implementation_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, Conformance, testing::ValuesIn(implementations()), [](const auto& one) {
  return one.param.name;
});

/// How far Σ may be from the exact one: what keeps the p-th root within 1 ulp of the norm's precision (kernels.hpp).
long double allowed_error(DType dtype, double p) {
  if (p != 1 && p != 2) {
    return 0x1p-48L;  // pow() of the device is good to a few ulp
  }
  if (dtype == DType::Float64) {
    return 0x1p-90L;
  }
  return p == 2 && size_of(dtype) == 2 ? 0x1p-24L : 0x1p-40L;
}

void expect_sum_of(const HostTensor& tensor, double p, const PowerSum& sum) {
  std::uint64_t nonfinite = 0;
  std::uint64_t nan = 0;
  double maximum = 0;
  for (std::uint64_t i = 0; i < tensor.count(); ++i) {
    const double value = std::abs(element(tensor, i));
    nonfinite += std::isfinite(value) ? 0 : 1;
    nan += std::isnan(value) ? 1 : 0;
    maximum = std::isfinite(value) ? std::max(maximum, value) : maximum;
  }
  EXPECT_EQ(sum.nonfinite, nonfinite);
  EXPECT_EQ(sum.nan, nan);
  EXPECT_EQ(sum.maximum, maximum);
  if (!std::isfinite(p)) {
    EXPECT_EQ(sum.high, 0);
    return;
  }
  if (nonfinite != 0) {
    EXPECT_FALSE(std::isfinite(sum.high));
    EXPECT_EQ(std::isnan(sum.high), nan != 0);
    return;
  }
  const long double exact = exact_power_sum(tensor, p, sum.scale);
  const long double got = static_cast<long double>(sum.high) + sum.low;
  EXPECT_LE(std::abs(got - exact), exact * (allowed_error(tensor.dtype, p) + 0x1p-52L)) << "exact " << exact;
  if (maximum > 0) {
    EXPECT_FALSE(needs_rescaling(sum, p)) << sum.high;
  }
}

TEST_P(Conformance, sums_of_every_length_and_dtype_are_those_of_the_definition) {
  for (const DType dtype : kAllDTypes) {
    for (const double p : kAllPowers) {
      std::vector<HostTensor> tensors;
      for (const std::uint64_t count : interesting_counts(dtype)) {
        tensors.push_back(make_tensor(dtype, count, Values::Normal));
      }
      const Measured measured = implementation_->measure(tensors, p, false);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        SCOPED_TRACE(name_of(dtype) + " " + name_of_power(p) + " count " + std::to_string(tensors[i].count()));
        expect_sum_of(tensors[i], p, measured.tensors.at(i));
        EXPECT_EQ(measured.tensors[i].fingerprint, 0U);
      }
    }
  }
}

TEST_P(Conformance, values_of_any_size_are_summed_without_overflow_or_underflow) {
  for (const DType dtype : kAllDTypes) {
    for (const double p : kAllPowers) {
      std::vector<HostTensor> tensors;
      for (const Values values :
           {Values::Constant, Values::Tiny, Values::Huge, Values::Extreme, Values::Zero, Values::Nonfinite}) {
        for (const std::uint64_t count : {1, 5, 1'003, 20'011, 70'001}) {
          tensors.push_back(make_tensor(dtype, count, values));
        }
      }
      const Measured measured = implementation_->measure(tensors, p, false);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        SCOPED_TRACE(name_of(dtype) + " " + name_of_power(p) + " tensor " + std::to_string(i));
        expect_sum_of(tensors[i], p, measured.tensors.at(i));
      }
    }
  }
}

TEST_P(Conformance, tensors_of_few_and_of_many_pieces_are_added_alike) {
  for (const DType dtype : {DType::BFloat16, DType::Float64}) {
    for (const Values values : {Values::Normal, Values::Huge}) {
      const std::uint64_t many = (kManyPieces + 2) * (64U << 10) / size_of(dtype) + 3;
      const std::vector<HostTensor> tensors{
          make_tensor(dtype, 100'003, values), make_tensor(dtype, many, values), make_tensor(dtype, 5, values)};
      const Measured measured = implementation_->measure(tensors, 2, true);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        SCOPED_TRACE(name_of(dtype) + " " + name_of(values) + " tensor " + std::to_string(i));
        expect_sum_of(tensors[i], 2, measured.tensors[i]);
      }
    }
  }
}

TEST_P(Conformance, a_norm_of_squares_that_overflow_is_found) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float64}) {
    const double large = dtype == DType::Float64 ? 6e200 : 6e31;
    HostTensor tensor = make_tensor(dtype, 2, Values::Zero);
    set_element(tensor, 0, large);
    set_element(tensor, 1, 4);
    const PowerSum sum = measure_one(tensor, 2);
    EXPECT_EQ(norm_of(sum, 2), element(tensor, 0)) << name_of(dtype);
    EXPECT_EQ(sum.nonfinite, 0U);
  }
}

/// ulp of a positive double in the precision of `dtype`'s norm.
double ulp(double value, DType dtype) {
  if (dtype == DType::Float64) {
    return std::nextafter(value, kInfinity) - value;
  }
  const auto single = static_cast<float>(value);
  return static_cast<double>(std::nextafter(single, std::numeric_limits<float>::infinity())) - single;
}

TEST_P(Conformance, the_norm_is_within_one_ulp_of_the_exact_one) {
  for (const DType dtype : kAllDTypes) {
    for (const Values values : {Values::Normal, Values::Constant, Values::Extreme}) {
      const std::vector<HostTensor> tensors{
          make_tensor(dtype, 70'001, values), make_tensor(dtype, 301, values), make_tensor(dtype, 9'999, values)};
      for (const double p : {1.0, 2.0}) {
        SCOPED_TRACE(name_of(dtype) + " " + name_of(values) + " " + name_of_power(p));
        const PowerSum group = implementation_->measure(tensors, p, false).groups.at(0);
        long double exact = 0;
        for (const HostTensor& tensor : tensors) {
          exact += exact_power_sum(tensor, p, group.scale);
        }
        const double norm = norm_of(group, p);
        exact = (p == 2 ? std::sqrt(exact) : exact) * group.scale;
        const bool reported_in_float = dtype != DType::Float64 && norm <= std::numeric_limits<float>::max();
        const double reported = reported_in_float ? static_cast<float>(norm) : norm;
        EXPECT_LE(std::abs(reported - exact), ulp(static_cast<double>(exact), dtype));
      }
    }
  }
}

bool equal_bits(const PowerSum& a, const PowerSum& b) { return std::memcmp(&a, &b, sizeof(PowerSum)) == 0; }

TEST_P(Conformance, the_same_values_give_the_same_bits_again) {
  for (const DType dtype : kAllDTypes) {
    for (const double p : {2.0, 2.5}) {
      const std::vector<HostTensor> tensors{
          make_tensor(dtype, 150'001, Values::Normal),
          make_tensor(dtype, 99'999, Values::Extreme),
          make_tensor(dtype, 77, Values::Normal)};
      const Measured once = implementation_->measure(tensors, p, true);
      const Measured twice = implementation_->measure(tensors, p, true);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(equal_bits(once.tensors[i], twice.tensors[i])) << name_of(dtype) << name_of_power(p) << i;
      }
      EXPECT_TRUE(equal_bits(once.groups[0], twice.groups[0])) << name_of(dtype) << name_of_power(p);
    }
  }
}

TEST_P(Conformance, bits_do_not_depend_on_alignment_or_on_other_tensors) {
  for (const DType dtype : kAllDTypes) {
    for (const double p : {2.0, 2.5, kInfinity}) {
      for (const std::uint64_t count : {3, 1'001, 9'001, 40'003}) {
        std::vector<HostTensor> tensors;
        for (const std::size_t offset : {0, 1, 2, 3, 4, 5, 6, 7}) {
          tensors.push_back(make_tensor(dtype, count, Values::Normal, offset));
          tensors.push_back(make_tensor(dtype, 11, Values::Constant));
        }
        const Measured measured = implementation_->measure(tensors, p, true);
        const PowerSum alone = implementation_->measure({tensors[0]}, p, true).tensors.at(0);
        for (std::size_t i = 0; i < tensors.size(); i += 2) {
          EXPECT_TRUE(equal_bits(measured.tensors[i], alone))
              << name_of(dtype) << " " << name_of_power(p) << " count " << count << " offset " << tensors[i].offset;
        }
      }
    }
  }
}

TEST_P(Conformance, groups_add_their_tensors_and_no_others) {
  std::vector<HostTensor> tensors;
  std::map<std::uint32_t, PowerSum> expected;
  for (std::uint32_t i = 0; i < 700; ++i) {
    tensors.push_back(make_tensor(kAllDTypes[i % 4], i % 5 == 0 ? 0 : 10 + i, Values::Normal));
    tensors.back().norm_group = i % 3 == 2 ? 4 : i % 3;  // groups 2 and 3 have no tensors
  }
  const Measured measured = implementation_->measure(tensors, 2, false);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    add_tensor(expected.try_emplace(tensors[i].norm_group, empty_sum()).first->second, measured.tensors[i], 2);
  }
  ASSERT_EQ(measured.groups.size(), 5U);
  for (std::uint32_t group = 0; group < 5; ++group) {
    const PowerSum sum = expected.try_emplace(group, empty_sum()).first->second;
    EXPECT_DOUBLE_EQ(measured.groups[group].high, sum.high) << group;
    EXPECT_EQ(measured.groups[group].maximum, sum.maximum) << group;
    EXPECT_EQ(measured.groups[group].scale, 1) << group;
  }
}

TEST_P(Conformance, groups_of_tensors_with_different_scales_have_the_right_norm) {
  std::vector<HostTensor> tensors;
  long double largest = 0;
  for (const double value : {3e200, 4e200, 1e-200, 1e150}) {
    HostTensor tensor = make_tensor(DType::Float64, 1, Values::Zero);
    set_element(tensor, 0, value);
    tensors.push_back(tensor);
    largest = std::max(largest, static_cast<long double>(value));
  }
  const Measured measured = implementation_->measure(tensors, 2, false);
  EXPECT_EQ(norm_of(measured.tensors[2], 2), 1e-200);
  EXPECT_NEAR(norm_of(measured.groups[0], 2) / 1e200, 5, 1e-14);
}

TEST_P(Conformance, nothing_to_measure_has_the_norm_zero) {
  const Measured none = implementation_->measure({}, 2, true);
  ASSERT_EQ(none.groups.size(), 1U);
  EXPECT_EQ(norm_of(none.groups[0], 2), 0);
  const Measured empty = implementation_->measure({make_tensor(DType::BFloat16, 0, Values::Zero)}, 2, false);
  EXPECT_TRUE(equal_bits(empty.tensors.at(0), empty_sum()));
}

TEST_P(Conformance, fingerprints_are_those_of_the_bytes) {
  const std::unique_ptr<Implementation> reference = make_reference();
  for (const DType dtype : kAllDTypes) {
    for (const double p : {2.0, 3.0, kInfinity}) {
      std::vector<HostTensor> tensors;
      for (const std::uint64_t count : interesting_counts(dtype)) {
        tensors.push_back(make_tensor(dtype, count, Values::Extreme, count % 3));
      }
      const Measured measured = implementation_->measure(tensors, p, true);
      const Measured expected = reference->measure(tensors, p, true);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(measured.tensors[i].fingerprint, expected.tensors[i].fingerprint)
            << name_of(dtype) << " count " << tensors[i].count();
      }
      EXPECT_EQ(measured.groups[0].fingerprint, 0U);
    }
  }
}

TEST_P(Conformance, a_changed_bit_changes_the_fingerprint) {
  HostTensor tensor = make_tensor(DType::BFloat16, 40'001, Values::Normal);
  const std::uint64_t before = implementation_->measure({tensor}, 2, true).tensors[0].fingerprint;
  for (const std::size_t byte : {std::size_t{0}, std::size_t{12'345}, tensor.bytes.size() - 1}) {
    tensor.bytes[byte] ^= std::byte{1};
    EXPECT_NE(implementation_->measure({tensor}, 2, true).tensors[0].fingerprint, before) << byte;
    tensor.bytes[byte] ^= std::byte{1};
  }
  std::swap(tensor.bytes[100], tensor.bytes[20'000]);
  EXPECT_NE(implementation_->measure({tensor}, 2, true).tensors[0].fingerprint, before);
}

PowerSum sum_with_norm(double norm, double p) {
  PowerSum sum = empty_sum();
  sum.high = p == 1 ? norm : norm * norm;
  sum.maximum = norm;
  return sum;
}

/// NaN has many bit patterns, and hosts and GPUs make different ones.
std::uint64_t bits_of(double value) {
  return std::isnan(value) ? arithmetic::kDoubleNan : arithmetic::bits_as<std::uint64_t>(value);
}

bool equal_bits(const ClipOutcome& a, const ClipOutcome& b) {
  return bits_of(a.norm) == bits_of(b.norm) && bits_of(a.threshold) == bits_of(b.threshold) &&
         bits_of(a.coefficient) == bits_of(b.coefficient) && bits_of(a.multiplier) == bits_of(b.multiplier) &&
         a.nonfinite == b.nonfinite && a.multiply == b.multiply && a.clipped == b.clipped && a.found_inf == b.found_inf;
}

TEST_P(Conformance, decisions_are_those_of_the_formula) {
  std::vector<PowerSum> sums;
  std::vector<arithmetic::ClipLimit> rules;
  for (const double norm : {0.0, 0.3, 0.9999999, 1.0, 1.0000001, 7.7, 6e31, 1e60}) {
    for (const arithmetic::ClipMode mode :
         {arithmetic::ClipMode::MeasureOnly, arithmetic::ClipMode::Strict, arithmetic::ClipMode::Torch}) {
      for (const arithmetic::NormType type : {arithmetic::NormType::Float32, arithmetic::NormType::Float64}) {
        sums.push_back(sum_with_norm(norm, 2));
        rules.push_back({1.0, mode, type});
        sums.push_back(sums.back());
        sums.back().nonfinite = 3;
        sums.back().nan = mode == arithmetic::ClipMode::Torch ? 1 : 0;
        rules.push_back(rules.back());
      }
    }
  }
  for (const double scale : {1.0, 3.0, 65'536.0}) {
    const std::vector<ClipOutcome> outcomes = implementation_->decide(sums, rules, 2, scale);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      const ClipOutcome expected = clip(rules[i], norm_of(sums[i], 2), scale, sums[i].nonfinite);
      EXPECT_TRUE(equal_bits(outcomes[i], expected)) << i << " scale " << scale;
      EXPECT_EQ(outcomes[i].found_inf, sums[i].nonfinite != 0 ? 1U : 0U);
    }
  }
}

TEST_P(Conformance, sums_that_were_gathered_are_added_in_their_order) {
  std::vector<PowerSum> sums;
  for (int i = 0; i < 12; ++i) {
    sums.push_back(sum_with_norm(1 + i, 2));
  }
  const std::vector<arithmetic::ClipLimit> rules(
      3, arithmetic::ClipLimit{1, arithmetic::ClipMode::Strict, arithmetic::NormType::Float64}
  );
  const std::vector<ClipOutcome> outcomes = implementation_->decide(sums, rules, 2, 1);
  ASSERT_EQ(outcomes.size(), 3U);
  EXPECT_EQ(outcomes[0].norm, std::sqrt(1.0 + 4 + 9 + 16));
  EXPECT_EQ(outcomes[2].norm, std::sqrt(81.0 + 100 + 121 + 144));
}

ClipOutcome multiply_by(double multiplier, bool multiply = true) {
  ClipOutcome outcome{};
  outcome.coefficient = multiplier;
  outcome.multiplier = multiplier;
  outcome.multiply = multiply ? 1 : 0;
  return outcome;
}

TEST_P(Conformance, scaling_rounds_as_the_reference_for_every_length_alignment_and_value) {
  const std::unique_ptr<Implementation> reference = make_reference();
  for (const DType dtype : kAllDTypes) {
    std::vector<HostTensor> tensors;
    for (const std::uint64_t count : interesting_counts(dtype)) {
      for (const Values values : {Values::Normal, Values::Extreme, Values::Nonfinite}) {
        tensors.push_back(make_tensor(dtype, count, values, count % 4));
      }
    }
    for (const double multiplier : {0.37, 0.0, std::numeric_limits<double>::quiet_NaN(), 0x1p-20}) {
      std::vector<HostTensor> expected = tensors;
      std::vector<HostTensor> scaled = tensors;
      reference->scale(expected, {multiply_by(multiplier)});
      implementation_->scale(scaled, {multiply_by(multiplier)});
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(scaled[i].bytes, expected[i].bytes)
            << name_of(dtype) << " count " << tensors[i].count() << " times " << multiplier;
      }
    }
  }
}

TEST_P(Conformance, scaling_touches_only_the_groups_that_change) {
  std::vector<HostTensor> tensors;
  for (std::uint32_t i = 0; i < 40; ++i) {
    tensors.push_back(make_tensor(kAllDTypes[i % 4], 100 + 1'000 * i, Values::Nonfinite));
    tensors.back().clip_group = i % 3;
  }
  const std::vector<HostTensor> before = tensors;
  implementation_->scale(tensors, {multiply_by(1), multiply_by(0.5), multiply_by(0.5, false)});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].bytes == before[i].bytes, tensors[i].clip_group != 1) << i;
  }
  std::vector<HostTensor> again = before;
  implementation_->scale(again, {multiply_by(1), multiply_by(1), multiply_by(0.5, false)});
  for (std::size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].bytes, before[i].bytes) << i;
  }
}

TEST_P(Conformance, a_strictly_clipped_norm_does_not_exceed_its_threshold) {
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const double max_norm : {0.01, 0.1, 1.0}) {
      std::vector<HostTensor> tensors{make_tensor(dtype, 60'007, Values::Constant)};
      const arithmetic::NormType type =
          dtype == DType::Float64 ? arithmetic::NormType::Float64 : arithmetic::NormType::Float32;
      const Measured measured = implementation_->measure(tensors, 2, false);
      const std::vector<ClipOutcome> outcomes =
          implementation_->decide(measured.groups, {{max_norm, arithmetic::ClipMode::Strict, type}}, 2, 1);
      ASSERT_EQ(outcomes[0].clipped, 1U);
      EXPECT_LE(outcomes[0].coefficient * norm_of(measured.groups[0], 2), max_norm);
      implementation_->scale(tensors, outcomes);
      const double clipped = norm_of(implementation_->measure(tensors, 2, false).groups[0], 2);
      EXPECT_NEAR(clipped / max_norm, 1, 1e-6);
    }
  }
}

}  // namespace
}  // namespace gradsync::kernels
