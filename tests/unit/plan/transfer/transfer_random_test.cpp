// Random jobs whose transfer programs are executed, against plain sums over all ranks.

#include "unit/plan/transfer/exchange.hpp"
#include "unit/plan/transfer/random_transfer_world.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <set>

namespace gradsync::plan {
namespace {

using Nodes = std::set<TransferNode>;

Nodes nodes_with(const std::vector<SumMember>& members, const TransferWorld& world) {
  Nodes nodes;
  for (const SumMember& member : members) {
    nodes.insert(world.node_of_rank[member.rank]);
  }
  return nodes;
}

/// Calls `take` with tensor, part and number of each sum that has elements.
template <typename Take>
void for_each_sum(const TransferWorld& world, Take take) {
  for (std::uint32_t tensor = 0; tensor < world.plan.tensors.size(); ++tensor) {
    for (std::uint32_t part = 0; part < world.plan.tensors[tensor].parts.size(); ++part) {
      const std::size_t sums = world.plan.sums[world.part(tensor, part).sums].size();
      for (std::uint32_t sum = 0; world.part(tensor, part).elements != 0 && sum < sums; ++sum) {
        take(tensor, part, sum);
      }
    }
  }
}

struct Expected {
  double bits = 0;   ///< by additions in the order of nodes
  double plain = 0;  ///< of the sum of all, divided
  double bound = 0;  ///< how far from it any order of additions may be
};

/// `by_node`: the contributors of a sum.
Expected expected_value(
    const TransferWorld& world,
    std::uint32_t tensor,
    const PlannedPart& part,
    const std::vector<std::vector<Memory>>& by_node,
    std::uint64_t element,
    bool rounded_partials
) {
  const Bucket& bucket = world.plan.buckets[world.plan.tensors[tensor].bucket];
  const bool wide = bucket.dtype == DType::Float64;
  const DType sum_type = wide ? DType::Float64 : DType::Float32;
  std::optional<double> all;
  long double plain = 0;
  long double magnitude = 0;
  std::size_t terms = 0;
  for (const std::vector<Memory>& sources : by_node) {
    std::optional<double> partial;
    for (const Memory& source : sources) {
      const double value = world.input(source, part, element);
      partial = partial ? added(sum_type, *partial, value) : value;
      plain += value;
      magnitude += std::abs(value);
      ++terms;
    }
    all = !partial ? all : all ? added(sum_type, *all, *partial) : partial;
  }
  const double unit = wide ? 0x1p-53 : 0x1p-24;
  const double rounding = bucket.dtype == DType::BFloat16 ? 0x1p-8 : bucket.dtype == DType::Float16 ? 0x1p-11 : unit;
  Expected made;
  made.bits = all ? rounded_to(bucket.dtype, divided(sum_type, *all, bucket.divisor)) : 0;
  made.plain = static_cast<double>(plain / bucket.divisor);
  const auto size = static_cast<double>(magnitude / bucket.divisor);
  const double partials = rounded_partials && !wide ? 0x1p-8 : 0;
  made.bound = 1.01 * size * (static_cast<double>(terms + 1) * unit + partials + rounding) + 0x1p-24 * (wide ? 0 : 1);
  return made;
}

void expect_results(const RandomTransferWorld& job, const Exchange& exchange, bool rounded_partials) {
  const TransferWorld& world = job.world;
  std::size_t written = 0;
  std::set<std::uint32_t> present;
  for_each_sum(world, [&](std::uint32_t tensor, std::uint32_t part, std::uint32_t sum) {
    if (!world.contributors(tensor, world.sum(tensor, part, sum)).empty()) {
      present.insert(tensor);
    }
  });
  for_each_sum(world, [&](std::uint32_t tensor, std::uint32_t part, std::uint32_t number) {
    const RankSum& sum = world.sum(tensor, part, number);
    if (!present.contains(tensor)) {
      return;
    }
    const std::vector<double>* first = nullptr;
    for (const SumMember& destination : sum.destinations) {
      ++written;
      const auto found = exchange.outputs.find({world.memory(tensor, destination), tensor, part});
      ASSERT_NE(found, exchange.outputs.end())
          << "tensor " << tensor << " was not written on rank " << destination.rank;
      ASSERT_EQ(found->second.size(), world.part(tensor, part).elements);
      first = first == nullptr ? &found->second : first;
      for (std::uint64_t i = 0; i < first->size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint64_t>((*first)[i]), std::bit_cast<std::uint64_t>(found->second[i]))
            << "destinations of one sum differ";
      }
    }
    std::vector<std::vector<Memory>> by_node;
    for (const TransferNode node : nodes_with(sum.sources, world)) {
      by_node.push_back(world.contributors(tensor, sum, node));
    }
    for (std::uint64_t i = 0; i < first->size(); ++i) {
      const Expected expected = expected_value(world, tensor, world.part(tensor, part), by_node, i, rounded_partials);
      if (job.integers || !rounded_partials) {
        ASSERT_EQ(std::bit_cast<std::uint64_t>((*first)[i]), std::bit_cast<std::uint64_t>(expected.bits))
            << (*first)[i] << " for " << expected.bits << ", element " << i << " of tensor " << tensor;
      }
      ASSERT_NEAR((*first)[i], expected.plain, expected.bound);
    }
  });
  EXPECT_EQ(exchange.outputs.size(), written) << "an absent tensor was written";
}

/// The bytes that each node may send: its part of each set of nodes that sum, and a unit at most for what does not
/// divide.
void expect_few_bytes(const TransferWorld& world, const Exchange& exchange) {
  std::map<std::tuple<std::uint32_t, Nodes, Nodes>, std::uint64_t> elements;
  for_each_sum(world, [&](std::uint32_t tensor, std::uint32_t part, std::uint32_t number) {
    const RankSum& sum = world.sum(tensor, part, number);
    const Nodes sources = nodes_with(sum.sources, world);
    const Nodes destinations = nodes_with(sum.destinations, world);
    if (sources.size() > 1) {
      elements[{world.plan.tensors[tensor].bucket, sources, destinations}] += world.part(tensor, part).elements;
    }
  });
  std::vector<double> most(world.nodes(), 0);
  for (const auto& [key, count] : elements) {
    const auto& [bucket, sources, destinations] = key;
    const auto partial = static_cast<double>(size_of(exchange.programs[bucket].partial));
    const auto result = static_cast<double>(size_of(exchange.programs[bucket].result));
    const auto owners = static_cast<double>(destinations.size());
    const auto all = static_cast<double>(count);
    for (const TransferNode node : sources) {
      most[node] += destinations.contains(node) ? all * (partial + result) * (owners - 1) / owners +
                                                      32 * std::abs(result * (owners - 1) - partial)
                                                : all * partial;
    }
  }
  for (TransferNode node = 0; node < world.nodes(); ++node) {
    const SentBytes& sent = exchange.sent[node];
    EXPECT_LE(static_cast<double>(sent.values), most[node] + 1e-6) << "node " << node;
    EXPECT_LE(sent.flags, sent.messages + sent.pieces / 8) << "node " << node;
  }
}

/// Each element of a sum that travels goes once from each source node but its owner, and once from there to each other
/// destination node.
void expect_nothing_twice(const TransferWorld& world, const Exchange& exchange) {
  using Sum = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
  std::map<Sum, std::vector<const std::pair<const Trip, std::vector<int>>*>> trips;
  for (const auto& trip : exchange.trips) {
    trips[{trip.first.tensor, trip.first.part, trip.first.sum}].push_back(&trip);
  }
  std::size_t travelling = 0;
  for_each_sum(world, [&](std::uint32_t tensor, std::uint32_t part, std::uint32_t number) {
    const RankSum& sum = world.sum(tensor, part, number);
    const Nodes sources = nodes_with(sum.sources, world);
    const Nodes destinations = nodes_with(sum.destinations, world);
    travelling += sources.size() > 1 ? 1 : 0;
    std::vector<int> before;  // of the element before: most go the same ways
    for (std::uint64_t i = 0; sources.size() > 1 && i < world.part(tensor, part).elements; ++i) {
      std::vector<int> times;
      for (const auto* trip : trips[{tensor, part, number}]) {
        times.push_back(trip->second[i]);
      }
      if (times == before) {
        continue;
      }
      before = times;
      std::set<std::pair<TransferNode, TransferNode>> partials;
      std::set<std::pair<TransferNode, TransferNode>> results;
      for (const auto* trip : trips[{tensor, part, number}]) {
        ASSERT_LE(trip->second[i], 1) << "an element was sent twice";
        if (trip->second[i] == 1) {
          (trip->first.payload == Payload::Partial ? partials : results).emplace(trip->first.from, trip->first.to);
        }
      }
      ASSERT_FALSE(partials.empty());
      const TransferNode owner = partials.begin()->second;
      ASSERT_TRUE(destinations.contains(owner));
      std::set<std::pair<TransferNode, TransferNode>> from_sources;
      std::set<std::pair<TransferNode, TransferNode>> to_destinations;
      for (const TransferNode node : sources) {
        node == owner ? void() : void(from_sources.emplace(node, owner));
      }
      for (const TransferNode node : destinations) {
        node == owner ? void() : void(to_destinations.emplace(owner, node));
      }
      ASSERT_EQ(partials, from_sources);
      ASSERT_EQ(results, to_destinations);
    }
  });
  EXPECT_EQ(trips.size(), travelling) << "a sum travelled that stays on one node";
}

bool equal_bits(const Outputs& a, const Outputs& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::equal(x.second, y.second, [](double v, double w) {
             return std::bit_cast<std::uint64_t>(v) == std::bit_cast<std::uint64_t>(w);
           });
  });
}

