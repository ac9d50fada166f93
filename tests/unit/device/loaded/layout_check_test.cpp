// Plans of scattered tensors that do not fit, named by what is wrong with them.

#include "device/device_error.hpp"
#include "unit/device/sharded_job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;

/// Tensor 0: columns, two on rank 0 and one on rank 1; 1: in place on both; 2 and its copy 3: tied, rank 0 and rank 1.
class LayoutCheck : public testing::Test {
 protected:
  LayoutCheck() : job_(2, 2, true) {
    job_.add_bucket(plan::DType::Float32, 2);
    job_.add(scattered({4, 3}, 1, {2, 1}, {0, 1}));
    job_.add(replicated({5}, {{0, 1}}));
    ShardedTensor tied = replicated({6}, {{0}});
    tied.copies = 1;
    tied.parts[0].sums = {{{{0, 0}, {1, 1}}, {{0, 0}, {1, 1}}}};
    job_.add(tied);
    job_.load();
  }

  template <typename Change>
  std::string refusal(Change change) {
    LanePlan layout = job_.layout;
    change(layout);
    try {
      const LoadedPlan plan(layout, job_.views(), 1);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "loaded";
  }

  ShardedJob job_;
};

TEST_F(LayoutCheck, indices_are_in_range) {
  EXPECT_EQ(refusal([](LanePlan&) {}), "loaded");
  EXPECT_THAT(refusal([](LanePlan& p) { p.parts[0].sums = 4; }), HasSubstr("part 0 has sums 4 of 4"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.sums[0].clear(); }), HasSubstr("part 0 has sums 0 of 4, or those are none"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.parts[1].tensor = 1; }), HasSubstr("part 1 of tensor 0 names tensor 1"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[2].parts = 2; }), HasSubstr("tensor 2 has parts 3 to 5 of 4"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[0].parts = 1; }), HasSubstr("3 parts of 4 belong to tensors"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[2].first_part = ~0U; }), HasSubstr("tensor 2 has parts 4294967295"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.sums[0][0].sources[1].rank = 2; }), HasSubstr("sums[0] name rank 2 of 2"));
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.sums[2][0].sources[1].copy = 1; }), HasSubstr("sums[2] name copy 1, tensor 1 has 0")
  );
  EXPECT_THAT(refusal([](LanePlan& p) { p.arena_of_rank[1] = 1; }), HasSubstr("rank 1 has arena 1 of 1"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.arena_of_rank.pop_back(); }), HasSubstr("1 ranks of 2 have an arena"));
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.arenas[0].output.pop_back(); }),
      HasSubstr("arenas[0] place 4 inputs and 3 outputs of 4 tensors")
  );
}

TEST_F(LayoutCheck, sums_have_both_sides_and_nobody_twice) {
  EXPECT_THAT(refusal([](LanePlan& p) { p.sums[1][0].sources.clear(); }), HasSubstr("no source or no destination"));
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.sums[1][0].destinations.clear(); }), HasSubstr("no source or no destination")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.sums[0].push_back(sum_to({1}, {1})); }),
      HasSubstr("sums[0] name rank 1 twice as source of copy 0")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) {
        p.sums[0][0].destinations = members({0, 0});
      }),
      HasSubstr("sums[0] name rank 0 twice as destination of copy 0")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.sums[1][0].destinations = members({0}); }),
      HasSubstr("rank 0 is the destination of two parts of tensor 0")
  );
}

TEST_F(LayoutCheck, copies_are_tied_once_and_have_no_parts) {
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[2].copies.clear(); }), HasSubstr("copy 1, tensor 2 has 0"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[2].copies = {2}; }), HasSubstr("tensor 2 is tied to tensor 2"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[2].copies = {3, 3}; }), HasSubstr("tensor 3 is tied to tensor 2"));
  EXPECT_THAT(refusal([](LanePlan& p) { p.tensors[2].copies = {9}; }), HasSubstr("tensor 9 is tied to tensor 2"));
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.tensors[2].copies = {1}; }), HasSubstr("tensor 1, tied to tensor 2, has parts")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) {
        p.tensors[2].copies.clear();
        p.sums[3] = {sum_to({0}, {0})};
      }),
      HasSubstr("tensor 3 has no part and is tied to no other")
  );
}

TEST_F(LayoutCheck, parts_lie_inside_every_arena) {
  const auto geometry = [&](auto change) { return refusal([&](LanePlan& p) { change(p.parts[0]); }); };
  const char* senseless = "which its runs of";
  EXPECT_THAT(geometry([](LanePart& part) { part.elements = 9; }), HasSubstr("has 9 elements, which its runs of 2"));
  EXPECT_THAT(geometry([](LanePart& part) { part.strides[0].count = 0; }), HasSubstr(senseless));
  EXPECT_THAT(geometry([](LanePart& part) { part.strides[0].count = kHuge; }), HasSubstr(senseless));
  EXPECT_THAT(geometry([](LanePart& part) { part.strides[0].distance = kHuge; }), HasSubstr(senseless));
  EXPECT_THAT(geometry([](LanePart& part) { part.first = ~std::uint64_t{0}; }), HasSubstr(senseless));
  EXPECT_THAT(geometry([](LanePart& part) { part.run = kHuge; }), HasSubstr(senseless));
  EXPECT_THAT(
      geometry([](LanePart& part) { part.strides[0].distance = 40; }),
      HasSubstr("the input of tensor 0, part 0 (122 elements of 4 bytes at byte 0) ends outside the")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.arenas[0].output[0] = kHuge; }),
      HasSubstr("the output of tensor 0, part 0 (8 elements")
  );
  EXPECT_THAT(refusal([](LanePlan& p) { p.arenas[0].input[0] = 2; }), HasSubstr("input of tensor 0 starts at byte 2"));
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.arenas[0].output[0] = kNotHeld; }),
      HasSubstr("the output of tensor 0 is not in the arena of rank 0")
  );
  EXPECT_THAT(refusal([](LanePlan& p) { p.arenas[0].input[3] = kNotHeld; }), HasSubstr("the input of tensor 3 is not"));
}

TEST_F(LayoutCheck, the_smallest_arena_of_those_laid_out_alike_counts) {
  job_.arenas[1].resize(job_.arenas[1].size() - 8);
  EXPECT_THAT(refusal([](LanePlan&) {}), HasSubstr("of rank 1"));
}

TEST_F(LayoutCheck, what_is_summed_in_place_is_whole_and_read_by_nobody_else) {
  EXPECT_THAT(
      refusal([](LanePlan& p) {
        p.arenas[0].output[0] = p.arenas[0].input[0];
        p.sums[0] = {sum_to({0}, {0})};
      }),
      HasSubstr("the output of tensor 0 is its input, of which part 0 is 8 elements from 0 on in runs of 2, not all")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) { p.sums[2][0].destinations = members({0}); }),
      HasSubstr("the output of tensor 1 is its input, but rank 1 is a source of part 2 and no destination")
  );
  EXPECT_THAT(
      refusal([](LanePlan& p) {
        p.sums[2] = {sum_to({0}, {1}), sum_to({1}, {0})};
      }),
      HasSubstr("no destination of the")
  );
}

}  // namespace
}  // namespace gradsync::device
