#include "policy/norm_window.hpp"

#include "fakes/not_finite.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

namespace gradsync::policy {
namespace {

// Twelve norms over six orders of magnitude, and what numpy 2.4 makes of the first n of them.
constexpr double kNorms[] = {
    0x1.427a31c1ffc58p-10,
    0x1.3941e503c9be5p-12,
    0x1.12234a7d304d8p+8,
    0x1.c7fba74b18102p-1,
    0x1.dcc1c271b39eep-12,
    0x1.efd2c2506a6f8p+9,
    0x1.ecb246c7071e5p-5,
    0x1.5f545298d6e9fp-10,
    0x1.ec34de6657fa6p+8,
    0x1.3daee2d56e58bp-1,
    0x1.00d17caf9e3abp-11,
    0x1.64e312f77ebf0p+8,
};

std::vector<double> norms_of(const NormWindow& window) {
  std::vector<double> norms;
  window.append_to(norms);
  return norms;
}

using Case = std::tuple<int, double, double>;  // n, percentile, numpy.percentile(norms[:n], percentile)

class NumpyPercentile : public testing::TestWithParam<Case> {};

TEST_P(NumpyPercentile, has_its_bits) {
  const auto [count, percentile, expected] = GetParam();
  NormWindow window(100);
  for (int i = 0; i < count; ++i) {
    window.push(kNorms[i]);
  }
  EXPECT_EQ(window.percentile(percentile), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Window,
    NumpyPercentile,
    testing::Values(
        Case{1, 95, 0x1.427a31c1ffc58p-10},
        Case{1, 0.001, 0x1.427a31c1ffc58p-10},
        Case{2, 95, 0x1.3644e88858b46p-10},
        Case{2, 50, 0x1.90caab02f2351p-11},
        Case{2, 99.9, 0x1.423bb04b1607cp-10},
        Case{2, 100, 0x1.427a31c1ffc58p-10},
        Case{2, 33.3, 0x1.3f3dc1ddfc99ep-11},
        Case{7, 95, 0x1.84326ccb11bfdp+9},
        Case{7, 50, 0x1.ecb246c7071e5p-5},
        Case{7, 99.9, 0x1.edabb65d1bdcep+9},
        Case{7, 0.001, 0x1.394467ebbefadp-12},
        Case{7, 33.3, 0x1.42121c6127ecfp-10},
        Case{12, 95, 0x1.667a2e338816dp+9},
        Case{12, 50, 0x1.5c7a0741deca9p-2},
        Case{12, 99.9, 0x1.ed138c26e0ca2p+9},
        Case{12, 100, 0x1.efd2c2506a6f8p+9},
        Case{12, 0.001, 0x1.39467fad0b57fp-12},
        Case{12, 33.3, 0x1.559b3289c8445p-10}
    )
);

/// The window as its definition has it: sorted anew for each question.
double sorted_percentile(std::vector<double> norms, double percentile) {
  NormWindow fresh(norms.size());
  std::sort(norms.begin(), norms.end());
  for (const double norm : norms) {
    fresh.push(norm);
  }
  return fresh.percentile(percentile);
}

TEST(NormWindow, is_that_of_the_last_norms_whatever_came_before) {
  std::mt19937_64 random(20261122);
  for (const std::size_t capacity : {1U, 2U, 3U, 10U, 64U}) {
    NormWindow window(capacity);
    std::vector<double> all;
    for (int step = 0; step < 500; ++step) {
      // Few values, so that equal ones meet; now and then one that is far off.
      const double norm = static_cast<double>(random() % 8) * (random() % 20 == 0 ? 1e6 : 0.25);
      window.push(norm);
      all.push_back(norm);
      const std::size_t size = std::min(capacity, all.size());
      const std::vector<double> last(all.end() - static_cast<std::ptrdiff_t>(size), all.end());
      ASSERT_EQ(norms_of(window), last);
      ASSERT_EQ(window.size(), size);
      for (const double percentile : {1.0, 37.5, 95.0, 100.0}) {
        ASSERT_EQ(window.percentile(percentile), sorted_percentile(last, percentile)) << "step " << step;
      }
    }
  }
}

TEST(NormWindow, keeps_norms_that_are_not_finite_until_they_are_the_oldest) {
  std::mt19937_64 random(20261129);
  for (const std::size_t capacity : {1U, 2U, 3U, 10U, 64U}) {
    NormWindow window(capacity);
    std::vector<double> all;
    std::size_t finite = 0;
    for (int step = 0; step < 500; ++step) {
      const std::uint64_t kind = random() % (4 * capacity);
      const double norm = kind == 0 ? kNaN : kind == 1 ? kInfinity : static_cast<double>(random() % 8) * 0.25;
      window.push(norm);
      all.push_back(norm);
      const std::size_t size = std::min(capacity, all.size());
      std::vector<double> last(all.end() - static_cast<std::ptrdiff_t>(size), all.end());
      ASSERT_EQ(window.size(), size);
      const double found = window.percentile(50);
      if (std::any_of(last.begin(), last.end(), [](double value) { return std::isnan(value); })) {
        ASSERT_TRUE(std::isnan(found)) << "step " << step;
        continue;
      }
      std::sort(last.begin(), last.end());
      if (std::isinf(last[std::min((size + 1) / 2, size - 1)])) {  // also where its share is 0, as in numpy
        ASSERT_FALSE(std::isfinite(found)) << "step " << step;
      } else {
        ASSERT_EQ(found, (last[(size - 1) / 2] + last[size / 2]) / 2) << "step " << step;
        ++finite;
      }
    }
    EXPECT_GT(finite, 100U);
  }
}

TEST(NormWindow, is_made_again_from_its_norms) {
  NormWindow window(5);
  for (const double norm : kNorms) {
    window.push(norm);
  }
  NormWindow again(5);
  for (const double norm : norms_of(window)) {
    again.push(norm);
  }
  for (const double norm : {3.0, 0.5, 700.0, 0.5}) {
    window.push(norm);
    again.push(norm);
    EXPECT_EQ(window.percentile(95), again.percentile(95));
    EXPECT_EQ(norms_of(window), norms_of(again));
  }
}

TEST(NormWindow, rises_with_the_percentile_and_stays_between_least_and_greatest) {
  NormWindow window(100);
  for (const double norm : kNorms) {
    window.push(norm);
  }
  double before = 0x1.3941e503c9be5p-12;
  for (double percentile = 0.01; percentile <= 100; percentile += 0.01) {
    const double value = window.percentile(percentile);
    ASSERT_GE(value, before);
    before = value;
  }
  EXPECT_LE(before, 0x1.efd2c2506a6f8p+9);
}

}  // namespace
}  // namespace gradsync::policy
