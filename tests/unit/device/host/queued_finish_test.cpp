// A norm that is queued behind its reductions, as the engine does it.

#include "unit/device/lane_fixture.hpp"

#include <gmock/gmock.h>

#include <limits>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class QueuedFinish : public LaneFixture {
 protected:
  /// Two sums of two ranks each over tensor 0, one of all over the rest.
  void load_world(std::uint64_t elements) {
    lane_.reset();
    arenas_.clear();
    load(lay_out(
        4,
        {{plan::DType::Float32, {{0, 2}, {1, 3}}, 2}, {plan::DType::Float32, {{0, 1, 2, 3}}, 4}},
        {{elements, 0}, {elements, 1}, {3, 1}}
    ));
  }

  /// Every rank's gradients; rank 1's of tensor 1 is not finite, and the sums of tensor 0 differ.
  void fill() {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
        for (std::uint64_t element = 0; element < numel(tensor); ++element) {
          values(tensor, rank)[element] = static_cast<float>((element * 31 + tensor * 7 + rank) % 97) - 48;
        }
      }
    }
    values(1, 1)[0] = std::numeric_limits<float>::infinity();
  }

  void submit_reductions(Tag tag) {
    lane_->submit(ReduceBucket{kPlan, tag, 0, {}, true});
    lane_->submit(ReduceBucket{kPlan, tag, 1, {{2, 0}, {2, 1}, {2, 2}, {2, 3}}, true});
  }

  [[nodiscard]] std::vector<std::vector<float>> memory() {
    std::vector<std::vector<float>> all;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
        all.push_back(get<float>(tensor, rank));
      }
    }
    return all;
  }
};

TEST_F(QueuedFinish, finds_what_one_that_waited_for_every_report_finds) {
  for (const std::uint64_t elements : {100U, 300'000U}) {
    load_world(elements);
    fill();
    submit_reductions(1);
    expect<Reduced>();
    expect<Reduced>();
    const StepMath waited = finish(1, {strict(1.0)}, 2.0);
    const auto wanted = memory();

    fill();
    submit_reductions(2);
    lane_->submit(FinishStep{kPlan, 2, 2.0, {strict(1.0)}, true});
    EXPECT_EQ(expect<Reduced>().bucket, 0U);
    EXPECT_EQ(expect<Reduced>().bucket, 1U);
    const StepMath queued = expect<Finished>().math;
    EXPECT_EQ(queued.raw_group_norms, waited.raw_group_norms);
    EXPECT_EQ(queued.groups.at(0).multiplier, waited.groups.at(0).multiplier);
    EXPECT_EQ(queued.counted_elements, 2 * elements);
    EXPECT_EQ(queued.nonfinite_total, waited.nonfinite_total);
    ASSERT_EQ(queued.nonfinite.size(), 1U);
    EXPECT_THAT(queued.nonfinite[0].inputs, ElementsAre(std::pair<std::int64_t, std::uint64_t>{1, 1}));
    ASSERT_EQ(queued.divergence.size(), 1U);
    EXPECT_THAT(queued.divergence[0].ranks, ElementsAre(1, 3));
    EXPECT_THAT(queued.absent, ElementsAre(2));
    const auto found = memory();
    for (std::size_t i = 0; i < wanted.size(); ++i) {  // by bits: there are NaNs
      EXPECT_EQ(std::memcmp(found[i].data(), wanted[i].data(), found[i].size() * sizeof(float)), 0) << i;
    }
  }
}

TEST_F(QueuedFinish, behind_a_reduction_that_failed_is_refused_and_multiplies_nothing) {
  for (const std::uint64_t elements : {100U, 300'000U}) {
    load_world(elements);
    fill();
    values(1, 1)[0] = 0;
    lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
    lane_->submit(ReduceBucket{kPlan, 1, 1, {{0, 0}}, false});
    lane_->submit(FinishStep{kPlan, 1, 1.0, {strict(1e-3)}, true});
    expect<Reduced>();
    EXPECT_THAT(expect<Failed>().message, HasSubstr("unused tensor 0 of rank 0 is not in bucket 1"));
    const std::vector<float> reduced = get<float>(0, 0);
    EXPECT_THAT(expect<Failed>().message, HasSubstr("bucket 1 does not hold the sums of attempt 1"));
    EXPECT_EQ(get<float>(0, 0), reduced);
    EXPECT_EQ(reduced[1], ((31 % 97) - 48 + (31 + 2) % 97 - 48) / 2.0F);
  }
}

}  // namespace
}  // namespace gradsync::device
