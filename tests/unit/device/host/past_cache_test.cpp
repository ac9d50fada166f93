// Gradients that are larger than caches: their copies are written past them.

#include "device/loaded/loaded_plan.hpp"
#include "unit/device/lane_fixture.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace gradsync::device {
namespace {

/// The number of ranks.
class PastCache : public LaneFixture, public testing::WithParamInterface<std::int64_t> {
 protected:
  static constexpr std::ptrdiff_t kGap = 13;  ///< elements behind a last row of 3, up to the next cache line

  [[nodiscard]] std::vector<BufferView> views() const {
    std::vector<BufferView> all;
    for (const ClientArena& arena : arenas_) {
      all.push_back({arena.data(), arena.size_bytes()});
    }
    return all;
  }

  static float gradient(std::int64_t rank, std::uint64_t element) {
    return static_cast<float>((element * 31 + static_cast<std::uint64_t>(rank)) % 97) - 48;
  }
};

TEST_P(PastCache, every_rank_has_the_same_bits_and_nothing_else_is_written) {
  const std::int64_t world = GetParam();
  const std::uint64_t elements = ((136U << 20) / sizeof(float) / static_cast<std::uint64_t>(world) & ~31U) + 3;
  std::vector<std::int64_t> everyone;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    everyone.push_back(rank);
  }
  load(lay_out(world, {{plan::DType::Float32, {everyone}, 2}}, {{elements, 0}}));
  ASSERT_FALSE(LoadedPlan(layout_, views(), 2).fits_caches());
  for (std::int64_t rank = 0; rank < world; ++rank) {
    for (std::uint64_t element = 0; element < elements; ++element) {
      values(0, rank)[element] = gradient(rank, element);
    }
    std::fill_n(values(0, rank) + elements, kGap, -7.0F);
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
    const float* gap = values(0, rank) + elements;
    EXPECT_EQ(std::count(gap, gap + kGap, -7.0F), kGap) << "behind the last row of rank " << rank;
  }
}

TEST_P(PastCache, gradients_that_fit_are_left_in_it) {
  load(lay_out(GetParam(), {{plan::DType::Float32, {{0, 1}}, 2}}, {{16U << 20, 0}}));
  EXPECT_TRUE(LoadedPlan(layout_, views(), 2).fits_caches()) << "two ranks write 128 MiB";
}

INSTANTIATE_TEST_SUITE_P(ranks, PastCache, testing::Values(2, 3), testing::PrintToStringParamName());

}  // namespace
}  // namespace gradsync::device
