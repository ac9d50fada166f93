// Sums whose sources have several formats: each vector target against the plain loops, bit for bit.

#include "arithmetic/half.hpp"
#include "device/math/chunk_math.hpp"
#include "device/math/chunk_reference.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace gradsync::device {
namespace {

constexpr plan::DType kFormats[] = {plan::DType::Float32, plan::DType::BFloat16, plan::DType::Float16};

/// Memory of exactly the elements that a chunk reads, so that a sanitizer sees what is read beyond them.
std::vector<std::byte> random_values(plan::DType dtype, std::size_t count, bool finite, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count * plan::size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    float value = std::ldexp(static_cast<float>(random() % 2'000'001) - 1e6F, static_cast<int>(random() % 30) - 35);
    if (!finite && random() % 50 == 0) {
      value = random() % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
    }
    const std::uint16_t half =
        dtype == plan::DType::BFloat16 ? arithmetic::float_to_bfloat16(value) : arithmetic::float_to_float16(value);
    const void* from = dtype == plan::DType::Float32 ? static_cast<const void*>(&value) : &half;
    std::memcpy(bytes.data() + i * plan::size_of(dtype), from, plan::size_of(dtype));
  }
  return bytes;
}

void expect_equal(const ChunkStats& a, const ChunkStats& b) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.maximum), std::bit_cast<std::uint64_t>(b.maximum));
  EXPECT_EQ(a.nonfinite, b.nonfinite);
  EXPECT_EQ(a.nan, b.nan);
  if (a.nonfinite == 0) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.power_sum.high), std::bit_cast<std::uint64_t>(b.power_sum.high));
    EXPECT_EQ(a.power_sum.low, b.power_sum.low);
  }
}

void expect_chunk(std::size_t count, std::size_t runs, bool finite, std::mt19937_64& random) {
  const std::size_t distance = runs == 1 ? 0 : count + random() % 5;
  std::vector<std::vector<std::byte>> memory;
  std::vector<MixedSource> sources;
  for (std::size_t left = 1 + random() % 4; left > 0; --left) {
    const plan::DType dtype = kFormats[random() % 3];
    memory.push_back(random_values(dtype, (runs - 1) * distance + count, finite, random));
    sources.push_back({memory.back().data(), dtype});
  }
  for (const plan::DType dtype : kFormats) {
    std::vector<std::vector<std::byte>> results(4, std::vector<std::byte>(count * runs * plan::size_of(dtype)));
    void* const destinations[] = {results[0].data(), results[1].data()};
    void* const expected[] = {results[2].data(), results[3].data()};
    MixedChunk chunk;
    chunk.dtype = dtype;
    chunk.count = count;
    chunk.runs = runs;
    chunk.source_distance = distance;
    chunk.sources = sources;
    chunk.divisor = std::vector<double>{1, 2, 3}[random() % 3];
    chunk.power = std::vector<PowerKind>{PowerKind::None, PowerKind::One, PowerKind::Two}[random() % 3];
    chunk.destinations = destinations;
    const ChunkStats stats = reduce_mixed(chunk);
    chunk.destinations = expected;
    expect_equal(stats, reduce_mixed_reference(chunk));
    EXPECT_TRUE(results[0] == results[2] && results[1] == results[2]) << plan::name_of(dtype) << " of " << count;
  }
}

TEST(MixedChunks, every_vector_target_makes_the_same_bits) {
  for (const std::string& target : vector_targets()) {
    SCOPED_TRACE(target);
    use_vector_target(target);
    std::mt19937_64 random(7);
    for (const std::size_t count : {1U, 2U, 15U, 16U, 31U, 32U, 33U, 63U, 64U, 100U, 1000U, 16'384U}) {
      expect_chunk(count, 1, true, random);
      expect_chunk(count, 1, false, random);
      expect_chunk(count, 3, true, random);
      expect_chunk(count, 3, false, random);
    }
  }
  use_vector_target("");
}

}  // namespace
}  // namespace gradsync::device
