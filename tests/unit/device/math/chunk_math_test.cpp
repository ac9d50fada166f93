// One suite for every vector target: equal to the plain loops bit for bit, and right by an oracle in long double.

#include "device/math/chunk_math.hpp"

#include "device/math/chunk_reference.hpp"
#include "unit/device/math/chunk_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

struct Form {
  std::size_t sources = 1;
  std::size_t destinations = 1;  ///< the first of them are the sources
  std::size_t count = 0;
  double divisor = 1;
  PowerKind power = PowerKind::Two;
};

template <typename Function>
Outcome run(Function function, DType dtype, const Form& shape, std::vector<Memory> memory) {
  Outcome result{{}, std::move(memory), std::vector<std::uint64_t>(shape.sources)};
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (std::size_t i = 0; i < result.memory.size(); ++i) {
    if (i < shape.sources) {
      sources.push_back(result.memory[i].begin());
    }
    if (i < shape.destinations) {
      destinations.push_back(result.memory[i].begin());
    }
  }
  ReduceChunk chunk;
  chunk.dtype = dtype;
  chunk.count = shape.count;
  chunk.sources = sources;
  chunk.destinations = destinations;
  chunk.divisor = shape.divisor;
  chunk.power = shape.power;
  chunk.source_nonfinite = result.source_nonfinite.data();
  result.stats = function(chunk);
  return result;
}

class ChunkMath : public ChunkTest {};

TEST_P(ChunkMath, reduces_like_the_plain_loops_bit_for_bit) {
  std::mt19937_64 random(7);
  for (const Content content :
       {Content::Ordinary, Content::Denormal, Content::Huge, Content::NonFinite, Content::AnyBits}) {
    for (const std::size_t sources : {1, 2, 3, 4, 5, 8}) {
      for (const std::size_t count : {0, 1, 2, 15, 31, 32, 33, 63, 64, 100, 1000}) {
        for (const double divisor : {1.0, 2.0, 3.0, 8.0, 1000.0, 0.25}) {
          const auto power = static_cast<PowerKind>(random() % 3);
          const std::size_t destinations[] = {1, sources, sources + 1};
          const Form shape{sources, destinations[random() % 3], count, divisor, power};
          std::vector<Memory> memory;
          for (std::size_t r = 0; r < std::max(sources, shape.destinations); ++r) {
            memory.emplace_back(dtype(), count, random() % 3).fill(content, random);
          }
          const Outcome ours = run(reduce_chunk, dtype(), shape, memory);
          const Outcome reference = run(reduce_chunk_reference, dtype(), shape, memory);
          expect_equal_bits(
              ours,
              reference,
              "content " + std::to_string(static_cast<int>(content)) + " sources " + std::to_string(sources) +
                  " count " + std::to_string(count) + " divisor " + std::to_string(divisor) + " power " +
                  std::to_string(static_cast<int>(power))
          );
        }
      }
    }
  }
}

TEST_P(ChunkMath, scales_like_the_plain_loops_bit_for_bit) {
  std::mt19937_64 random(8);
  for (const Content content :
       {Content::Ordinary, Content::Denormal, Content::Huge, Content::NonFinite, Content::AnyBits}) {
    for (const std::size_t count : {0, 1, 31, 32, 33, 64, 777}) {
      for (const double multiplier : {0.5, 0.25, 2.0, 0.12345678901234, 1e-20, 1e20, 0.0, HUGE_VAL, std::nan("")}) {
        const Stores stores = random() % 2 == 0 ? Stores::Cached : Stores::PastCache;
        Memory ours(dtype(), count, random() % 3);
        ours.fill(content, random);
        Memory reference = ours;
        // Copies beyond the first start with other content: they are written, never read.
        std::vector<Memory> copies;
        for (std::uint64_t copy = random() % 4; copy > 0; --copy) {
          copies.emplace_back(dtype(), count, random() % 3 / 2);
        }
        std::vector<void*> destinations{ours.begin()};
        for (Memory& copy : copies) {
          destinations.push_back(copy.begin());
        }
        scale_chunk(dtype(), ours.begin(), destinations, count, multiplier, stores);
        fence_stores();
        scale_chunk_reference(dtype(), reference.begin(), count, multiplier);
        for (const Memory& copy : copies) {
          EXPECT_TRUE(copy.holds_what(reference))
              << static_cast<int>(content) << " count " << count << " x " << multiplier;
        }
        EXPECT_TRUE(ours == reference) << static_cast<int>(content) << " count " << count << " multiplier "
                                       << multiplier;
      }
    }
  }
}

