// Random jobs over two to five nodes: real lanes with threads of their own, wires in between, and what plain loops over
// all ranks leave in every byte of memory.

#include "unit/device/random_job.hpp"
#include "unit/device/transfer/node_world.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace gradsync::device {
namespace {

NodeOfRank random_nodes(std::size_t ranks, std::mt19937_64& random) {
  const std::size_t nodes = std::min<std::size_t>(2 + random() % 4, ranks);
  NodeOfRank node_of_rank;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    node_of_rank.push_back(static_cast<plan::TransferNode>(rank < nodes ? rank : random() % nodes));
  }
  std::ranges::shuffle(node_of_rank, random);
  return node_of_rank;
}

NodeWorldOptions random_options(std::mt19937_64& random, bool sockets) {
  NodeWorldOptions options;
  options.sockets = sockets;
  options.threads = 1 + static_cast<int>(random() % 3);
  options.transfer.block_bytes = std::uint64_t{64} << random() % 12;
  options.transfer.staging_bytes = std::uint64_t{16'384} << random() % 3 * 4;
  options.transfer.partial_sums = random() % 4 == 0 ? plan::PartialSums::BFloat16 : plan::PartialSums::Exact;
  return options;
}

/// How much of what was tested: where there is little of it, little is.
struct Seen {
  int worlds = 0;
  int travelled = 0;
  int absent = 0;
  int missing = 0;
  int uncounted = 0;  ///< parts whose first sum has no gradient
  int compared = 0;   ///< parts of which nodes had unlike copies
};

using RanksOfTensors = std::map<std::uint32_t, std::set<std::int64_t>>;

bool is_within(const RanksOfTensors& some, const RanksOfTensors& all) {
  return std::ranges::all_of(some, [&](const auto& each) {
    const auto found = all.find(each.first);
    return found != all.end() && std::ranges::includes(found->second, each.second);
  });
}

/// Rows that are read because of a sum without a gradient show what else differs, also where bits are not compared.
void expect_divergence(const NodesSaid& said, const ShardedOracle& oracle, bool compares) {
  if (compares) {
    EXPECT_EQ(said.divergence, oracle.divergence);
  } else {
    EXPECT_TRUE(is_within(oracle.without_gradient, said.divergence) && is_within(said.divergence, oracle.divergence));
  }
}

void expect_step_of_nodes(NodeWorld& world, Tag tag, const UnusedSet& unused, Seen& seen) {
  ShardedOracle oracle(world.job, unused);
  const NodesSaid said = world.step(tag, unused);
  ASSERT_TRUE(said.failed.empty()) << said.failed.front().message;
  seen.absent += said.absent.empty() ? 0 : 1;
  seen.missing += said.missing.empty() ? 0 : 1;
  EXPECT_EQ(said.absent, oracle.absent);
  EXPECT_NEAR(said.norm, oracle.norm(), 1e-12 * oracle.norm());
  EXPECT_EQ(said.cells.counted_elements, oracle.counted_elements);
  for (const auto& [tensor, ranks] : said.missing) {
    EXPECT_TRUE(std::ranges::includes(oracle.missing[tensor], ranks)) << "tensor " << tensor;
  }
  expect_divergence(said, oracle, world.compares);
  seen.uncounted += said.uncounted;
  seen.compared += said.boxes_read - said.uncounted;
  EXPECT_TRUE(said.nonfinite.empty());
  oracle.multiply(said.outcomes);
  EXPECT_TRUE(world.memory() == oracle.arenas) << "memory";
}

/// Half of the worlds over sockets, so that they run beside each other.
class RandomNodes : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Wires, RandomNodes, testing::Bool());

