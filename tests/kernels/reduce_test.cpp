// The reducing pass against the CPU engine's own arithmetic: every bit of results and statistics, over random plans.

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
#include <set>

namespace gradsync::kernels {
namespace {

constexpr std::uint64_t kMostElements = device::kChunkElements;

plan::DType plan_dtype(DType dtype) {
  static_assert(static_cast<int>(plan::DType::Float64) == static_cast<int>(DType::Float64));
  return static_cast<plan::DType>(dtype);
}

/// A piece of memory, and the address of its first element in it.
struct Block {
  std::vector<std::byte> bytes;
  std::size_t offset = 0;
};

/// A plan with its memory: places are blocks, several places may be one block.
struct Plan {
  std::vector<Block> blocks;
  std::vector<std::uint32_t> block_of;  ///< by place
  std::vector<bool> absent;             ///< by place
  std::vector<ReducePart> parts;
  std::vector<ReduceChunk> chunks;
  std::vector<ReduceBucket> buckets;
  double p = 2;
  bool compare = false;
};

/// What a pass leaves.
struct Outcome {
  std::vector<Block> blocks;
  std::vector<ReducedChunk> chunks;
  std::vector<std::uint64_t> nonfinite;
  std::vector<std::uint32_t> differs;
};

/// Addresses are those of `memory`, a copy of the plan's blocks.
std::vector<std::uint64_t> addresses_in(const Plan& plan, const std::vector<std::byte*>& memory) {
  std::vector<std::uint64_t> addresses;
  for (std::size_t place = 0; place < plan.block_of.size(); ++place) {
    const std::uint32_t block = plan.block_of[place];
    addresses.push_back(
        plan.absent[place] ? 0 : reinterpret_cast<std::uint64_t>(memory[block] + plan.blocks[block].offset)
    );
  }
  return addresses;
}

/// The CPU engine's way (service/device/host/bucket_reduction.cpp), with the plain loops of chunk_reference.hpp.
class OnHost {
 public:
  explicit OnHost(const Plan& plan) : plan_(plan) {
    outcome_.blocks = plan.blocks;
    std::vector<std::byte*> memory;
    for (Block& block : outcome_.blocks) {
      memory.push_back(block.bytes.data());
    }
    addresses_ = addresses_in(plan, memory);
    outcome_.chunks.resize(plan.chunks.size());
    outcome_.nonfinite.resize(plan.block_of.size());
    for (const ReducePart& part : plan.parts) {
      first_sum_.push_back(static_cast<std::uint32_t>(outcome_.differs.size()));
      outcome_.differs.resize(outcome_.differs.size() + part.sums.size());
    }
  }

  Outcome run() {
    for (const ReduceBucket& bucket : plan_.buckets) {
      for (std::uint32_t chunk = bucket.first_chunk; chunk < bucket.first_chunk + bucket.chunks; ++chunk) {
        reduce_chunk(bucket, chunk);
      }
    }
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] std::byte* at(std::uint32_t place, std::uint64_t element, DType dtype) const {
    return reinterpret_cast<std::byte*>(addresses_[place] + element * size_of(dtype));
  }

  void reduce_chunk(const ReduceBucket& bucket, std::uint32_t index) {
    const ReduceChunk& chunk = plan_.chunks[index];
    ReducedChunk& result = outcome_.chunks[index];
    std::optional<std::uint32_t> counted;
    const std::vector<ReduceSum>& sums = plan_.parts[chunk.part].sums;
    for (std::uint32_t sum = 0; sum < sums.size(); ++sum) {
      if (reduce_sum(bucket, chunk, sums[sum], !counted, result)) {
        if (!counted) {
          counted = sum;
        } else if (plan_.compare && differs(bucket, chunk, sums[*counted], sums[sum])) {
          outcome_.differs[first_sum_[chunk.part] + sum] = 1;
          result.differs = 1;
        }
      }
    }
    if (counted && plan_.p != 1 && plan_.p != 2 && std::isfinite(plan_.p)) {
      const device::DoubleDouble powers = device::power_sum(
          plan_dtype(bucket.dtype),
          at(sums[*counted].destinations[0], chunk.first, bucket.dtype),
          std::size_t{chunk.run} * chunk.runs,
          plan_.p,
          1
      );
      result.high = powers.high;
      result.low = powers.low;
    }
  }

