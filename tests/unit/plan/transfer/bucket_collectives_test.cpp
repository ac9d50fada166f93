// The collectives of random transfer programs: what all members must agree on, and that nothing is left out.

#include "plan/transfer/bucket_collectives.hpp"

#include "unit/plan/transfer/random_transfer_world.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace gradsync::plan {
namespace {

using Kind = TransferCollective::Kind;

/// What was tested: where there is little of it, little is.
struct SeenCollectives {
  int scattered = 0;
  int reduced = 0;
  int together = 0;
  int empty_places = 0;
};

void expect_block_fits(
    const BucketTransfer& transfer, const TransferCollective& one, std::size_t place, std::uint64_t most_together
) {
  const TransferBlock& block = transfer.blocks[one.blocks[place]];
  const TransferStream& stream = transfer.streams[block.stream];
  EXPECT_EQ(stream.sources, one.members);
  const std::uint64_t end = place + 1 < one.begins.size() ? one.begins[place + 1] : one.staged();
  EXPECT_GE(end, one.begins[place] + block.elements + block.pieces);
  if (one.kind == Kind::ReduceScatter) {
    EXPECT_EQ(stream.destinations, std::vector<TransferNode>(1, one.members[place]));
    EXPECT_GE(one.elements, block.elements + block.pieces);
  } else {
    EXPECT_EQ(one.begins[place] % kTransferUnit, 0U);
    EXPECT_TRUE(one.blocks.size() == 1 || one.elements <= most_together);
  }
}

void expect_collectives(const BucketTransfer& transfer, std::uint64_t most_together, SeenCollectives& seen) {
  std::vector<std::uint32_t> blocks;
  for (const TransferCollective& one : collectives_of(transfer, most_together)) {
    const bool scatters = one.kind == Kind::ReduceScatter;
    EXPECT_TRUE(!scatters || one.blocks.size() == one.members.size());
    EXPECT_EQ(one.begins.size(), one.blocks.size());
    (scatters ? seen.scattered : seen.reduced) += 1;
    seen.together += !scatters && one.blocks.size() > 1 ? 1 : 0;
    std::uint64_t most = 0;
    std::size_t filled = 0;
    for (std::size_t place = 0; place < one.blocks.size(); ++place) {
      if (one.blocks[place] == kNoBlock) {
        ++seen.empty_places;
        continue;
      }
      ++filled;
      expect_block_fits(transfer, one, place, most_together);
      const TransferBlock& block = transfer.blocks[one.blocks[place]];
      most = std::max(most, block.elements + block.pieces);
      blocks.push_back(one.blocks[place]);
    }
    EXPECT_TRUE(!scatters || one.elements == most);
    EXPECT_GT(filled, scatters ? 1U : 0U);
  }
  std::ranges::sort(blocks);
  ASSERT_EQ(blocks.size(), transfer.blocks.size());
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    EXPECT_EQ(blocks[block], block) << "each block is in one collective";
  }
}

TEST(BucketCollectives, have_every_block_once_in_the_place_of_who_gets_it) {
  SeenCollectives seen;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomTransferWorld random(seed);
    for (std::uint32_t bucket = 0; bucket < random.world.plan.buckets.size(); ++bucket) {
      TransferOptions options;
      options.block_bytes = 256;
      const std::uint64_t most_together = seed % 2 == 0 ? 200 : kMostTogether;
      expect_collectives(
          make_bucket_transfer(random.world.plan, bucket, random.world.node_of_rank, options), most_together, seen
      );
    }
  }
  EXPECT_GT(seen.scattered, 100);
  EXPECT_GT(seen.reduced, 100);
  EXPECT_GT(seen.together, 50);
  EXPECT_GT(seen.empty_places, 10);
}

/// Blocks of 32 elements each, of sums of nodes 0 to 2 that one of them gets.
TEST(BucketCollectives, scatter_as_many_blocks_as_there_are_members_and_reduce_one_that_is_alone) {
  BucketTransfer transfer;
  transfer.streams = {{{0, 1, 2}, {0}, 64}, {{0, 1, 2}, {2}, 96}, {{0, 1, 2}, {0, 1}, 32}};
  transfer.blocks = {
      {0, 0, 0, 1, 32}, {1, 2, 1, 2, 32}, {2, 0, 3, 1, 32}, {0, 0, 4, 1, 32}, {1, 2, 5, 1, 32}, {1, 2, 6, 1, 32}};
  const std::vector<TransferCollective> made = collectives_of(transfer);
  ASSERT_EQ(made.size(), 4U);
  EXPECT_EQ(made[0].blocks, (std::vector<std::uint32_t>{0, kNoBlock, 1}));
  EXPECT_EQ(made[0].elements, 34U) << "the block with two pieces";
  EXPECT_EQ(made[1].kind, Kind::AllReduce);
  EXPECT_EQ(made[1].blocks, std::vector<std::uint32_t>{2});
  EXPECT_EQ(made[2].blocks, (std::vector<std::uint32_t>{3, kNoBlock, 4}));
  EXPECT_EQ(made[3].kind, Kind::AllReduce);
  EXPECT_EQ(made[3].blocks, std::vector<std::uint32_t>{5});
}

}  // namespace
}  // namespace gradsync::plan