TEST_P(RandomNodes, leave_in_every_byte_what_one_lane_leaves) {
  Seen seen;
  for (std::uint64_t seed = GetParam() ? 1000 : 1; seen.worlds < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomJob random(seed);
    ShardedJob job = random.make();
    if (job.layout.world_size == 1) {
      continue;
    }
    job.load();
    const auto ranks = static_cast<std::size_t>(job.layout.world_size);
    NodeWorld world(job, random_nodes(ranks, random.random()), random_options(random.random(), GetParam()));
    ++seen.worlds;
    seen.travelled += world.links().empty() ? 0 : 1;
    for (Tag tag = 1; tag <= 3; ++tag) {
      job.fill(random.random());
      world.max_norm = tag == 1 ? std::optional<double>() : 0.75;
      world.compares = random.random()() % 4 != 0;
      expect_step_of_nodes(world, tag, tag == 3 ? UnusedSet() : random.unused(job), seen);
    }
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(seen.travelled, 60);
  EXPECT_GT(seen.absent, 10);
  EXPECT_GT(seen.missing, 5);
  EXPECT_GT(seen.uncounted, 3);
  EXPECT_GT(seen.compared, 20);
}

double unit_of(plan::DType dtype) {
  switch (dtype) {
    case plan::DType::Float64:
      return 0x1p-53;
    case plan::DType::Float32:
      return 0x1p-24;
    case plan::DType::BFloat16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}

void fill_with_fractions(ShardedJob& job, std::mt19937_64& random) {
  job.for_each_source([&](std::uint32_t rank, std::uint32_t memory, std::uint64_t elements) {
    for (std::uint64_t i = 0; i < elements; ++i) {
      job.set(rank, memory, i, (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * 4);
    }
  });
}

/// How far any order of additions of values below 2 may be from their sum, where it is rounded to 16 bits as well.
double bound_of(const ShardedJob& job, std::uint32_t memory, std::size_t terms) {
  const plan::DType dtype = job.dtype_of(memory);
  const double sum = dtype == plan::DType::Float64 ? 0x1p-53 : 0x1p-24;
  const double size = 2.0 * static_cast<double>(terms) / job.layout.buckets[job.layout.tensors[memory].bucket].divisor;
  return 1.1 * size * (static_cast<double>(terms + 1) * sum + unit_of(dtype)) + 0x1p-24;
}

void expect_equal_destinations(const ShardedJob& job, const std::vector<std::vector<std::byte>>& memory) {
  for (const LanePart& part : job.layout.parts) {
    for (const LaneSum& sum : job.layout.sums[part.sums]) {
      const auto bytes_of = [&](const LaneMember& member) {
        const std::uint32_t of = part.tensor + member.copy;
        const std::byte* begin = memory[member.rank].data() + job.arena(member.rank).output[of];
        return std::vector<std::byte>(begin, begin + part.elements * plan::size_of(job.dtype_of(of)));
      };
      for (const LaneMember& destination : sum.destinations) {
        if (part.elements != 0) {
          EXPECT_TRUE(bytes_of(destination) == bytes_of(sum.destinations.front())) << "tensor " << part.tensor;
        }
      }
    }
  }
}

void expect_near_plain_sums(const ShardedJob& job, const std::vector<std::vector<std::byte>>& memory) {
  const ShardedOracle oracle(job, {});
  for (const LanePart& part : job.layout.parts) {
    for (const LaneSum& sum : job.layout.sums[part.sums]) {
      for (const LaneMember& destination : sum.destinations) {
        const std::uint32_t of = part.tensor + destination.copy;
        const std::uint64_t offset = job.arena(destination.rank).output[of];
        const double bound = bound_of(job, of, sum.sources.size());
        for (std::uint64_t i = 0; i < part.elements; ++i) {
          const double plain = job.read(oracle.arenas[destination.rank], offset, of, i);
          ASSERT_NEAR(job.read(memory[destination.rank], offset, of, i), plain, bound) << "tensor " << of;
        }
      }
    }
  }
}

TEST_P(RandomNodes, leave_equal_bits_on_every_destination_whatever_comes_first) {
  int compared = 0;
  for (std::uint64_t seed = GetParam() ? 3000 : 2000; compared < 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomJob random(seed);
    ShardedJob job = random.make();
    if (job.layout.world_size == 1) {
      continue;
    }
    job.load();
    ++compared;
    fill_with_fractions(job, random.random());
    const auto ranks = static_cast<std::size_t>(job.layout.world_size);
    const NodeOfRank node_of_rank = random_nodes(ranks, random.random());
    NodeWorldOptions options = random_options(random.random(), GetParam());
    options.transfer.partial_sums = plan::PartialSums::Exact;
    NodeWorld world(job, node_of_rank, options);
    options.threads = 4 - options.threads;
    options.sockets = !options.sockets;
    NodeWorld other(job, node_of_rank, options);
    const NodesSaid said = world.step(1);
    expect_equal_destinations(job, world.memory());
    expect_near_plain_sums(job, world.memory());
    const NodesSaid again = other.step(1);
    EXPECT_TRUE(world.memory() == other.memory()) << "bits depend on threads or on what came first";
    EXPECT_EQ(std::memcmp(&said.norm, &again.norm, sizeof(double)), 0);
    EXPECT_EQ(said.cells.counted_elements, again.cells.counted_elements);
    if (HasFailure()) {
      return;
    }
  }
}

/// Two ranks on each node, and one tensor that all of them sum.
class PartialSumsOf : public testing::TestWithParam<plan::TransferNode> {
 protected:
  static constexpr std::uint64_t kElements = 1000;  ///< a block for each owner

  static ShardedJob job_of(plan::DType dtype) {
    const std::uint32_t ranks = 2 * GetParam();
    ShardedJob job(ranks);
    job.add_bucket(dtype, ranks);
    std::vector<std::uint32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0U);
    job.add(replicated({kElements}, {all}));
    job.load();
    std::mt19937_64 random(11);
    fill_with_fractions(job, random);
    return job;
  }

  static NodeOfRank nodes() {
    NodeOfRank nodes;
    for (plan::TransferNode node = 0; node < GetParam(); ++node) {
      nodes.insert(nodes.end(), 2, node);
    }
    return nodes;
  }

  static NodeWorldOptions options_of(plan::PartialSums sums) {
    NodeWorldOptions options;
    options.transfer.partial_sums = sums;
    return options;
  }

  static std::uint64_t bytes_of(plan::DType dtype, plan::PartialSums sums) {
    ShardedJob job = job_of(dtype);
    NodeWorld world(job, nodes(), options_of(sums));
    world.write();
    std::uint64_t bytes = 0;
    for (plan::TransferNode node = 0; node < GetParam(); ++node) {
      world.submit(node, world.reduction(node, 1, 0));
    }
    for (plan::TransferNode node = 0; node < GetParam(); ++node) {
      for (const LinkUse& link : world.expect<Reduced>(node).links) {
        bytes += link.sent_bytes;
      }
    }
    return bytes;
  }
};

INSTANTIATE_TEST_SUITE_P(Nodes, PartialSumsOf, testing::Values(2, 3, 4, 5, 8));

TEST_P(PartialSumsOf, nodes_in_bfloat16_take_half_the_bytes) {
  const std::uint64_t partials = kElements * (GetParam() - 1);
  for (const plan::DType dtype : {plan::DType::Float32, plan::DType::Float16, plan::DType::BFloat16}) {
    const std::uint64_t exact = bytes_of(dtype, plan::PartialSums::Exact);
    EXPECT_EQ(bytes_of(dtype, plan::PartialSums::BFloat16), exact - 2 * partials) << plan::name_of(dtype);
    EXPECT_GT(exact, (4 + plan::size_of(dtype)) * partials) << "beside them results travel, and flags";
  }
  const std::uint64_t wide = bytes_of(plan::DType::Float64, plan::PartialSums::Exact);
  EXPECT_EQ(bytes_of(plan::DType::Float64, plan::PartialSums::BFloat16), wide);
}

/// The bound is that of bucket_transfer.hpp, with what a float32 result and the sums of a node lose.
TEST_P(PartialSumsOf, nodes_in_bfloat16_move_a_sum_by_no_more_than_their_bound) {
  ShardedJob job = job_of(plan::DType::Float32);
  const plan::TransferNode count = GetParam();
  const NodeWorldOptions options = options_of(plan::PartialSums::BFloat16);
  NodeWorld world(job, nodes(), options);
  EXPECT_TRUE(world.step(1).failed.empty());
  expect_equal_destinations(job, world.memory());
  double largest = 0;
  const plan::BucketTransfer program = transfers_of(job.layout, nodes(), options.transfer)[0];
  for (const plan::TransferBlock& block : program.blocks) {
    const plan::TransferPiece& piece = program.pieces_of(block)[0];
    for (std::uint64_t i = piece.first; i < piece.first + piece.elements; ++i) {
      double sum = 0;
      double all = 0;
      double rounded = 0;
      for (plan::TransferNode node = 0; node < count; ++node) {
        const double partial = job.input(2 * node, 0, i) + job.input(2 * node + 1, 0, i);
        sum += partial;
        all += std::abs(partial);
        rounded += node == block.owner ? 0 : std::abs(partial);
      }
      const double bound = 0x1p-8 * rounded + count * 0x1p-134;
      const double additions = count * 0x1p-24 * all * (1 + 0x1p-7);
      const double is = double{world.arenas[1].at<float>(job.arena(1).output[0])[i]} * 2 * count;
      const double error = std::abs(is - sum);
      ASSERT_LE(error, bound + additions + 3 * 0x1p-24 * all) << i;
      largest = std::max(largest, error / bound);
    }
  }
  EXPECT_GT(largest, 0.2) << "nothing was rounded";
}

}  // namespace
}  // namespace gradsync::device