  /// Whether any rank contributes to it.
  bool reduce_sum(
      const ReduceBucket& bucket, const ReduceChunk& chunk, const ReduceSum& sum, bool counted, ReducedChunk& result
  ) {
    std::vector<const void*> sources;
    std::vector<std::uint32_t> places;
    std::vector<void*> destinations;
    for (const std::uint32_t place : sum.sources) {
      if (addresses_[place] != 0) {
        sources.push_back(at(place, chunk.source, bucket.dtype));
        places.push_back(place);
      }
    }
    for (const std::uint32_t place : sum.destinations) {
      if (addresses_[place] != 0) {
        destinations.push_back(at(place, chunk.first, bucket.dtype));
      }
    }
    if (sources.empty()) {
      for (void* destination : destinations) {
        std::memset(destination, 0, std::size_t{chunk.run} * chunk.runs * size_of(bucket.dtype));
      }
      return false;
    }
    const bool unchanged = bucket.divisor == 1 && sources.size() == 1 && sum.destinations.size() == 1 &&
                           addresses_[sum.destinations[0]] == addresses_[places[0]];
    if (!counted && unchanged) {
      return true;
    }
    std::vector<std::uint64_t> nonfinite(sources.size());
    device::ReduceChunk work;
    work.dtype = plan_dtype(bucket.dtype);
    work.count = chunk.run;
    work.runs = chunk.runs;
    work.source_distance = chunk.distance;
    work.sources = sources;
    work.destinations = unchanged ? std::span<void* const>{} : destinations;
    work.divisor = bucket.divisor;
    work.power = plan_.p == 2   ? device::PowerKind::Two
                 : plan_.p == 1 ? device::PowerKind::One
                                : device::PowerKind::None;
    work.source_nonfinite = nonfinite.data();
    const device::ChunkStats stats = device::reduce_chunk_reference(work);
    if (counted) {
      result.high = stats.power_sum.high;
      result.low = stats.power_sum.low;
      result.maximum = stats.maximum;
    }
    result.nonfinite = std::max(result.nonfinite, static_cast<std::uint32_t>(stats.nonfinite));
    result.nan = std::max(result.nan, static_cast<std::uint32_t>(stats.nan));
    for (std::size_t source = 0; source < places.size(); ++source) {
      outcome_.nonfinite[places[source]] += nonfinite[source];
    }
    return true;
  }

  [[nodiscard]] bool differs(
      const ReduceBucket& bucket, const ReduceChunk& chunk, const ReduceSum& counted, const ReduceSum& sum
  ) const {
    return std::memcmp(
               at(counted.destinations[0], chunk.first, bucket.dtype),
               at(sum.destinations[0], chunk.first, bucket.dtype),
               std::size_t{chunk.run} * chunk.runs * size_of(bucket.dtype)
           ) != 0;
  }

