// The reducing pass between 16 bits and float32, against the CPU engine's own arithmetic: every bit of results and
// statistics.

#include "device/math/chunk_reference.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/device_memory.hpp"
#include "kernels/gradients.hpp"
#include "kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::kernels {
namespace {

/// One sum of a chunk: some sources of one format, two destinations of another.
struct MixedCase {
  DType from = DType::Float32;
  DType to = DType::Float32;
  ReduceChunk chunk;
  double divisor = 1;
  double p = 2;
  std::vector<HostTensor> sources;
  std::vector<bool> absent;
  std::size_t offset = 0;  ///< elements of a result before its first one, so that no alignment is special

  [[nodiscard]] std::uint64_t results() const { return std::uint64_t{chunk.run} * chunk.runs; }
};

struct Results {
  std::vector<std::byte> bytes;  ///< of the first destination
  bool alike = true;             ///< the second one has them as well
  ReducedChunk chunk;
  std::vector<std::uint64_t> nonfinite;
};

Results on_device(const MixedCase& given) {
  std::vector<DeviceMemory> memory;
  std::vector<std::uint64_t> addresses;
  ReduceSum sum;
  for (std::size_t i = 0; i < given.sources.size(); ++i) {
    memory.emplace_back(given.sources[i].bytes.size());
    memory.back().upload(given.sources[i].bytes.data(), given.sources[i].bytes.size());
    sum.sources.push_back(static_cast<std::uint32_t>(i));
    addresses.push_back(given.absent[i] ? 0 : reinterpret_cast<std::uint64_t>(memory.back().get()));
  }
  const std::size_t before = given.offset * size_of(given.to);
  const std::size_t bytes = given.results() * size_of(given.to);
  for (int copy = 0; copy < 2; ++copy) {
    memory.emplace_back(before + bytes);
    sum.destinations.push_back(static_cast<std::uint32_t>(addresses.size()));
    addresses.push_back(reinterpret_cast<std::uint64_t>(memory.back().get()) + before);
  }
  ReduceBucket bucket{given.to, given.divisor, 0, 1};
  bucket.sources = given.from;
  bucket.minus_zeros = true;
  const auto places = static_cast<std::uint32_t>(addresses.size());
  const ReduceTable table(places, std::vector{ReducePart{{sum}}}, std::vector{given.chunk}, std::vector{bucket});
  DeviceMemory image(table.image().size());
  image.upload(table.image().data(), table.image().size());
  const DeviceMemory on_it = uploaded(addresses);
  const DeviceMemory chunk(sizeof(ReducedChunk));
  const DeviceMemory nonfinite(places * sizeof(std::uint64_t));
  nonfinite.zero();
  ReduceMemory of;
  of.image = image.get();
  of.addresses = reinterpret_cast<const std::uint64_t*>(on_it.get());
  of.chunks = reinterpret_cast<ReducedChunk*>(chunk.get());
  of.nonfinite = reinterpret_cast<std::uint64_t*>(nonfinite.get());
  must(reduce(table, {0, given.p, false}, of, nullptr), "reduce");
  must(cudaStreamSynchronize(nullptr), "reduce");
  Results made;
  made.bytes.resize(bytes);
  std::vector<std::byte> other(bytes);
  memory[given.sources.size()].download(made.bytes.data(), bytes, before);
  memory[given.sources.size() + 1].download(other.data(), bytes, before);
  made.alike = made.bytes == other;
  made.chunk = downloaded<ReducedChunk>(chunk, 1).front();
  made.nonfinite = downloaded<std::uint64_t>(nonfinite, given.sources.size());
  return made;
}

Results on_host(const MixedCase& given) {
  Results made;
  made.bytes.resize(given.results() * size_of(given.to));
  made.nonfinite.resize(given.sources.size());
  std::vector<device::MixedSource> sources;
  for (std::size_t i = 0; i < given.sources.size(); ++i) {
    const std::byte* from = given.sources[i].bytes.data() + given.chunk.source * size_of(given.from);
    if (given.absent[i]) {
      continue;
    }
    sources.push_back({from, static_cast<plan::DType>(given.from)});
    for (std::uint32_t run = 0; run < given.chunk.runs; ++run) {
      made.nonfinite[i] += device::count_nonfinite(
          static_cast<plan::DType>(given.from), from + run * given.chunk.distance * size_of(given.from), given.chunk.run
      );
    }
  }
  if (sources.empty()) {  // −0.0
    for (std::size_t at = size_of(given.to) - 1; at < made.bytes.size(); at += size_of(given.to)) {
      made.bytes[at] = std::byte{0x80};
    }
    return made;
  }
  void* const destination = made.bytes.data();
  device::MixedChunk work;
  work.dtype = static_cast<plan::DType>(given.to);
  work.count = given.chunk.run;
  work.runs = given.chunk.runs;
  work.source_distance = given.chunk.distance;
  work.sources = sources;
  work.destinations = {&destination, 1};
  work.divisor = given.divisor;
  work.power = given.p == 2 ? device::PowerKind::Two : given.p == 1 ? device::PowerKind::One : device::PowerKind::None;
  const device::ChunkStats stats = device::reduce_mixed_reference(work);
  made.chunk.high = stats.power_sum.high;
  made.chunk.maximum = stats.maximum;
  made.chunk.nonfinite = static_cast<std::uint32_t>(stats.nonfinite);
  made.chunk.nan = static_cast<std::uint32_t>(stats.nan);
  return made;
}

class MixedReduce : public testing::TestWithParam<std::pair<DType, DType>> {
 protected:
  void SetUp() override {
    if (const std::string reason = missing_device(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  MixedCase make() {
    constexpr std::uint32_t kRuns[] = {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 64, 100, 257, 1'000};
    constexpr Values kValues[] = {Values::Normal, Values::Extreme, Values::Tiny, Values::Nonfinite, Values::Huge};
    constexpr double kPowers[] = {2, 1, std::numeric_limits<double>::infinity()};
    MixedCase made;
    std::tie(made.from, made.to) = GetParam();
    const bool single = below(2) == 0;
    made.chunk.run = single ? static_cast<std::uint32_t>(1 + below(4'000)) : kRuns[below(15)];
    made.chunk.runs = single ? 1 : static_cast<std::uint32_t>(1 + below(4));
    made.chunk.distance = made.chunk.runs == 1 ? 0 : made.chunk.run + below(9);
    made.chunk.source = below(20);
    made.divisor = std::vector<double>{1, 2, 3}[below(3)];
    made.p = kPowers[below(3)];
    made.offset = below(9);
    const std::uint64_t inputs = made.chunk.source + made.chunk.distance * (made.chunk.runs - 1) + made.chunk.run;
    for (std::uint64_t left = 1 + below(3); left > 0; --left) {
      made.sources.push_back(make_tensor(made.from, inputs, kValues[below(5)]));
      made.absent.push_back(below(5) == 0);
    }
    return made;
  }

  std::mt19937_64 random_{11};
};

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    MixedReduce,
    testing::Values(
        std::pair(DType::BFloat16, DType::Float32),
        std::pair(DType::Float16, DType::Float32),
        std::pair(DType::Float32, DType::BFloat16),
        std::pair(DType::Float32, DType::Float16)
    ),
    [](const auto& one) { return name_of(one.param.first) + "_to_" + name_of(one.param.second); }
);

TEST_P(MixedReduce, gives_the_bits_of_the_cpu_engine) {
  int nonfinite = 0;
  int absent = 0;
  for (int number = 0; number < 200; ++number) {
    SCOPED_TRACE(number);
    const MixedCase given = make();
    const Results ours = on_device(given);
    const Results engines = on_host(given);
    ASSERT_TRUE(ours.bytes == engines.bytes);
    ASSERT_TRUE(ours.alike);
    ASSERT_EQ(ours.chunk.nonfinite, engines.chunk.nonfinite);
    ASSERT_EQ(ours.chunk.nan, engines.chunk.nan);
    ASSERT_EQ(ours.chunk.maximum, engines.chunk.maximum);
    if (engines.chunk.nonfinite == 0) {
      ASSERT_EQ(ours.chunk.high, engines.chunk.high);
    }
    // An input that is not finite is counted where the sum is not, and that is everywhere it matters.
    ASSERT_EQ(ours.nonfinite, engines.nonfinite);
    nonfinite += engines.chunk.nonfinite != 0 ? 1 : 0;
    absent += std::ranges::count(given.absent, true) == std::ssize(given.absent) ? 1 : 0;
  }
  EXPECT_GT(nonfinite, 0);
  EXPECT_GT(absent, 0);
}

TEST(MixedReduceTable, names_formats_that_no_pass_is_between) {
  const auto message = [](DType from, DType to) {
    ReduceBucket bucket{to, 1, 0, 1};
    bucket.sources = from;
    try {
      const ReduceTable table(
          2, std::vector{ReducePart{{{{0}, {1}}}}}, std::vector{ReduceChunk{0, 0, 0, 4, 1, 0}}, std::vector{bucket}
      );
      return std::string("accepted");
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(message(DType::Float64, DType::Float64), "accepted");
  EXPECT_EQ(message(DType::Float32, DType::Float16), "accepted");
  EXPECT_EQ(
      message(DType::Float64, DType::Float32),
      "buckets[0].sources is float64 and its dtype float32: where they differ, one is float32 and the other has 16 bits"
  );
  EXPECT_NE(message(DType::Float16, DType::BFloat16), "accepted");
}

TEST(MixedReduceTable, has_the_places_that_a_bucket_looks_at) {
  const std::vector<ReducePart> parts = {{{{{3, 5}, {4}}}}, {{{{1}, {2}}, {{9}, {8}}}}};
  const std::vector<ReduceChunk> chunks = {{0, 0, 0, 4, 1, 0}, {0, 0, 0, 4, 1, 1}};
  const std::vector<ReduceBucket> buckets = {
      {DType::Float32, 1, 0, 1}, {DType::Float32, 1, 1, 1}, {DType::Float32, 1, 0, 2}, {DType::Float32, 1, 0, 0}};
  const ReduceTable table(10, parts, chunks, buckets);
  const auto of = [&](std::uint32_t bucket) {
    return std::pair(table.places_of(bucket).begin, table.places_of(bucket).end);
  };
  EXPECT_EQ(of(0), std::pair(3U, 6U));
  EXPECT_EQ(of(1), std::pair(1U, 10U));
  EXPECT_EQ(of(2), std::pair(1U, 10U));
  EXPECT_EQ(of(3), std::pair(0U, 0U));
}

}  // namespace
}  // namespace gradsync::kernels