/// How many worlds, programs or streams had what: where there is little of it, little is tested.
struct Seen {
  std::size_t travelled = 0;
  std::size_t scattered = 0;    ///< one node gets the result
  std::size_t all_reduced = 0;  ///< all that bring something get the result, and there are at least three
  std::size_t mixed = 0;        ///< some of them get it
  std::size_t many_blocks = 0;
  std::size_t empty = 0;  ///< worlds in which something travels and a rank did not use a tensor
  std::size_t tied = 0;   ///< a piece is summed with the tied copies of its tensor

  void note(const RandomTransferWorld& job, const Exchange& exchange) {
    travelled += exchange.trips.empty() ? 0 : 1;
    empty += !exchange.trips.empty() && !job.world.unused.empty() ? 1 : 0;
    for (const BucketTransfer& program : exchange.programs) {
      std::size_t owners = 0;
      for (const TransferStream& stream : program.streams) {
        owners += stream.destinations.size();
        scattered += stream.destinations.size() == 1 ? 1 : 0;
        all_reduced += stream.sources.size() > 2 && stream.destinations == stream.sources ? 1 : 0;
        mixed += stream.destinations.size() > 1 && stream.destinations != stream.sources ? 1 : 0;
      }
      many_blocks += program.blocks.size() > 2 * owners ? 1 : 0;
      const auto copied = [&](const TransferPiece& piece) {
        return !job.world.plan.tensors[piece.tensor].copies.empty();
      };
      tied += std::ranges::any_of(program.pieces, copied) ? 1 : 0;
    }
  }
};

