// What travels between the nodes of small jobs, worked out by hand.

#include "unit/plan/transfer/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

namespace gradsync::plan {

void PrintTo(const TransferPiece& piece, std::ostream* out) {
  *out << "tensor " << piece.tensor << " part " << piece.part << " sum " << piece.sum << " [" << piece.first << ", +"
       << piece.elements << ")";
}

void PrintTo(const TransferBlock& block, std::ostream* out) {
  *out << "stream " << block.stream << " owner " << block.owner << " pieces " << block.first_piece << "+"
       << block.pieces << ", elements " << block.elements;
}

void PrintTo(const TransferMessage& message, std::ostream* out) {
  *out << "block " << message.block << " peer " << message.peer
       << (message.payload == Payload::Partial ? " partial " : " result ") << message.number << ", " << message.bytes
       << " bytes";
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<TransferNode> kTwoByTwo{0, 0, 1, 1};

Placement scattered(std::vector<std::string> axes) { return {std::move(axes), Partial{ReduceOp::Mean, Shard{0}}}; }

Plan planned(const Mesh& on, const std::vector<TensorDeclaration>& tensors) {
  TransferJob job(on);
  for (const TensorDeclaration& tensor : tensors) {
    EXPECT_TRUE(job.add(tensor));
  }
  return job.plan();
}

std::vector<TransferNode> owners(const BucketTransfer& transfer) {
  std::vector<TransferNode> owners;
  for (const TransferBlock& block : transfer.blocks) {
    owners.push_back(block.owner);
  }
  return owners;
}

std::uint64_t bytes_of(const std::vector<TransferMessage>& messages) {
  std::uint64_t bytes = 0;
  for (const TransferMessage& message : messages) {
    bytes += message.bytes;
  }
  return bytes;
}

// Two nodes own half of a tensor each, in units of 32 elements: of 100 elements the first 64 and the last 36.
TEST(Transfer, an_all_reduce_is_a_range_for_each_node) {
  const Plan plan = planned(mesh({{"dp", 4}}), {tensor("w", {100})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, kTwoByTwo);
  ASSERT_EQ(transfer.streams.size(), 1U);
  EXPECT_THAT(transfer.streams[0].sources, ElementsAre(0, 1));
  EXPECT_THAT(transfer.streams[0].destinations, ElementsAre(0, 1));
  EXPECT_THAT(transfer.blocks, ElementsAre(TransferBlock{0, 0, 0, 1, 64}, TransferBlock{0, 1, 1, 1, 36}));
  EXPECT_THAT(transfer.pieces, ElementsAre(TransferPiece{0, 0, 0, 0, 64}, TransferPiece{0, 0, 0, 64, 36}));
  const NodeTransfer first = transfer_of_node(transfer, 0);
  EXPECT_THAT(
      first.sends,
      ElementsAre(
          TransferMessage{0, 1, Payload::Result, 0, 64 * 4 + 1}, TransferMessage{1, 1, Payload::Partial, 0, 36 * 4 + 1}
      )
  );
  EXPECT_THAT(
      first.receives,
      ElementsAre(
          TransferMessage{0, 1, Payload::Partial, 0, 64 * 4 + 1}, TransferMessage{1, 1, Payload::Result, 0, 36 * 4 + 1}
      )
  );
  EXPECT_EQ(bytes_of(first.sends), 400U + 2) << "2 · 1/2 of 400 bytes, and a byte per message";
  const NodeTransfer second = transfer_of_node(transfer, 1);
  EXPECT_THAT(
      second.sends,
      ElementsAre(
          TransferMessage{0, 0, Payload::Partial, 0, 64 * 4 + 1}, TransferMessage{1, 0, Payload::Result, 0, 36 * 4 + 1}
      )
  );
}

TEST(Transfer, a_reduce_scatter_goes_to_the_node_of_each_part) {
  const Plan plan = planned(mesh({{"dp", 4}}), {tensor("w", {80}, {scattered({"dp"})})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, kTwoByTwo);
  ASSERT_EQ(transfer.streams.size(), 2U);
  EXPECT_THAT(transfer.streams[0].destinations, ElementsAre(0));
  EXPECT_THAT(transfer.streams[1].destinations, ElementsAre(1));
  EXPECT_THAT(transfer.blocks, ElementsAre(TransferBlock{0, 0, 0, 2, 40}, TransferBlock{1, 1, 2, 2, 40}));
  EXPECT_THAT(
      transfer.pieces,
      ElementsAre(
          TransferPiece{0, 0, 0, 0, 20},
          TransferPiece{0, 1, 0, 0, 20},
          TransferPiece{0, 2, 0, 0, 20},
          TransferPiece{0, 3, 0, 0, 20}
      )
  );
  EXPECT_THAT(transfer_of_node(transfer, 0).sends, ElementsAre(TransferMessage{1, 1, Payload::Partial, 0, 40 * 4 + 1}))
      << "half of 320 bytes, and no result";
}

TEST(Transfer, a_node_with_few_parts_sends_what_the_others_hold) {
  const Plan plan = planned(mesh({{"dp", 4}}), {tensor("w", {80}, {scattered({"dp"})})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, std::vector<TransferNode>{0, 0, 0, 1});
  EXPECT_EQ(bytes_of(transfer_of_node(transfer, 0).sends), 20U * 4 + 1);
  EXPECT_EQ(bytes_of(transfer_of_node(transfer, 1).sends), 60U * 4 + 1);
}

TEST(Transfer, shards_of_a_node_that_other_nodes_replicate_are_one_stream) {
  const Mesh on = mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  const Plan plan = planned(on, {tensor("w", {128}, {partial({"dp_replicate"}), scattered({"dp_shard"})})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, kTwoByTwo);
  EXPECT_THAT(transfer.blocks, ElementsAre(TransferBlock{0, 0, 0, 1, 64}, TransferBlock{0, 1, 1, 1, 64}));
  EXPECT_THAT(transfer.pieces, ElementsAre(TransferPiece{0, 0, 0, 0, 64}, TransferPiece{0, 1, 0, 0, 64}));
}

TEST(Transfer, every_sum_of_a_replicated_part_travels) {
  const Mesh on = mesh({{"dp", 2}, {"tp", 2}});
  const Plan plan = planned(on, {tensor("w", {32}, {partial({"dp"}), replicate({"tp"})})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, kTwoByTwo);
  EXPECT_THAT(transfer.pieces, ElementsAre(TransferPiece{0, 0, 0, 0, 32}, TransferPiece{0, 0, 1, 0, 32}));
}

TEST(Transfer, what_is_summed_on_one_node_stays_there) {
  const Mesh on = mesh({{"pp", 2}, {"dp", 2}});
  const Plan plan = planned(
      on,
      {tensor("first", {64}, {only({"pp"}, {0}), partial({"dp"})}),
       tensor("last", {64}, {only({"pp"}, {1}), scattered({"dp"})}),
       tensor("alone", {64}, {replicate({"pp"}), shard({"dp"}, 0)})}
  );
  for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    EXPECT_THAT(make_bucket_transfer(plan, bucket, kTwoByTwo).blocks, IsEmpty());
  }
}

TEST(Transfer, tied_copies_on_two_stages_meet) {
  TensorDeclaration embed = tensor("embed", {64}, {only({"pp"}, {0}), partial({"dp"})});
  TensorDeclaration head = tensor("head", {64}, {only({"pp"}, {1}), partial({"dp"})});
  embed.tied = head.tied = "vocabulary";
  const Plan plan = planned(mesh({{"pp", 2}, {"dp", 2}}), {embed, head});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, kTwoByTwo);
  EXPECT_THAT(transfer.pieces, ElementsAre(TransferPiece{0, 0, 0, 0, 32}, TransferPiece{0, 0, 0, 32, 32}));
}

// A bucket's tensors lie from the last to the first: 10 elements of b, then 60 of a. The cut at 32 is in a.
TEST(Transfer, small_tensors_share_a_message_and_are_cut_anywhere) {
  const Plan plan = planned(mesh({{"dp", 4}}), {tensor("a", {60}), tensor("b", {10})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, kTwoByTwo);
  EXPECT_THAT(
      transfer.pieces,
      ElementsAre(TransferPiece{1, 0, 0, 0, 10}, TransferPiece{0, 0, 0, 0, 22}, TransferPiece{0, 0, 0, 22, 38})
  );
  EXPECT_THAT(transfer.blocks, ElementsAre(TransferBlock{0, 0, 0, 2, 32}, TransferBlock{0, 1, 2, 1, 38}));
}

TEST(Transfer, owners_take_turns_and_blocks_are_of_equal_size) {
  const Plan plan = planned(mesh({{"dp", 3}}), {tensor("w", {3 * 160})});
  TransferOptions options;
  options.block_bytes = 64 * 4;
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, std::vector<TransferNode>{0, 1, 2}, options);
  EXPECT_THAT(owners(transfer), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
  EXPECT_THAT(
      transfer.pieces,
      ElementsAre(
          TransferPiece{0, 0, 0, 0, 32},
          TransferPiece{0, 0, 0, 160, 32},
          TransferPiece{0, 0, 0, 320, 32},
          TransferPiece{0, 0, 0, 32, 64},
          TransferPiece{0, 0, 0, 192, 64},
          TransferPiece{0, 0, 0, 352, 64},
          TransferPiece{0, 0, 0, 96, 64},
          TransferPiece{0, 0, 0, 256, 64},
          TransferPiece{0, 0, 0, 416, 64}
      )
  ) << "five units in three blocks";
}

TEST(Transfer, messages_of_a_link_are_numbered_by_payload) {
  const Plan plan = planned(mesh({{"dp", 2}}), {tensor("w", {256})});
  TransferOptions options;
  options.block_bytes = 64 * 4;
  const std::vector<TransferNode> node_of_rank{0, 1};
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, node_of_rank, options);
  EXPECT_THAT(owners(transfer), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(
      transfer_of_node(transfer, 1).receives,
      ElementsAre(
          TransferMessage{0, 0, Payload::Result, 0, 257},
          TransferMessage{1, 0, Payload::Partial, 0, 257},
          TransferMessage{2, 0, Payload::Result, 1, 257},
          TransferMessage{3, 0, Payload::Partial, 1, 257}
      )
  );
}

TEST(Transfer, a_tiny_bucket_is_owned_by_another_node_each_time) {
  TensorDeclaration wide = tensor("a", {2});
  wide.dtype = DType::Float64;
  const Plan plan = planned(mesh({{"dp", 4}}), {wide, tensor("b", {2})});
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_NE(
      make_bucket_transfer(plan, 0, kTwoByTwo).blocks[0].owner, make_bucket_transfer(plan, 1, kTwoByTwo).blocks[0].owner
  );
}

TEST(Transfer, partial_sums_are_wider_than_results_unless_asked_otherwise) {
  TensorDeclaration half = tensor("h", {64});
  half.dtype = DType::BFloat16;
  const Plan plan = planned(mesh({{"dp", 4}}), {half});
  const BucketTransfer exact = make_bucket_transfer(plan, 0, kTwoByTwo);
  EXPECT_EQ(message_bytes(exact, exact.blocks[0], Payload::Partial), 32U * 4 + 1);
  EXPECT_EQ(message_bytes(exact, exact.blocks[0], Payload::Result), 32U * 2 + 1);
  TransferOptions options;
  options.partial_sums = PartialSums::BFloat16;
  const BucketTransfer rounded = make_bucket_transfer(plan, 0, kTwoByTwo, options);
  EXPECT_EQ(message_bytes(rounded, rounded.blocks[0], Payload::Partial), 32U * 2 + 1);
  EXPECT_EQ(rounded.sum, DType::Float32);
  half.dtype = DType::Float64;
  const BucketTransfer wide = make_bucket_transfer(planned(mesh({{"dp", 4}}), {half}), 0, kTwoByTwo, options);
  EXPECT_EQ(message_bytes(wide, wide.blocks[0], Payload::Partial), 32U * 8 + 1);
  EXPECT_EQ(message_bytes(wide, wide.blocks[0], Payload::Result), 32U * 8 + 1);
}

// Eight nodes: 8 partial sums of 4 bytes and a result are 36 bytes per element, sixteen times in 64 MiB.
TEST(Transfer, blocks_are_smaller_where_more_nodes_bring_partial_sums) {
  const Plan plan = planned(mesh({{"dp", 8}}), {tensor("w", {1 << 23})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, std::vector<TransferNode>{0, 1, 2, 3, 4, 5, 6, 7});
  std::uint64_t most = 0;
  for (const TransferBlock& block : transfer.blocks) {
    most = std::max(most, block.elements);
    EXPECT_EQ(block.pieces, 1U);
  }
  EXPECT_LE(most, (64u << 20) / 16 / 36);
  EXPECT_GT(most, (64u << 20) / 16 / 36 / 2);
}

TEST(Transfer, staging_memory_is_for_what_a_node_sends_and_receives) {
  const Plan plan = planned(mesh({{"dp", 3}}), {tensor("w", {96})});
  const BucketTransfer transfer = make_bucket_transfer(plan, 0, std::vector<TransferNode>{0, 1, 2});
  ASSERT_EQ(transfer.blocks[0].owner, 0U);
  EXPECT_EQ(staging_bytes_of(transfer, transfer.blocks[0], 0), 128U + 2 * 192 + 192)
      << "its own partial sum, two others and the result, whose flags need a line of 64 bytes each";
  EXPECT_EQ(staging_bytes_of(transfer, transfer.blocks[0], 1), 192U + 192);
}

/// Two sums of one tensor over two nodes, tp 0 and tp 1, and the ranks that contributed nothing.
Outputs step_without(const std::set<Memory>& unused) {
  TransferJob job(mesh({{"dp", 2}, {"tp", 2}}));
  EXPECT_TRUE(job.add(tensor("w", {2}, {partial({"dp"}, ReduceOp::Sum), replicate({"tp"})})));
  TransferWorld world;
  world.plan = job.plan();
  world.node_of_rank = kTwoByTwo;
  world.unused = unused;
  world.fill(job, [] { return -0.0; });
  Exchange exchange(world, {}, 1);
  exchange.run();
  return exchange.outputs;
}

TEST(Transfer, a_node_without_a_contribution_changes_no_bit) {
  const Outputs outputs = step_without({{0, 2}});
  ASSERT_EQ(outputs.size(), 4U);
  for (const auto& [output, values] : outputs) {
    EXPECT_TRUE(std::signbit(values[0])) << "rank " << output.memory.second << " got +0.0";
  }
}

TEST(Transfer, a_sum_without_a_contribution_is_zero_where_another_sum_of_the_tensor_has_one) {
  const Outputs outputs = step_without({{0, 1}, {0, 3}});
  ASSERT_EQ(outputs.size(), 4U);
  EXPECT_TRUE(std::signbit(outputs.at({{0, 2}, 0, 0})[0]));
  EXPECT_FALSE(std::signbit(outputs.at({{0, 1}, 0, 0})[0])) << "positive, as on one node";
  EXPECT_EQ(outputs.at({{0, 1}, 0, 0})[0], 0);
}

TEST(Transfer, a_tensor_that_nobody_used_is_not_written) {
  EXPECT_THAT(step_without({{0, 0}, {0, 1}, {0, 2}, {0, 3}}), IsEmpty());
}

}  // namespace
}  // namespace gradsync::plan
