// Norms of float64 gradients against exact arithmetic, on every vector target, with data on which plain sums of doubles
// are wrong by many ulp.

#include "device/host/host_passes.hpp"
#include "device/math/chunk_math.hpp"
#include "device/math/chunk_reference.hpp"
#include "device/step/bucket_step.hpp"
#include "device/step/step_finish.hpp"
#include "unit/device/vector_target.hpp"
#include "unit/device/whole_tensors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace gradsync::device {
namespace {

#if LDBL_MANT_DIG >= 113
using Quad = long double;
#else
__extension__ typedef __float128 Quad;  // NOLINT(modernize-use-using): `using` does not take the extension
#endif

/// √x to the last bits: two of Newton's steps from the root of a double.
Quad root(Quad x) {
  if (x == 0) {
    return 0;
  }
  Quad guess = std::sqrt(static_cast<double>(x));
  guess = (guess + x / guess) / 2;
  return (guess + x / guess) / 2;
}

/// x^p for p a multiple of ½, exact to about p·2^-112. x is a double, or near one.
Quad power(Quad x, double p) {
  Quad result = std::fmod(p, 1) == 0 ? Quad{1} : root(x);
  Quad factor = x;
  for (auto n = static_cast<unsigned>(p); n != 0; n /= 2) {
    result = n % 2 != 0 ? result * factor : result;
    factor = factor * factor;
  }
  return result;
}

struct Data {
  std::string name;
  std::vector<double> values;
};

std::vector<Data> make_data(std::size_t count) {
  std::mt19937_64 random(21);
  std::normal_distribution<double> normal;
  std::vector<Data> all;
  const auto add = [&](const char* name, auto value_of) {
    Data data{name, std::vector<double>(count)};
    for (std::size_t i = 0; i < count; ++i) {
      data.values[i] = value_of(i);
    }
    all.push_back(std::move(data));
  };
  add("random", [&](std::size_t) { return normal(random); });
  add("one big, then tiny", [](std::size_t i) { return i == 0 ? 1.0 : 0.99e-8; });
  add("tiny, then one big", [&](std::size_t i) { return i == count - 1 ? -1.0 : 0.99e-8; });
  add("a big one in each row", [](std::size_t i) { return i % 64 == 5 ? 1e3 / 3 : 1e-6 / 7; });
  add("alternating magnitudes", [&](std::size_t i) { return normal(random) * (i % 2 == 0 ? 1e5 : 1e-5); });
  add("many magnitudes", [&](std::size_t) { return std::exp(8 * normal(random)); });
  add("growing", [&](std::size_t i) { return std::exp(1e-5 * static_cast<double>(i)) / 3; });
  add("near 1e200", [&](std::size_t) { return normal(random) * 1e200; });
  add("near 1e-200", [&](std::size_t) { return normal(random) * 1e-200; });
  add("1e200 beside 1e190", [&](std::size_t i) { return i % 3 == 0 ? 1e200 / 3 : normal(random) * 1e192; });
  // Here some tensors are rescaled and others, which matter as much, are not.
  add("tensors on both sides of the upper limit", [&](std::size_t) { return normal(random) * 5e138; });
  add("tensors on both sides of the lower limit", [&](std::size_t) { return normal(random) * 5e-142; });
  add("the same for cubes", [&](std::size_t) { return normal(random) * 1e92; });
  add("squares at the edge of exactness", [&](std::size_t) { return normal(random) * 0x1p-484; });
  add("the smallest", [&](std::size_t i) { return i % 7 == 0 ? 3 * 5e-324 : 5e-324; });
  add("the largest", [&](std::size_t i) { return i % 2 == 0 ? 1e304 / 3 : 1e300; });
  return all;
}

/// Made once for all targets.
const std::vector<Data>& data_of(std::size_t count) {
  static std::map<std::size_t, std::vector<Data>> made;
  const auto [entry, added] = made.try_emplace(count);
  if (added) {
    entry->second = make_data(count);
  }
  return entry->second;
}

/// Σ|g|^p of the values divided by `unit`, a power of two.
Quad exact_sum(const std::vector<double>& values, double p, double unit) {
  Quad sum = 0;
  for (const double value : values) {
    sum += power(static_cast<Quad>(std::abs(value)) / unit, p);
  }
  return sum;
}

/// The norm lies between the neighbours of `norm`, `ulps` away on either side.
void expect_within(double norm, Quad sum, double p, double unit, int ulps, const std::string& what) {
  double below = norm;
  double above = norm;
  for (int i = 0; i < ulps; ++i) {
    below = std::nextafter(below, 0.0);
    above = std::nextafter(above, HUGE_VAL);
  }
  EXPECT_TRUE(power(static_cast<Quad>(below) / unit, p) <= sum) << what << ": " << norm << " is too large, p " << p;
  EXPECT_TRUE(power(static_cast<Quad>(above) / unit, p) >= sum) << what << ": " << norm << " is too small, p " << p;
}

/// The lane's functions on one rank, the values cut into tensors of uneven lengths in two buckets.
double norm_of(const std::vector<double>& values, double p, double scale) {
  LanePlan layout = empty_layout(1, p);
  add_bucket(layout, plan::DType::Float64, {{0}}, 1);
  add_bucket(layout, plan::DType::Float64, {{0}}, 1);
  const std::size_t count = values.size();
  const std::vector<std::size_t> cuts = {0, 1, 17, count / 3, count / 3 + 1, count - 40, count};
  std::vector<double> memory;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto bucket = static_cast<std::uint32_t>(i % 2);
    add_tensor(layout, bucket, cuts[i + 1] - cuts[i], memory.size() * sizeof(double));
    memory.insert(
        memory.end(),
        values.begin() + static_cast<std::ptrdiff_t>(cuts[i]),
        values.begin() + static_cast<std::ptrdiff_t>(cuts[i + 1])
    );
    memory.resize(plan::align_up(memory.size() * sizeof(double)) / sizeof(double));
  }
  WorkerPool pool(2, "test");
  const BufferView view{reinterpret_cast<std::byte*>(memory.data()), memory.size() * sizeof(double)};
  LoadedPlan plan(layout, {view}, 2);
  const std::atomic<bool> cancel{false};
  reduce_bucket(plan, {1, 1, 0, {}, false}, HostPasses(pool, cancel));
  reduce_bucket(plan, {1, 1, 1, {}, false}, HostPasses(pool, cancel));
  plan::ClipRule measure;
  measure.norm_dtype = plan::DType::Float64;
  return finish_step(plan, {1, 1, scale, {measure}, false}, HostPasses(pool, cancel)).norm;
}