  const Plan& plan_;
  Outcome outcome_;
  std::vector<std::uint64_t> addresses_;
  std::vector<std::uint32_t> first_sum_;
};

Outcome on_device(const Plan& plan) {
  std::vector<DeviceMemory> memory;
  std::vector<std::byte*> places;
  for (const Block& block : plan.blocks) {
    memory.emplace_back(block.bytes.size());
    memory.back().upload(block.bytes.data(), block.bytes.size());
    places.push_back(memory.back().get());
  }
  const ReduceTable table(static_cast<std::uint32_t>(plan.block_of.size()), plan.parts, plan.chunks, plan.buckets);
  DeviceMemory image(table.image().size());
  image.upload(table.image().data(), table.image().size());
  const DeviceMemory addresses = uploaded(addresses_in(plan, places));
  const DeviceMemory chunks(plan.chunks.size() * sizeof(ReducedChunk));
  const DeviceMemory nonfinite(plan.block_of.size() * sizeof(std::uint64_t));
  const DeviceMemory differs(std::size_t{table.sums()} * sizeof(std::uint32_t));
  nonfinite.zero();
  differs.zero();
  const ReduceMemory of{
      image.get(),
      reinterpret_cast<const std::uint64_t*>(addresses.get()),
      reinterpret_cast<ReducedChunk*>(chunks.get()),
      reinterpret_cast<std::uint64_t*>(nonfinite.get()),
      reinterpret_cast<std::uint32_t*>(differs.get())};
  const DeviceMemory scales = uploaded(std::vector<double>(plan.chunks.size(), 1));
  for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    const Reduction what{bucket, plan.p, plan.compare};
    must(reduce(table, what, of, nullptr), "reduce");
    if (plan.p != 1 && plan.p != 2 && std::isfinite(plan.p)) {
      must(sum_powers(table, what, reinterpret_cast<const double*>(scales.get()), of, nullptr), "sum_powers");
    }
  }
  must(cudaStreamSynchronize(nullptr), "reduce");
  Outcome outcome{
      plan.blocks,
      downloaded<ReducedChunk>(chunks, plan.chunks.size()),
      downloaded<std::uint64_t>(nonfinite, plan.block_of.size()),
      downloaded<std::uint32_t>(differs, table.sums())};
  for (std::size_t block = 0; block < plan.blocks.size(); ++block) {
    memory[block].download(outcome.blocks[block].bytes.data(), outcome.blocks[block].bytes.size());
  }
  return outcome;
}

/// Equal bits; sums that are not finite need only not be finite, as the CPU engine's vectors have it.
void expect_equal_sums(double ours, double engines, const std::string& what) {
  if (std::isfinite(engines)) {
    std::uint64_t bits[2];
    std::memcpy(bits, &ours, 8);
    std::memcpy(bits + 1, &engines, 8);
    EXPECT_EQ(bits[0], bits[1]) << what << ": " << ours << " and " << engines;
  } else {
    EXPECT_FALSE(std::isfinite(ours)) << what;
  }
}

void expect_equal(const Outcome& ours, const Outcome& engines, const std::string& what) {
  for (std::size_t block = 0; block < engines.blocks.size(); ++block) {
    ASSERT_EQ(ours.blocks[block].bytes, engines.blocks[block].bytes) << what << " block " << block;
  }
  for (std::size_t chunk = 0; chunk < engines.chunks.size(); ++chunk) {
    const std::string name = what + " chunk " + std::to_string(chunk);
    expect_equal_sums(ours.chunks[chunk].high, engines.chunks[chunk].high, name + " high");
    if (std::isfinite(engines.chunks[chunk].high)) {
      expect_equal_sums(ours.chunks[chunk].low, engines.chunks[chunk].low, name + " low");
    }
    expect_equal_sums(ours.chunks[chunk].maximum, engines.chunks[chunk].maximum, name + " maximum");
    EXPECT_EQ(ours.chunks[chunk].nonfinite, engines.chunks[chunk].nonfinite) << name;
    EXPECT_EQ(ours.chunks[chunk].nan, engines.chunks[chunk].nan) << name;
    EXPECT_EQ(ours.chunks[chunk].differs, engines.chunks[chunk].differs) << name;
  }
  EXPECT_EQ(ours.nonfinite, engines.nonfinite) << what;
  EXPECT_EQ(ours.differs, engines.differs) << what;
}

/// Makes plans: several parts, each cut into chunks, with every alignment, replicas, sums in place, absent ranks.
class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  Plan make(DType dtype) {
    plan_ = {};
    dtype_ = dtype;
    constexpr double kPowers[] = {2, 2, 2, 1, std::numeric_limits<double>::infinity()};
    plan_.p = kPowers[below(5)];
    plan_.compare = below(2) == 0;
    const double divisors[] = {1, 1, 2, 3, 8, 6.5};
    ReduceBucket bucket;
    bucket.dtype = dtype;
    bucket.divisor = divisors[below(6)];
    const std::uint64_t parts = 1 + below(4);
    for (std::uint64_t part = 0; part < parts; ++part) {
      add_part();
    }
    bucket.chunks = static_cast<std::uint32_t>(plan_.chunks.size());
    plan_.buckets.push_back(bucket);
    return std::move(plan_);
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  std::uint32_t new_block(std::uint64_t elements, Values values, std::uint32_t like) {
    const std::size_t offset = below(3) == 0 ? below(16 / size_of(dtype_)) * size_of(dtype_) : 0;
    const HostTensor tensor = make_tensor(dtype_, elements, values);
    Block block;
    block.offset = offset;
    block.bytes.assign(offset, std::byte{0x5a});
    if (like != kNone) {
      const Block& other = plan_.blocks[like];
      block.bytes.insert(block.bytes.end(), other.bytes.begin() + other.offset, other.bytes.end());
    } else {
      block.bytes.insert(block.bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
      for (std::size_t i = 0; i < 3 && !block.bytes.empty(); ++i) {  // so that no two blocks are alike by themselves
        block.bytes[offset + below(elements) * size_of(dtype_)] ^= std::byte{1};
      }
    }
    plan_.blocks.push_back(std::move(block));
    return static_cast<std::uint32_t>(plan_.blocks.size() - 1);
  }

  std::uint32_t place_in(std::uint32_t block, bool absent) {
    plan_.block_of.push_back(block);
    plan_.absent.push_back(absent);
    return static_cast<std::uint32_t>(plan_.block_of.size() - 1);
  }

  void add_part() {
    constexpr std::uint32_t kRuns[] = {1, 2, 3, 5, 8, 31, 32, 33, 64, 100, 257, 1'000};
    const bool single = below(2) == 0;
    const std::uint32_t run = single ? static_cast<std::uint32_t>(1 + below(3'000)) : kRuns[below(12)];
    const std::uint32_t runs = single ? 1 : static_cast<std::uint32_t>(1 + below(1 + 2'000 / run));
    const std::uint64_t distance = single ? run : run + below(20);
    const std::uint64_t source = below(3) == 0 ? below(40) : 0;
    const std::uint64_t first = below(3) == 0 ? below(40) : 0;
    const std::uint64_t inputs = source + distance * (runs - 1) + run;
    const std::uint64_t outputs = first + std::uint64_t{run} * runs;
    const Values kinds[] = {
        Values::Normal, Values::Normal, Values::Extreme, Values::Huge, Values::Tiny, Values::Nonfinite};
    const Values values = kinds[below(6)];
    const bool in_place = single && source == first && below(2) == 0;
    const bool absent = below(8) == 0;  // the whole tensor
    const std::uint64_t replicas = 1 + below(3);
    const std::uint64_t ranks = 1 + below(4);
    const bool equal = below(2) == 0;  // replicas are, as they should be
    ReducePart part;
    std::vector<std::uint32_t> of_first;
    for (std::uint64_t replica = 0; replica < replicas; ++replica) {
      ReduceSum sum;
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const std::uint32_t like = equal && replica > 0 ? of_first[rank] : kNone;
        const std::uint32_t block = new_block(inputs, values, like);
        if (replica == 0) {
          of_first.push_back(block);
        }
        sum.sources.push_back(place_in(block, absent || below(5) == 0));
        const bool written_here = rank == 0 || below(2) == 0;
        if (written_here) {
          sum.destinations.push_back(place_in(in_place ? block : new_block(outputs, Values::Zero, kNone), absent));
        }
      }
      part.sums.push_back(std::move(sum));
    }
    plan_.parts.push_back(std::move(part));
    cut(source, first, distance, run, runs);
  }

  /// A first chunk of a few whole runs, then the others; or a long run in pieces.
  void cut(std::uint64_t source, std::uint64_t first, std::uint64_t distance, std::uint32_t run, std::uint32_t runs) {
    const auto part = static_cast<std::uint32_t>(plan_.parts.size() - 1);
    if (runs > 1 && below(2) == 0) {
      const auto some = static_cast<std::uint32_t>(1 + below(runs - 1));
      plan_.chunks.push_back({source, first, distance, run, some, part});
      plan_.chunks.push_back(
          {source + some * distance, first + std::uint64_t{some} * run, distance, run, runs - some, part}
      );
    } else if (runs == 1 && run > 1 && below(2) == 0) {
      const auto some = static_cast<std::uint32_t>(1 + below(run - 1));
      plan_.chunks.push_back({source, first, 0, some, 1, part});
      plan_.chunks.push_back({source + some, first + some, 0, run - some, 1, part});
    } else {
      plan_.chunks.push_back({source, first, distance, run, runs, part});
    }
  }

  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::mt19937_64 random_;
  Plan plan_;
  DType dtype_ = DType::Float32;
};

class Reduce : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = missing_device(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    Reduce,
    testing::Values(DType::Float32, DType::BFloat16, DType::Float16, DType::Float64),
    [](const auto& one) { return name_of(one.param); }
);

TEST_P(Reduce, gives_the_bits_of_the_cpu_engine_on_random_plans) {
  std::set<std::string> seen;  // that the plans contain what they are meant to
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    const Plan plan = Maker(seed * 4 + static_cast<std::uint64_t>(GetParam())).make(GetParam());
    const Outcome engines = OnHost(plan).run();
    expect_equal(on_device(plan), engines, "seed " + std::to_string(seed));
    if (HasFatalFailure() || HasNonfatalFailure()) {
      return;
    }
    for (const ReducedChunk& chunk : engines.chunks) {
      seen.insert(chunk.nonfinite != 0 ? "nonfinite" : chunk.maximum > 0 ? "finite" : "absent");
      seen.insert(chunk.differs != 0 ? "differs" : "equal");
    }
    seen.insert(plan.chunks[0].runs > 1 ? "runs" : "run");
  }
  EXPECT_EQ(seen, (std::set<std::string>{"nonfinite", "finite", "absent", "differs", "equal", "runs", "run"}));
}

/// One sum over `ranks` inputs of full chunks.
Plan full_chunks(DType dtype, std::uint32_t ranks, std::uint32_t chunks, std::uint32_t last) {
  Plan plan;
  ReduceSum sum;
  const std::uint64_t elements = (chunks - 1) * kMostElements + last;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    HostTensor tensor = make_tensor(dtype, elements, Values::Normal);
    tensor.bytes[rank * size_of(dtype)] ^= std::byte{1};
    plan.blocks.push_back({std::move(tensor.bytes), 0});
    plan.block_of.push_back(rank);
    plan.absent.push_back(false);
    sum.sources.push_back(rank);
    sum.destinations.push_back(rank);
  }
  plan.parts.push_back({{sum}});
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const auto count = static_cast<std::uint32_t>(chunk + 1 == chunks ? last : kMostElements);
    plan.chunks.push_back({chunk * kMostElements, chunk * kMostElements, 0, count, 1, 0});
  }
  plan.buckets.push_back({dtype, static_cast<double>(ranks), 0, chunks});
  return plan;
}

TEST_P(Reduce, gives_the_bits_of_the_cpu_engine_on_whole_chunks) {
  const Plan plan = full_chunks(GetParam(), 3, 9, 777);
  expect_equal(on_device(plan), OnHost(plan).run(), "whole chunks");
}

TEST_P(Reduce, takes_other_powers_in_a_second_pass) {
  Plan plan = full_chunks(GetParam(), 2, 2, 1'000);
  plan.p = 3;
  const Outcome ours = on_device(plan);
  const Outcome engines = OnHost(plan).run();
  EXPECT_EQ(ours.blocks[0].bytes, engines.blocks[0].bytes);
  for (std::size_t chunk = 0; chunk < engines.chunks.size(); ++chunk) {
    EXPECT_NEAR(ours.chunks[chunk].high / engines.chunks[chunk].high, 1, 1e-13);
  }
}

TEST_P(Reduce, takes_sums_that_left_the_range_again) {
  Plan plan = full_chunks(GetParam(), 1, 2, 100);
  const Outcome engines = OnHost(plan).run();
  const std::vector<double> scales{0, 0x1p-10};
  DeviceMemory memory(plan.blocks[0].bytes.size());
  memory.upload(engines.blocks[0].bytes.data(), engines.blocks[0].bytes.size());
  const ReduceTable table(1, plan.parts, plan.chunks, plan.buckets);
  DeviceMemory image(table.image().size());
  image.upload(table.image().data(), table.image().size());
  const DeviceMemory addresses = uploaded(std::vector<std::uint64_t>{reinterpret_cast<std::uint64_t>(memory.get())});
  ReducedChunk untouched;
  untouched.high = 42;
  const DeviceMemory chunks = uploaded(std::vector<ReducedChunk>{untouched, untouched});
  const DeviceMemory device_scales = uploaded(scales);
  ReduceMemory of;
  of.image = image.get();
  of.addresses = reinterpret_cast<const std::uint64_t*>(addresses.get());
  of.chunks = reinterpret_cast<ReducedChunk*>(chunks.get());
  must(sum_powers(table, {0, 2, false}, reinterpret_cast<const double*>(device_scales.get()), of, nullptr), "powers");
  const std::vector<ReducedChunk> found = downloaded<ReducedChunk>(chunks, 2);
  const device::DoubleDouble expected = device::power_sum(
      plan_dtype(GetParam()), engines.blocks[0].bytes.data() + kMostElements * size_of(GetParam()), 100, 2, scales[1]
  );
  EXPECT_EQ(found[0].high, 42) << "scale 0 leaves a chunk alone";
  EXPECT_EQ(found[1].high, expected.high);
  EXPECT_EQ(found[1].low, expected.low);
}

TEST_P(Reduce, leaves_a_sum_alone_that_nothing_changes) {
  Plan plan = full_chunks(GetParam(), 1, 1, 500);
  const std::size_t width = size_of(GetParam());
  for (std::size_t i = 0; i < width; ++i) {
    plan.blocks[0].bytes[i] = std::byte{0xff};  // a NaN that is not the canonical one
  }
  const Outcome ours = on_device(plan);
  EXPECT_EQ(ours.blocks[0].bytes, plan.blocks[0].bytes);
  EXPECT_EQ(ours.chunks[0].nan, 1U);
  EXPECT_EQ(ours.nonfinite, std::vector<std::uint64_t>{1});
}

TEST(ReduceTableTest, names_what_does_not_fit) {
  const auto message = [](std::uint32_t places, ReducePart part, ReduceChunk chunk, ReduceBucket bucket) {
    try {
      const ReduceTable table(places, std::vector{std::move(part)}, std::vector{chunk}, std::vector{bucket});
      return std::string("accepted");
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
  };
  const ReducePart good{{{{0}, {1}}}};
  const ReduceChunk chunk{0, 0, 0, 4, 1, 0};
  const ReduceBucket bucket{DType::Float32, 1, 0, 1};
  EXPECT_EQ(message(2, good, chunk, bucket), "accepted");
  EXPECT_EQ(message(1, good, chunk, bucket), "parts[0].sums[0].destinations names place 1, there are 1");
  EXPECT_EQ(message(2, {{{{}, {1}}}}, chunk, bucket), "parts[0].sums[0].sources is empty");
  EXPECT_EQ(message(2, good, {0, 0, 0, 4, 1, 1}, bucket), "chunks[0].part is 1, there are 1 parts");
  EXPECT_EQ(message(2, good, {0, 0, 0, 0, 1, 0}, bucket), "chunks[0].run is 0");
  EXPECT_EQ(message(2, good, {0, 0, 0, 4, 0, 0}, bucket), "chunks[0].runs is 0");
  EXPECT_EQ(message(2, good, {0, 0, 3, 4, 2, 0}, bucket), "chunks[0].distance is 3: runs would overlap");
  EXPECT_EQ(
      message(2, good, {0, 0, 1U << 20, 1U << 20, 1U << 20, 0}, bucket),
      "chunks[0] has 1099511627776 elements: cut it smaller"
  );
  EXPECT_EQ(message(2, good, {~std::uint64_t{0}, 0, 0, 4, 1, 0}, bucket), "chunks[0] lies beyond what memory can hold");
  EXPECT_EQ(message(2, good, chunk, {DType::Float32, 1, 0, 2}), "buckets[0] has chunks 0 to 2, there are 1");
  EXPECT_EQ(
      message(2, good, chunk, {DType::Float32, 1e-60, 0, 1}),
      "buckets[0].divisor is 1e-60, it must be positive and finite in the type of the division"
  );
  EXPECT_EQ(message(2, good, chunk, {DType::Float64, 1e-60, 0, 1}), "accepted");
}

}  // namespace
}  // namespace gradsync::kernels