TEST_P(ChunkMath, statistics_alone_write_nothing) {
  std::mt19937_64 random(9);
  Memory memory(dtype(), 1000, 1);
  memory.fill(Content::NonFinite, random);
  const Outcome after = run(reduce_chunk, dtype(), Form{1, 0, 1000}, {memory});
  EXPECT_TRUE(after.memory[0] == memory);
  EXPECT_EQ(after.stats.nonfinite, after.source_nonfinite[0]);
  EXPECT_GT(after.stats.nonfinite, 0U);
}

/// The mathematics rather than the loops: every element is the once-rounded quotient of the sum, and the statistics
/// are those of what was stored.
TEST_P(ChunkMath, agrees_with_exact_arithmetic) {
  std::mt19937_64 random(10);
  const Form shape{2, 2, 4099, 2.0, PowerKind::Two};
  std::vector<Memory> memory{{dtype(), shape.count, 0}, {dtype(), shape.count, 1}};
  memory[0].fill(Content::Ordinary, random);
  memory[1].fill(Content::Ordinary, random);
  Outcome after = run(reduce_chunk, dtype(), shape, memory);
  long double squares = 0;
  double maximum = 0;
  for (std::size_t i = 0; i < shape.count; ++i) {
    const double a = memory[0].at(i);
    const double b = memory[1].at(i);
    const double sum = dtype() == DType::Float64 ? a + b : static_cast<float>(a) + static_cast<float>(b);
    std::byte expected[8] = {};
    encode(dtype(), sum / 2, expected);
    ASSERT_EQ(after.memory[0].at(i), decode(dtype(), expected)) << i;
    ASSERT_EQ(after.memory[1].at(i), decode(dtype(), expected)) << i;
    const long double stored = after.memory[0].at(i);
    squares += stored * stored;
    maximum = std::max(maximum, std::abs(after.memory[0].at(i)));
  }
  EXPECT_NEAR(static_cast<double>(after.stats.power_sum.high / squares), 1.0, 1e-14);
  EXPECT_EQ(after.stats.maximum, maximum);
}

TEST_P(ChunkMath, sums_of_powers_match_on_request) {
  std::mt19937_64 random(11);
  Memory memory(dtype(), 1023, 0);
  memory.fill(Content::Ordinary, random);
  for (const double p : {1.0, 2.0}) {
    const auto kind = p == 1 ? PowerKind::One : PowerKind::Two;
    const Outcome after = run(reduce_chunk, dtype(), Form{1, 0, 1023, 1.0, kind}, {memory});
    EXPECT_EQ(after.stats.power_sum, power_sum(dtype(), memory.begin(), 1023, p, 1));
  }
}

/// The last row of an arena ends with its mapping, and the bytes behind a tensor's last element belong to another one.
TEST_P(ChunkMath, nothing_beside_the_elements_is_touched) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* mapped = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const pages = static_cast<std::byte*>(mapped);
  ASSERT_EQ(::mprotect(pages + page, page, PROT_NONE), 0);
  std::mt19937_64 random(14);
  for (std::size_t count = 1; count <= 70; ++count) {
    const std::size_t bytes = count * width(dtype());
    Memory memory(dtype(), count, 0);
    memory.fill(Content::Ordinary, random);
    // In the middle of what others hold, then as the last of its memory.
    for (std::byte* const begin : {pages + page / 2, pages + page - bytes}) {
      std::fill(pages, pages + page, std::byte{0x5a});
      std::memcpy(begin, memory.begin(), bytes);
      void* const place = begin;
      const void* const source = begin;
      ReduceChunk chunk;
      chunk.dtype = dtype();
      chunk.count = count;
      chunk.sources = {&source, 1};
      chunk.destinations = {&place, 1};
      (void)reduce_chunk(chunk);
      scale_chunk(dtype(), source, {&place, 1}, count, 1.0);
      EXPECT_EQ(std::memcmp(begin, memory.begin(), bytes), 0) << count;
      const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
      EXPECT_TRUE(std::all_of(pages, begin, untouched)) << count;
      EXPECT_TRUE(std::all_of(begin + bytes, pages + page, untouched)) << count;
    }
  }
  ::munmap(mapped, 2 * page);
}

INSTANTIATE_TEST_SUITE_P(
    EveryTarget,
    ChunkMath,
    testing::Combine(
        testing::ValuesIn(vector_targets()),
        testing::Values(DType::Float32, DType::BFloat16, DType::Float16, DType::Float64)
    ),
    target_and_dtype
);

TEST(ChunkMathTargets, the_portable_target_is_always_there) {
  EXPECT_THAT(vector_targets(), testing::Contains("SCALAR"));
}

}  // namespace
}  // namespace gradsync::device
