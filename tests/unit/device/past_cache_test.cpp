// Gradients that are larger than caches: their copies are written past them.

#include "unit/device/lane_fixture.hpp"

#include <bit>

namespace gradsync::device {
namespace {

/// The number of ranks.
class PastCache : public LaneFixture, public testing::WithParamInterface<std::int64_t> {
 protected:
  static float gradient(std::int64_t rank, std::uint64_t element) {
    return static_cast<float>((element * 31 + static_cast<std::uint64_t>(rank)) % 97) - 48;
  }
};

TEST_P(PastCache, every_rank_has_the_same_bits_and_nothing_else_is_written) {
  const std::int64_t world = GetParam();
  const std::uint64_t elements = (136U << 20) / sizeof(float) / static_cast<std::uint64_t>(world) | 13U;
  std::vector<std::int64_t> everyone;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    everyone.push_back(rank);
  }
  // The second tensor lies where the last row of the first would end, were it a whole one.
  load(lay_out(world, {{plan::DType::Float32, {everyone}, 2}}, {{elements, 0}, {5, 0}}));
  for (std::int64_t rank = 0; rank < world; ++rank) {
    for (std::uint64_t element = 0; element < elements; ++element) {
      values(0, rank)[element] = gradient(rank, element);
    }
    std::fill_n(values(1, rank), 5, 1.0F);
  }

  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false, true});
  expect<Reduced>();
  const StepMath math = finish(1, {strict(1.0)});
  ASSERT_TRUE(math.groups.at(0).clipped);
  const auto multiplier = static_cast<float>(math.groups[0].multiplier);

  for (std::int64_t rank = 0; rank < world; ++rank) {
    std::uint64_t wrong = 0;
    for (std::uint64_t element = 0; element < elements; ++element) {
      float sum = gradient(0, element);
      for (std::int64_t other = 1; other < world; ++other) {
        sum += gradient(other, element);
      }
      const float wanted = sum / 2 * multiplier;
      wrong += std::bit_cast<std::uint32_t>(values(0, rank)[element]) != std::bit_cast<std::uint32_t>(wanted) ? 1U : 0U;
    }
    EXPECT_EQ(wrong, 0U) << "of rank " << rank;
    for (int element = 0; element < 5; ++element) {
      EXPECT_EQ(values(1, rank)[element], static_cast<float>(world) / 2 * multiplier) << "of rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, PastCache, testing::Values(2, 3), testing::PrintToStringParamName());

}  // namespace
}  // namespace gradsync::device