class Float64Norm : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { use_vector_target(GetParam()); }

  void TearDown() override { use_vector_target(wanted_vector_target()); }

  static void expect_exact(std::size_t count, const std::vector<double>& powers, int ulps) {
    static std::map<std::tuple<std::size_t, std::string, double>, Quad> sums;
    for (const Data& data : data_of(count)) {
      const double maximum = std::abs(*std::max_element(data.values.begin(), data.values.end(), [](double a, double b) {
        return std::abs(a) < std::abs(b);
      }));
      const double unit = std::ldexp(1.0, std::ilogb(maximum));
      for (const double p : powers) {
        const auto [sum, added] = sums.try_emplace({count, data.name, p});
        if (added) {
          sum->second = exact_sum(data.values, p, unit);
        }
        expect_within(norm_of(data.values, p, 1), sum->second, p, unit, ulps, data.name);
      }
    }
  }
};

TEST_P(Float64Norm, is_within_an_ulp_of_exact_arithmetic) { expect_exact(1'000'003, {2}, 1); }

TEST_P(Float64Norm, is_within_an_ulp_for_other_powers_too) { expect_exact(60'001, {1, 2, 3, 3.5, 7, 64, 90, 300}, 1); }

TEST_P(Float64Norm, is_within_two_ulps_for_powers_between_1_and_3) { expect_exact(60'001, {1.5, 2.5}, 2); }

TEST_P(Float64Norm, a_scale_that_is_a_power_of_two_costs_nothing) {
  const std::vector<double> values = data_of(60'001)[0].values;
  EXPECT_EQ(norm_of(values, 2, 65536), norm_of(values, 2, 1) / 65536);
}

TEST_P(Float64Norm, has_the_bits_of_the_plain_loops) {
  for (const Data& data : data_of(60'001)) {
    for (const double p : {1.0, 2.0}) {
      for (std::size_t at = 0; at < data.values.size(); at += kChunkElements) {
        const void* source = data.values.data() + at;
        ReduceChunk chunk;
        chunk.dtype = plan::DType::Float64;
        chunk.count = std::min(kChunkElements, data.values.size() - at);
        chunk.sources = {&source, 1};
        chunk.power = p == 1 ? PowerKind::One : PowerKind::Two;
        const DoubleDouble ours = reduce_chunk(chunk).power_sum;
        EXPECT_EQ(ours, reduce_chunk_reference(chunk).power_sum) << data.name;
        EXPECT_EQ(ours, power_sum(chunk.dtype, source, chunk.count, p, 1)) << data.name;
      }
    }
  }
}

/// Every exponent, and mantissas whose halves round up, where ways to compute the error of a square could differ.
TEST_P(Float64Norm, has_the_bits_of_the_plain_loops_at_every_magnitude) {
  std::mt19937_64 random(22);
  for (int exponent = -1074; exponent < 1024; ++exponent) {
    std::vector<double> values(64);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double mantissa = i < 8 ? 2 - std::ldexp(static_cast<double>(i), -28) : 1 + std::ldexp(random() >> 12, -52);
      values[i] = std::ldexp(i < 4 ? std::nextafter(mantissa, 1.0) : mantissa, exponent);
    }
    values.resize(1 + random() % 64);
    std::replace_if(
        values.begin(), values.end(), [](double value) { return std::isinf(value); }, 1.0
    );
    const void* source = values.data();
    ReduceChunk chunk;
    chunk.dtype = plan::DType::Float64;
    chunk.count = values.size();
    chunk.sources = {&source, 1};
    EXPECT_EQ(reduce_chunk(chunk).power_sum, reduce_chunk_reference(chunk).power_sum) << exponent;
  }
}

TEST_P(Float64Norm, one_element_is_its_own_norm) {
  for (const double p : {1.0, 2.0, 3.0, 2.5, 300.0}) {
    for (const double value : {1e-320, 1e-308, 1.0 / 3, 1e100 / 7, 1.7e308, std::numeric_limits<double>::max()}) {
      std::vector<double> values(100, 0.0);
      values[50] = -value;
      EXPECT_EQ(norm_of(values, p, 1), value) << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Float64Norm, testing::ValuesIn(vector_targets()), [](const auto& given) {
  return given.param;
});

}  // namespace
}  // namespace gradsync::device
