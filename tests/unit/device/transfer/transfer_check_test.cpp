// Layouts over nodes that do not fit are refused, with what is wrong.

#include "unit/device/transfer/node_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

class TransferCheckTest : public testing::Test {
 protected:
  TransferCheckTest() : job_(4) {
    job_.add_bucket(plan::DType::Float32, 1.0);
    job_.add_bucket(plan::DType::BFloat16, 1.0);
    job_.add(replicated({300}, {{0, 1, 2, 3}}));
    ShardedTensor other = replicated({40}, {{0, 1}, {2, 3}});
    other.bucket = 1;
    job_.add(other);
    job_.load();
  }

  /// What is said of the layout of node 0 once it was changed; "": nothing.
  std::string refusal(const std::function<void(LanePlan&)>& change, bool held_by_others = false) {
    plan::TransferOptions options;
    options.block_bytes = 256;
    LanePlan layout = layout_of_node(job_.layout, {0, 0, 1, 1}, 0, options);
    change(layout);
    std::vector<BufferView> views = job_.views();
    for (std::size_t rank = 2; rank < 4 && !held_by_others; ++rank) {
      views[rank] = {};
    }
    try {
      const LoadedPlan loaded(std::move(layout), views, 1);
      return "";
    } catch (const DeviceError& error) {
      return error.what();
    }
  }

  ShardedJob job_;
};

plan::BucketTransfer& first(LanePlan& layout) { return layout.nodes.transfers.own()[0]; }

TEST_F(TransferCheckTest, what_was_planned_fits) {
  EXPECT_EQ(refusal([](LanePlan&) {}), "");
}

TEST_F(TransferCheckTest, ranks_are_where_their_buffers_are) {
  EXPECT_THAT(refusal([](LanePlan&) {}, true), HasSubstr("rank 2 is on node 1, this is node 0, and it has a buffer"));
  EXPECT_THAT(refusal([](LanePlan& layout) { layout.nodes.node = 1; }), HasSubstr("it has a buffer here"));
  EXPECT_THAT(refusal([](LanePlan& layout) { layout.nodes.node_of_rank.pop_back(); }), HasSubstr("3 ranks of 4 have"));
  EXPECT_THAT(refusal([](LanePlan& layout) { layout.nodes.node_of_rank[3] = 4; }), HasSubstr("rank 3 is on node 4"));
}

TEST_F(TransferCheckTest, each_bucket_has_its_transfer) {
  EXPECT_THAT(
      refusal([](LanePlan& layout) { layout.nodes.transfers.own().pop_back(); }), HasSubstr("1 transfers are given")
  );
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).bucket = 1; }), HasSubstr("it is for bucket 1"));
  EXPECT_THAT(
      refusal([](LanePlan& layout) { first(layout).result = plan::DType::Float64; }), HasSubstr("gradients in float32")
  );
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).partial = plan::DType::Float16; }), HasSubstr("formats"));
}

TEST_F(TransferCheckTest, streams_and_blocks_name_what_exists) {
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).streams[0].sources = {1, 0}; }), HasSubstr("do not ascend"));
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).streams[0].sources = {0}; }), HasSubstr("one alone"));
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).streams[0].destinations = {2}; }), HasSubstr("no sources"));
  EXPECT_THAT(
      refusal([](LanePlan& layout) { first(layout).blocks[1].stream = 9; }), HasSubstr("block 1 is of stream 9")
  );
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).blocks[0].owner = 2; }), HasSubstr("node 2 owns it"));
  EXPECT_THAT(
      refusal([](LanePlan& layout) { first(layout).blocks[1].first_piece = 0; }), HasSubstr("pieces from 0 on")
  );
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).blocks[0].pieces = 77; }), HasSubstr("77 pieces"));
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).blocks[0].elements += 1; }), HasSubstr("its pieces have"));
  EXPECT_THAT(refusal([](LanePlan& layout) { first(layout).blocks.pop_back(); }), HasSubstr("are in blocks"));
}

TEST_F(TransferCheckTest, pieces_are_elements_of_sums_that_travel_so) {
  const auto changed = [&](const std::function<void(plan::TransferPiece&)>& change) {
    return refusal([&](LanePlan& layout) { change(first(layout).pieces[0]); });
  };
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.tensor = 2; }), HasSubstr("do not exist or are of other"));
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.tensor = 1; }), HasSubstr("tensor 1"));
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.part = 1; }), HasSubstr("part 1"));
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.sum = 1; }), HasSubstr("sum 1"));
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.first = ~std::uint64_t{0} - 3; }), HasSubstr("exist"));
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.elements = 301; }), HasSubstr("exist"));
  EXPECT_THAT(changed([](plan::TransferPiece& piece) { piece.elements = 0; }), HasSubstr("exist"));
}

TEST_F(TransferCheckTest, every_element_travels_once) {
  const auto misplaced = refusal([](LanePlan& layout) { first(layout).pieces[0] = first(layout).pieces[1]; });
  EXPECT_THAT(misplaced, testing::AnyOf(HasSubstr("once and as a whole"), HasSubstr("its pieces have")));
  EXPECT_THAT(
      refusal([](LanePlan& layout) {
        first(layout).blocks.clear();
        first(layout).pieces.clear();
      }),
      HasSubstr("sum 0 of tensor 0, part 0, is not in its pieces once and as a whole")
  );
}

TEST_F(TransferCheckTest, what_is_compared_has_results_of_several_sums_here) {
  const auto changed = [&](std::vector<StatsBox> boxes) {
    return refusal([&](LanePlan& layout) { layout.nodes.classes = {std::move(boxes)}; });
  };
  EXPECT_EQ(changed({{1, 0}}), "");
  EXPECT_THAT(changed({{1, 0}, {1, 0}}), HasSubstr("not behind the one before it"));
  EXPECT_THAT(changed({{2, 0}}), HasSubstr("nodes.classes[0] has part 0 of tensor 2"));
  EXPECT_THAT(changed({{1, 1}}), HasSubstr("has part 1 of tensor 1"));
  EXPECT_THAT(changed({{0, 0}}), HasSubstr("no results of several sums")) << "it has one sum";
}

TEST_F(TransferCheckTest, a_block_has_room_in_staging_memory) {
  EXPECT_THAT(
      refusal([](LanePlan& layout) { layout.nodes.staging_bytes = 128; }), HasSubstr("nodes.staging_bytes is 128")
  );
}

}  // namespace
}  // namespace gradsync::device
