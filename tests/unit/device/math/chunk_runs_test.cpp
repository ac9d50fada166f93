// Chunks of several runs, on every vector target: bit for bit as the plain loops, and as the same elements in one run.

#include "device/math/chunk_math.hpp"
#include "device/math/chunk_reference.hpp"
#include "unit/device/math/chunk_fixture.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

class ChunkRuns : public ChunkTest {};

/// A chunk of several runs. Sources are laid out with gaps, destinations are apart.
struct Runs {
  std::size_t sources = 2;
  std::size_t destinations = 1;
  std::size_t count = 1;
  std::size_t runs = 2;
  std::size_t distance = 1;
  double divisor = 1;
  PowerKind power = PowerKind::Two;
};

template <typename Function>
Outcome run(Function function, DType dtype, const Runs& shape, std::vector<Memory>& sources) {
  Outcome result{{}, {}, std::vector<std::uint64_t>(shape.sources)};
  std::vector<const void*> from;
  std::vector<void*> to;
  for (Memory& source : sources) {
    from.push_back(source.begin());
  }
  for (std::size_t d = 0; d < shape.destinations; ++d) {
    result.memory.emplace_back(dtype, shape.count * shape.runs, d);
  }
  for (Memory& destination : result.memory) {
    to.push_back(destination.begin());
  }
  ReduceChunk chunk;
  chunk.dtype = dtype;
  chunk.count = shape.count;
  chunk.runs = shape.runs;
  chunk.source_distance = shape.distance;
  chunk.sources = from;
  chunk.destinations = to;
  chunk.divisor = shape.divisor;
  chunk.power = shape.power;
  chunk.source_nonfinite = result.source_nonfinite.data();
  result.stats = function(chunk);
  return result;
}

/// The runs of a source put together.
Memory gathered(DType dtype, const Runs& shape, Memory& source) {
  Memory together(dtype, shape.count * shape.runs, 0);
  for (std::size_t r = 0; r < shape.runs; ++r) {
    std::memcpy(
        together.begin() + r * shape.count * width(dtype),
        source.begin() + r * shape.distance * width(dtype),
        shape.count * width(dtype)
    );
  }
  return together;
}

TEST_P(ChunkRuns, reduces_runs_like_the_plain_loops_bit_for_bit) {
  std::mt19937_64 random(12);
  for (const Content content : {Content::Ordinary, Content::Huge, Content::NonFinite, Content::AnyBits}) {
    for (const std::size_t sources : {1, 2, 4}) {
      for (const std::size_t count : {1, 3, 31, 32, 33, 64, 95, 200}) {
        for (const std::size_t runs : {1, 2, 7}) {
          const Runs shape{
              sources,
              1 + random() % 3,
              count,
              runs,
              count + random() % 40,
              random() % 2 == 0 ? 1.0 : 3.0,
              static_cast<PowerKind>(random() % 3)};
          std::vector<Memory> memory;
          for (std::size_t s = 0; s < sources; ++s) {
            memory.emplace_back(dtype(), (runs - 1) * shape.distance + count, random() % 3).fill(content, random);
          }
          const std::string what = "content " + std::to_string(static_cast<int>(content)) + " sources " +
                                   std::to_string(sources) + " runs " + std::to_string(runs) + " of " +
                                   std::to_string(count) + " at " + std::to_string(shape.distance);
          const std::vector<Memory> before = memory;
          const Outcome ours = run(reduce_chunk, dtype(), shape, memory);
          expect_equal_bits(ours, run(reduce_chunk_reference, dtype(), shape, memory), what);
          EXPECT_TRUE(memory == before) << what;
          // The same elements as one run have the same values, in whatever order their powers are added.
          Runs flat = shape;
          flat.count = count * runs;
          flat.runs = 1;
          std::vector<Memory> together;
          for (Memory& source : memory) {
            together.push_back(gathered(dtype(), shape, source));
          }
          const Outcome whole = run(reduce_chunk, dtype(), flat, together);
          EXPECT_TRUE(ours.memory == whole.memory) << what;
          EXPECT_EQ(ours.source_nonfinite, whole.source_nonfinite) << what;
          EXPECT_EQ(ours.stats.maximum, whole.stats.maximum) << what;
          EXPECT_EQ(ours.stats.nonfinite, whole.stats.nonfinite) << what;
          EXPECT_EQ(ours.stats.nan, whole.stats.nan) << what;
        }
      }
    }
  }
}

/// Element i of a run goes to accumulator i mod 32: runs of 32 are one run as long as all of them.
TEST_P(ChunkRuns, runs_of_whole_rows_have_the_sums_of_one_run) {
  std::mt19937_64 random(13);
  const Runs shape{3, 2, 96, 11, 130, 3.0};
  std::vector<Memory> memory(3, Memory(dtype(), 10 * 130 + 96, 1));
  std::vector<Memory> together;
  for (Memory& source : memory) {
    source.fill(Content::Ordinary, random);
    together.push_back(gathered(dtype(), shape, source));
  }
  Runs flat = shape;
  flat.count = 96 * 11;
  flat.runs = 1;
  expect_equal_bits(run(reduce_chunk, dtype(), shape, memory), run(reduce_chunk, dtype(), flat, together), "rows");
}

INSTANTIATE_TEST_SUITE_P(
    EveryTarget,
    ChunkRuns,
    testing::Combine(
        testing::ValuesIn(vector_targets()),
        testing::Values(DType::Float32, DType::BFloat16, DType::Float16, DType::Float64)
    ),
    target_and_dtype
);

}  // namespace
}  // namespace gradsync::device