/// A quarter of the 2,000 worlds, so that quarters run beside each other.
class RandomTransfers : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Worlds, RandomTransfers, testing::Values(0U, 500U, 1000U, 1500U));

TEST_P(RandomTransfers, leave_the_sum_of_all_ranks_on_every_node) {
  Seen seen;
  for (std::uint64_t seed = GetParam(); seed < GetParam() + 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomTransferWorld job(seed);
    TransferOptions options;
    options.partial_sums = job.below(4) == 0 ? PartialSums::BFloat16 : PartialSums::Exact;
    const bool rounded = options.partial_sums == PartialSums::BFloat16;
    options.block_bytes = std::uint64_t{64} << job.below(8);
    options.staging_bytes = std::uint64_t{8192} << job.below(3) * 4;
    Exchange exchange(job.world, options, seed);
    exchange.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    expect_results(job, exchange, rounded);
    expect_few_bytes(job.world, exchange);
    expect_nothing_twice(job.world, exchange);
    EXPECT_LE(exchange.most_staged, options.staging_bytes);
    ASSERT_FALSE(HasFailure());
    Exchange other(job.world, options, ~seed);
    other.run();
    EXPECT_TRUE(equal_bits(exchange.outputs, other.outputs)) << "bits depend on which message came first";
    ASSERT_FALSE(HasFailure());
    seen.note(job, exchange);
  }
  EXPECT_GT(seen.travelled, 400U);
  EXPECT_GT(seen.scattered, 300U);
  EXPECT_GT(seen.all_reduced, 300U);
  EXPECT_GT(seen.mixed, 200U);
  EXPECT_GT(seen.many_blocks, 100U);
  EXPECT_GT(seen.empty, 100U);
  EXPECT_GT(seen.tied, 50U);
}

}  // namespace
}  // namespace gradsync::plan
