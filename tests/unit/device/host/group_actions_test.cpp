// What becomes of memory where a clip group has another action than a clip: every byte of every arena.

#include "device/device_error.hpp"
#include "fakes/not_finite.hpp"
#include "unit/device/allocation_counter.hpp"
#include "unit/device/host/sharded_oracle.hpp"
#include "unit/device/stats/stats_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

namespace gradsync::device {
namespace {

using plan::ClipMode;
using plan::NonfiniteAction;
using plan::SpikeAction;
using plan::StepAction;
using testing::HasSubstr;

constexpr plan::DType kDTypes[] = {
    plan::DType::Float32, plan::DType::Float64, plan::DType::Float16, plan::DType::BFloat16};

/// The mode, and whether the reduction leaves copies to the finish.
class GroupActions : public testing::TestWithParam<std::tuple<ClipMode, bool>> {
 protected:
  static constexpr std::uint32_t kSpoilt = 0;  ///< its norm is what a test makes it
  static constexpr std::uint32_t kSound = 1;

  /// Every format in both groups: scattered, replicated in place, and a tied pair.
  GroupActions() : job_(4) {
    for (const plan::DType dtype : kDTypes) {
      job_.add_bucket(dtype, 2);
    }
    for (std::uint32_t bucket = 0; bucket < std::size(kDTypes); ++bucket) {
      for (const std::uint32_t group : {kSpoilt, kSound}) {
        add(scattered({17'003, 3}, 0, {9'000, 8'003}, {0, 1}), bucket, group);
        add(replicated({1'001}, {{0, 2}, {1, 3}}), bucket, group);
        ShardedTensor tied;
        tied.shape = {70};
        tied.in_place = true;
        tied.copies = 1;
        tied.parts = {{whole_box(tied.shape), {{{{0, 0}, {3, 1}}, {{0, 0}, {3, 1}}}}}};
        add(tied, bucket, group);
      }
    }
    job_.load();
  }

  void add(ShardedTensor tensor, std::uint32_t bucket, std::uint32_t group) {
    tensor.bucket = bucket;
    tensor.clip_group = group;
    job_.add(tensor);
  }

  /// A value of rank 0 in the group's scattered tensor of each format.
  void spoil(double value) {
    job_.fill(random_);
    for (std::uint32_t tensor = 0; tensor < job_.specs.size(); ++tensor) {
      if (job_.layout.tensors[tensor].clip_group == kSpoilt && job_.specs[tensor].shape.size() == 2) {
        job_.set(0, tensor, 5, value);
      }
    }
  }

  [[nodiscard]] ShardedOracle reduce(Tag tag, const UnusedSet& unused = {}) {
    ShardedOracle oracle(job_, unused);
    for (std::uint32_t bucket = 0; bucket < job_.layout.buckets.size(); ++bucket) {
      ReduceBucket command{1, tag, bucket, {}, false, std::get<1>(GetParam())};
      for (const auto& [tensor, rank] : unused) {
        if (job_.layout.tensors[tensor].bucket == bucket) {
          command.unused.push_back({tensor, rank});
        }
      }
      reduce_bucket(*job_.plan, command, HostPasses(pool_, cancel_));
    }
    return oracle;
  }

  StepMath finish(Tag tag, const plan::ClipRule& spoilt, const plan::ClipRule& sound, bool apply = true) {
    return finish_step(*job_.plan, {1, tag, 1.0, {spoilt, sound}, apply}, HostPasses(pool_, cancel_));
  }

  static plan::ClipRule rule(double max_norm = 1) {
    plan::ClipRule rule;
    rule.max_norm = max_norm;
    rule.mode = std::get<0>(GetParam());
    rule.norm_dtype = plan::DType::Float64;
    return rule;
  }

  static plan::ClipRule on_nonfinite(NonfiniteAction action) {
    plan::ClipRule made = rule();
    made.nonfinite = action;
    return made;
  }

  /// Zeros in all that is held of the group after sync, but for what is absent.
  void zero_group(ShardedOracle& oracle) const {
    for (const LanePart& part : job_.layout.parts) {
      if (job_.layout.tensors[part.tensor].clip_group != kSpoilt || job_.plan->attempt().tensors[part.tensor].absent) {
        continue;
      }
      for (const LaneSum& sum : job_.layout.sums[part.sums]) {
        for (const LaneMember& destination : sum.destinations) {
          const std::uint32_t memory = part.tensor + destination.copy;
          std::memset(
              oracle.arenas[destination.rank].data() + job_.arena(destination.rank).output[memory],
              0,
              part.elements * plan::size_of(job_.dtype_of(memory))
          );
        }
      }
    }
  }

  ShardedJob job_;
  std::mt19937_64 random_{5};
  WorkerPool pool_{2, "test"};
  const std::atomic<bool> cancel_{false};
};

INSTANTIATE_TEST_SUITE_P(
    BothModes, GroupActions, testing::Combine(testing::Values(ClipMode::Strict, ClipMode::Torch), testing::Bool())
);

TEST_P(GroupActions, zero_writes_zeros_of_every_format_on_every_holder_and_clips_the_other_group) {
  Tag tag = 0;
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    spoil(value);
    ShardedOracle oracle = reduce(++tag);
    const StepMath math = finish(tag, on_nonfinite(NonfiniteAction::Zero), rule());
    EXPECT_EQ(math.groups[kSpoilt].action, StepAction::Zero);
    EXPECT_EQ(math.groups[kSound].action, StepAction::Step);
    EXPECT_TRUE(math.groups[kSound].clipped);
    EXPECT_FALSE(std::isfinite(math.norm)) << "the norm is reported as it was";
    oracle.multiply(math.groups);
    zero_group(oracle);
    EXPECT_TRUE(job_.arenas == oracle.arenas) << value;
  }
}

TEST_P(GroupActions, zero_leaves_absent_tensors_alone_and_writes_where_nobody_contributed) {
  spoil(kNaN);
  const std::uint32_t partial = 1;  // replicated: ranks 0 and 2 bring nothing
  const std::uint32_t tied = 2;     // with its copy on no rank
  ShardedOracle oracle = reduce(1, {{partial, 0}, {partial, 2}, {tied, 0}, {tied + 1, 3}});
  const StepMath math = finish(1, on_nonfinite(NonfiniteAction::Zero), rule());
  EXPECT_THAT(math.absent, testing::ElementsAre(tied, tied + 1));
  oracle.multiply(math.groups);
  zero_group(oracle);
  EXPECT_TRUE(job_.arenas == oracle.arenas);
  EXPECT_NE(job_.output(0, tied, 1)[0], 0) << "or the test shows nothing";
}

TEST_P(GroupActions, a_group_that_skips_or_raises_keeps_every_group_from_being_multiplied) {
  Tag tag = 0;
  for (const NonfiniteAction action : {NonfiniteAction::Skip, NonfiniteAction::Raise}) {
    const StepAction expected = action == NonfiniteAction::Skip ? StepAction::Skip : StepAction::Raise;
    for (const bool spoilt_first : {true, false}) {
      spoil(kNaN);
      const auto reduced = reduce(++tag).arenas;
      // The second group would be clipped, or zeroed, if it could.
      plan::ClipRule other = on_nonfinite(spoilt_first ? NonfiniteAction::Propagate : NonfiniteAction::Zero);
      const StepMath math = finish(tag, on_nonfinite(action), other);
      for (const plan::ClipOutcome& outcome : math.groups) {
        EXPECT_EQ(outcome.action, expected);
        EXPECT_EQ(outcome.clipped, outcome.norm > outcome.threshold);
        EXPECT_FALSE(outcome.multiply);
        EXPECT_THAT(outcome.reason, HasSubstr("norm is not finite: nan"));
      }
      EXPECT_EQ(math.clip_s > 0, std::get<1>(GetParam())) << "a pass only where copies are missing";
      EXPECT_TRUE(job_.arenas == reduced);
      EXPECT_THROW((void)finish(tag, rule(), rule()), DeviceError) << "a step that is skipped is over as well";
    }
  }
}

TEST_P(GroupActions, a_spike_of_one_group_outdoes_the_zeros_of_another) {
  spoil(kNaN);
  const auto reduced = reduce(1).arenas;
  plan::ClipRule spike = rule();
  spike.spike = SpikeAction::Skip;
  spike.spike_above = 1;
  const StepMath math = finish(1, on_nonfinite(NonfiniteAction::Zero), spike);
  EXPECT_EQ(math.groups[kSpoilt].action, StepAction::Skip);
  EXPECT_TRUE(math.groups[kSound].spike);
  EXPECT_THAT(math.groups[kSpoilt].reason, HasSubstr("is a spike"));
  EXPECT_TRUE(job_.arenas == reduced);
}

TEST_P(GroupActions, the_second_half_obeys_the_actions_it_is_given) {
  spoil(1);
  ShardedOracle oracle = reduce(1);
  StepMath math = finish(1, rule(), rule(), false);
  EXPECT_TRUE(job_.arenas == oracle.arenas);
  // Trainers had the gradients in between.
  for (const std::uint32_t rank : {0U, 3U}) {
    job_.write(job_.arenas[rank], job_.arena(rank).output[1], 1, 7, kNaN);
  }
  math.groups[kSpoilt] = plan::apply_clip_rule(on_nonfinite(NonfiniteAction::Zero), kNaN, 1);
  scale_gradients(*job_.plan, {1, 1, math.groups}, HostPasses(pool_, cancel_));
  oracle.multiply(math.groups);
  zero_group(oracle);
  EXPECT_TRUE(job_.arenas == oracle.arenas);
}

TEST_P(GroupActions, the_second_half_touches_nothing_where_a_group_skips_or_raises) {
  Tag tag = 0;
  for (const NonfiniteAction action : {NonfiniteAction::Skip, NonfiniteAction::Raise}) {
    spoil(kNaN);
    (void)reduce(++tag);
    const StepMath math = finish(tag, rule(), rule(), false);
    const auto reduced = job_.arenas;
    // As it comes without plan::decide_together.
    const std::vector<plan::ClipOutcome> outcomes = {
        plan::apply_clip_rule(on_nonfinite(action), math.raw_group_norms[kSpoilt], 1),
        plan::apply_clip_rule(rule(), math.raw_group_norms[kSound], 1)};
    ASSERT_TRUE(outcomes[kSound].multiply);
    EXPECT_EQ(scale_gradients(*job_.plan, {1, tag, outcomes}, HostPasses(pool_, cancel_)), 0);
    EXPECT_TRUE(job_.arenas == reduced);
    EXPECT_THROW(scale_gradients(*job_.plan, {1, tag, outcomes}, HostPasses(pool_, cancel_)), DeviceError);
  }
}

TEST_P(GroupActions, zeros_allocate_nothing) {
  spoil(kNaN);
  (void)reduce(1);
  const StepMath math = finish(1, on_nonfinite(NonfiniteAction::Zero), rule(), false);
  const ScaleGradients command{1, 1, math.groups};
  EXPECT_EQ(allocations_during([&] { scale_gradients(*job_.plan, command, HostPasses(pool_, cancel_)); }), 0);
}

TEST_P(GroupActions, an_abort_ends_the_zeros_and_the_attempt) {
  spoil(kNaN);
  (void)reduce(1);
  const std::atomic<bool> raised{true};
  const FinishStep command{1, 1, 1.0, {on_nonfinite(NonfiniteAction::Zero), rule()}, true};
  EXPECT_THROW((void)finish_step(*job_.plan, command, HostPasses(pool_, raised)), DeviceError);
  EXPECT_THROW((void)finish_step(*job_.plan, command, HostPasses(pool_, cancel_)), DeviceError) << "not to be repeated";
}

/// One of two replicas of a sum is made of a single gradient, which nothing divides, and that is where the NaN is.
TEST(DeferredCopies, hide_no_nan_of_a_replica) {
  for (const bool defer : {false, true}) {
    SCOPED_TRACE(defer);
    ShardedJob job(4);
    job.add_bucket(plan::DType::Float32, 1);
    job.add(replicated({1'001}, {{0, 2}, {1, 3}}));
    job.load();
    std::mt19937_64 random(6);
    job.fill(random);
    job.set(1, 0, 5, kNaN);
    WorkerPool pool(2, "test");
    const std::atomic<bool> cancel{false};
    reduce_bucket(*job.plan, {1, 1, 0, {{0, 3}}, false, defer}, HostPasses(pool, cancel));
    plan::ClipRule rule;
    rule.nonfinite = NonfiniteAction::Skip;
    const StepMath math = finish_step(*job.plan, {1, 1, 1.0, {rule}, true}, HostPasses(pool, cancel));
    EXPECT_EQ(math.groups[0].action, StepAction::Skip);
    ASSERT_EQ(math.nonfinite.size(), 1U);
    EXPECT_EQ(math.nonfinite[0].inputs, (std::vector<std::pair<std::int64_t, std::uint64_t>>{{1, 1}}));
    EXPECT_TRUE(std::isnan(job.output(3, 0, 6)[5])) << "it has what rank 1 has";
  }
}

class StatsActions : public StatsFixture {
 protected:
  /// One tensor in each of two groups, the first of which is not finite on rank 1.
  StepMath finish_with(Tag tag, NonfiniteAction action) {
    fill(0, 0, {3});
    fill(0, 1, {kNaN});
    fill(1, 0, {4});
    FinishStep made = command(tag);
    made.rules = {exact(1), exact(1)};
    made.rules[0].nonfinite = action;
    lane_->submit(made);
    return expect<Finished>().math;
  }
};

TEST_F(StatsActions, trainers_are_told_what_the_groups_decided_together) {
  begin(2);
  tensor({{0, 0, 1}, {1, 1, 1}}, 0);
  tensor({{0, 0, 1}}, 1);
  load_stats();
  const StepMath zeroed = finish_with(1, NonfiniteAction::Zero);
  EXPECT_EQ(zeroed.groups[0].action, StepAction::Zero);
  EXPECT_EQ(zeroed.groups[1].action, StepAction::Step);
  EXPECT_EQ(zeroed.groups[1].multiplier, 0.25);
  const StepMath skipped = finish_with(2, NonfiniteAction::Skip);
  const StepMath raised = finish_with(3, NonfiniteAction::Raise);
  for (const std::size_t group : {0U, 1U}) {
    EXPECT_EQ(skipped.groups[group].action, StepAction::Skip);
    EXPECT_EQ(raised.groups[group].action, StepAction::Raise);
    EXPECT_EQ(skipped.groups[group].multiplier, 1);
    EXPECT_FALSE(skipped.groups[group].multiply);
  }
  EXPECT_EQ(skipped.groups[1].norm, 4);
  EXPECT_EQ(skipped.raw_group_norms[1], 4);
}

}  // namespace
}  // namespace gradsync::device
