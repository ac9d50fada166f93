// What the lane promises about order, aborts, failures and memory.

#include "device/host/host_lane.hpp"

#include "unit/device/allocation_counter.hpp"
#include "unit/device/lane_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <thread>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

class HostLaneTest : public LaneFixture {
 protected:
  /// Holds the lane inside its sink at the next report, so that what follows is queued for certain.
  void start_with_gate() {
    lane_ = std::make_unique<HostLane>(HostLaneOptions{2}, [this](LaneReport report) {
      const bool gate = std::holds_alternative<Unloaded>(report);
      if (on_report_) {
        on_report_(report);
      }
      box_.put(std::move(report));
      if (gate) {
        (void)gate_.get_future().wait_for(std::chrono::seconds(60));
      }
    });
  }

  /// Unloads plan 7; from here on the lane waits.
  void close_gate() {
    lane_->submit(UnloadPlan{7});
    expect<Unloaded>();
  }

  std::promise<void> gate_;
  std::function<void(const LaneReport&)> on_report_;  ///< on the lane's thread
};

TEST_F(HostLaneTest, answers_every_command_once_and_in_order) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 2}}, {{1000, 0}}));
  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
  lane_->submit(SetWidth{false});
  lane_->submit(FinishStep{kPlan, 1, 1.0, {strict(1.0)}, true});
  lane_->submit(SetWidth{true});
  lane_->submit(ReduceBucket{kPlan, 2, 0, {}, false});
  lane_->submit(UnloadPlan{kPlan});
  lane_->submit(UnmapBuffer{1});
  EXPECT_EQ(expect<Reduced>().tag, 1U);
  EXPECT_EQ(expect<Finished>().tag, 1U);
  EXPECT_EQ(expect<Reduced>().tag, 2U);
  EXPECT_EQ(expect<Unloaded>().plan, kPlan);
  EXPECT_EQ(expect<Unmapped>().buffer, 1U);
  EXPECT_EQ(box_.waiting(), 0U);
}

/// The plans of two jobs, with arenas of their own.
class TwoJobs : public HostLaneTest {
 protected:
  static constexpr PlanId kLong = 100;
  static constexpr PlanId kShort = 101;

  /// A rank each, with so many elements in one bucket.
  void load_both(std::uint64_t long_elements, std::uint64_t short_elements) {
    start_with_gate();
    load(lay_out(1, {}, {}));
    lane_->submit(LoadPlan{7, layout_});
    expect<Loaded>();
    load_one(kLong, long_elements);
    load_one(kShort, short_elements);
  }

  void load_one(PlanId plan, std::uint64_t elements) {
    LanePlan layout = empty_layout(1, 2);
    add_bucket(layout, plan::DType::Float32, {{0}}, 2);
    add_tensor(layout, 0, elements, 0);
    layout.rank_buffers = {plan};
    arenas_of_.emplace_back(elements * sizeof(float));
    std::fill_n(arenas_of_.back().at<float>(0), elements, 1.0F);
    lane_->submit(MapBuffer{plan, arenas_of_.back().descriptor(), arenas_of_.back().size_bytes()});
    expect<Mapped>();
    lane_->submit(LoadPlan{plan, layout});
    expect<Loaded>();
  }

  std::vector<ClientArena> arenas_of_;
};

TEST_F(TwoJobs, a_long_pass_gives_way_to_the_step_of_a_job_that_is_much_shorter) {
  constexpr std::uint64_t kElements = 4U << 20;
  load_both(kElements, 1024);
  close_gate();
  lane_->submit(ReduceBucket{kLong, 1, 0, {}, false});
  lane_->submit(ReduceBucket{kShort, 1, 0, {}, false});
  lane_->submit(FinishStep{kShort, 1, 1.0, {strict(1.0)}, true});
  lane_->submit(FinishStep{kLong, 1, 1.0, {strict(std::nullopt)}, true});
  gate_.set_value();
  EXPECT_EQ(expect<Reduced>().plan, kShort);
  EXPECT_EQ(expect<Finished>().plan, kShort);
  EXPECT_EQ(expect<Reduced>().plan, kLong);
  const Finished last = expect<Finished>();
  EXPECT_EQ(last.plan, kLong);
  EXPECT_EQ(last.math.norm, std::sqrt(static_cast<double>(kElements)) / 2);
}

TEST_F(TwoJobs, a_pass_does_not_give_way_to_one_about_as_long) {
  load_both(64U << 10, 48U << 10);
  close_gate();
  lane_->submit(ReduceBucket{kLong, 1, 0, {}, false});
  lane_->submit(ReduceBucket{kShort, 1, 0, {}, false});
  gate_.set_value();
  EXPECT_EQ(expect<Reduced>().plan, kLong);
  EXPECT_EQ(expect<Reduced>().plan, kShort);
}

TEST_F(TwoJobs, a_long_pass_that_gives_way_can_be_aborted_meanwhile) {
  load_both(4U << 20, 1024);
  on_report_ = [this](const LaneReport& report) {
    if (std::holds_alternative<Reduced>(report)) {
      lane_->submit(Abort{kLong, 1});
    }
  };
  close_gate();
  lane_->submit(ReduceBucket{kLong, 1, 0, {}, false});
  lane_->submit(ReduceBucket{kShort, 1, 0, {}, false});
  gate_.set_value();
  EXPECT_EQ(expect<Reduced>().plan, kShort);
  const Failed failed = expect<Failed>();
  EXPECT_EQ(failed.plan, kLong);
  EXPECT_TRUE(failed.aborted);
  EXPECT_EQ(expect<Aborted>().plan, kLong);
  lane_->submit(FinishStep{kShort, 1, 1.0, {strict(1.0)}, true});
  EXPECT_EQ(expect<Finished>().plan, kShort) << "that of the other job is untouched";
}

TEST_F(HostLaneTest, a_plan_without_tensors_has_the_norm_zero) {
  load(lay_out(2, {}, {}));
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    lane_->submit(UnloadPlan{kPlan});
    expect<Unloaded>();
    layout_.norm_type = p;
    lane_->submit(LoadPlan{kPlan, layout_});
    expect<Loaded>();
    for (const bool apply : {true, false}) {
      const StepMath math = finish(apply ? 1 : 2, {strict(1.0)}, 1, apply);
      EXPECT_EQ(math.norm, 0.0);
      EXPECT_EQ(math.counted_elements, 0u);
      EXPECT_EQ(math.groups[0].coefficient, 1.0);
      EXPECT_FALSE(math.groups[0].clipped);
    }
    lane_->submit(ScaleGradients{kPlan, 2, {plan::apply_clip_rule(strict(1.0), 0.0, 1)}});
    expect<Scaled>();
  }
}

TEST_F(HostLaneTest, finishes_what_is_queued_before_it_dies) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{100'000, 0}}));
  for (Tag tag = 1; tag <= 20; ++tag) {
    lane_->submit(ReduceBucket{kPlan, tag, 0, {}, false});
  }
  lane_.reset();
  EXPECT_EQ(box_.waiting(), 20U);
}

TEST_F(HostLaneTest, queueing_a_step_allocates_at_most_once_per_command) {
  start_with_gate();
  constexpr std::uint32_t kBuckets = 8;
  const BucketSpec bucket{plan::DType::Float32, {{0, 1}}, 2};
  std::vector<TensorSpec> tensors(kBuckets, TensorSpec{300'000});
  for (std::uint32_t index = 0; index < kBuckets; ++index) {
    tensors[index].bucket = index;
  }
  load(lay_out(2, std::vector(kBuckets, bucket), tensors));
  lane_->submit(LoadPlan{7, empty_layout(2)});
  expect<Loaded>();
  close_gate();
  FinishStep finish{kPlan, 1, 1.0, {strict(1.0)}, true};
  EXPECT_LE(
      allocations_during([&] {
        for (std::uint32_t index = 0; index < kBuckets; ++index) {
          lane_->submit(ReduceBucket{kPlan, 1, index, {}, false});
        }
        lane_->submit(std::move(finish));
      }),
      kBuckets + 1 + 2  // one for the table of the queue, and one for the count of the plan's commands
  );
  gate_.set_value();
  for (std::uint32_t index = 0; index < kBuckets; ++index) {
    EXPECT_EQ(expect<Reduced>().bucket, index);
  }
  EXPECT_EQ(expect<Finished>().tag, 1U);
}

TEST_F(HostLaneTest, submit_executes_nothing_in_the_thread_that_calls_it) {
  std::vector<std::thread::id> executed_by;
  lane_ = std::make_unique<HostLane>(HostLaneOptions{2}, [&](LaneReport report) {
    executed_by.push_back(std::this_thread::get_id());
    box_.put(std::move(report));
  });
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 2}}, {{3, 0}}));
  for (Tag tag = 1; tag <= 20; ++tag) {
    lane_->submit(ReduceBucket{kPlan, tag, 0, {}, false});
    expect<Reduced>();
    lane_->submit(FinishStep{kPlan, tag, 1.0, {strict(1.0)}, true});
    expect<Finished>();
  }
  lane_.reset();
  for (const std::thread::id id : executed_by) {
    EXPECT_NE(id, std::this_thread::get_id());
    EXPECT_EQ(id, executed_by.front()) << "one thread does all of it";
  }
}

TEST_F(HostLaneTest, submit_returns_while_the_lane_works_and_leaves_memory_alone) {
  start_with_gate();
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  set<float>(0, 0, {1, 2, 3});
  set<float>(0, 1, {3, 4, 5});
  lane_->submit(LoadPlan{7, empty_layout(2)});
  expect<Loaded>();
  close_gate();
  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
  EXPECT_EQ(box_.waiting(), 0U);
  EXPECT_EQ(get<float>(0, 0), (std::vector<float>{1, 2, 3}));
  gate_.set_value();
  EXPECT_EQ(expect<Reduced>().tag, 1U);
  EXPECT_EQ(get<float>(0, 0), (std::vector<float>{4, 6, 8}));
}

TEST_F(HostLaneTest, one_thread_at_a_time_executes_whoever_submits) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  LanePlan other = layout_;
  lane_->submit(LoadPlan{43, other});
  expect<Loaded>();
  constexpr int kTimes = 500;
  std::thread second([this] {
    for (Tag tag = 1; tag <= kTimes; ++tag) {
      lane_->submit(ReduceBucket{43, tag, 0, {}, false});
    }
  });
  for (Tag tag = 1; tag <= kTimes; ++tag) {
    lane_->submit(ReduceBucket{kPlan, tag, 0, {}, false});
  }
  second.join();
  std::map<PlanId, Tag> last;
  for (int report = 0; report < 2 * kTimes; ++report) {
    const auto reduced = expect<Reduced>();
    EXPECT_EQ(reduced.tag, ++last[reduced.plan]) << "in the order of submission";
  }
}

TEST_F(HostLaneTest, an_abort_overtakes_its_attempts_and_reports_after_them) {
  start_with_gate();
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  set<float>(0, 0, {1, 2, 3});
  set<float>(0, 1, {10, 20, 30});
  lane_->submit(LoadPlan{7, empty_layout(2)});
  expect<Loaded>();
  close_gate();
  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
  lane_->submit(FinishStep{kPlan, 1, 1.0, {strict(1.0)}, true});
  lane_->submit(ScaleGradients{kPlan, 2, {{}}});
  lane_->submit(Abort{kPlan, 2});
  lane_->submit(ReduceBucket{kPlan, 2, 0, {}, false});
  lane_->submit(ReduceBucket{kPlan, 3, 0, {}, false});
  gate_.set_value();
  for (const Tag tag : {1, 1, 2}) {
    const Failed failed = expect<Failed>();
    EXPECT_TRUE(failed.aborted) << failed.message;
    EXPECT_EQ(failed.plan, kPlan);
    EXPECT_EQ(failed.tag, tag);
  }
  EXPECT_EQ(expect<Aborted>().tag, 2U);
  EXPECT_TRUE(expect<Failed>().aborted);                          // an attempt once aborted stays so
  EXPECT_EQ(expect<Reduced>().tag, 3U);                           // a later one is free
  EXPECT_EQ(get<float>(0, 0), (std::vector<float>{11, 22, 33}));  // and found its inputs untouched
}

TEST_F(HostLaneTest, an_abort_does_not_wait_for_the_queued_commands_of_others) {
  start_with_gate();
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  for (const PlanId plan : {43, 7}) {
    lane_->submit(LoadPlan{plan, plan == 7 ? empty_layout(2) : layout_});
    expect<Loaded>();
  }
  close_gate();
  lane_->submit(ReduceBucket{43, 1, 0, {}, false});
  lane_->submit(ReduceBucket{kPlan, 1, 0, {}, false});
  lane_->submit(MapBuffer{9, std::move(*create_arena(8192)), 8192});
  lane_->submit(ReduceBucket{kPlan, 4, 0, {}, false});
  lane_->submit(FinishStep{kPlan, 1, 1.0, {strict(1.0)}, true});
  lane_->submit(Abort{kPlan, 1});
  lane_->submit(Abort{43, 0});
  lane_->submit(Abort{kPlan, 2});
  gate_.set_value();
  const auto expect_aborted = [&] { EXPECT_TRUE(expect<Failed>().aborted); };
  expect_aborted();
  expect_aborted();
  EXPECT_EQ(expect<Aborted>().tag, 1U);
  EXPECT_EQ(expect<Aborted>().tag, 2U);
  EXPECT_EQ(expect<Aborted>().plan, 43U);
  EXPECT_EQ(expect<Reduced>().plan, 43U);
  EXPECT_EQ(expect<Reduced>().tag, 4U) << "mapping gives way to what is much shorter";
  EXPECT_EQ(expect<Mapped>().buffer, 9U);
}

TEST_F(HostLaneTest, an_abort_of_a_plan_that_is_yet_to_be_loaded_keeps_the_order) {
  start_with_gate();
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  lane_->submit(LoadPlan{7, empty_layout(2)});
  expect<Loaded>();
  close_gate();
  lane_->submit(LoadPlan{43, layout_});
  lane_->submit(ReduceBucket{43, 1, 0, {}, false});
  lane_->submit(Abort{43, 1});
  gate_.set_value();
  EXPECT_EQ(expect<Loaded>().plan, 43U);
  EXPECT_TRUE(expect<Failed>().aborted);
  EXPECT_EQ(expect<Aborted>().plan, 43U);
}

TEST_F(HostLaneTest, after_the_abort_nothing_touches_memory_any_more) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 3}}, {{4'000'000, 0}}));
  std::vector<float> pattern(4'000'000);
  for (Tag tag = 1; tag <= 10; ++tag) {
    lane_->submit(ReduceBucket{kPlan, tag, 0, {}, false});
    lane_->submit(Abort{kPlan, tag});
    const LaneReport first = box_.take();
    if (const auto* failed = std::get_if<Failed>(&first)) {
      EXPECT_TRUE(failed->aborted) << failed->message;
    } else {
      EXPECT_TRUE(std::holds_alternative<Reduced>(first));
    }
    expect<Aborted>();
    std::fill(pattern.begin(), pattern.end(), static_cast<float>(tag));
    set(0, 0, pattern);
    set(0, 1, pattern);
    ASSERT_EQ(get<float>(0, 0), pattern);
    ASSERT_EQ(get<float>(0, 1), pattern);
  }
}

TEST_F(HostLaneTest, an_abort_of_one_plan_leaves_another_alone) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  lane_->submit(LoadPlan{43, layout_});
  expect<Loaded>();
  lane_->submit(Abort{43, 100});
  expect<Aborted>();
  reduce_all(1);
  lane_->submit(ReduceBucket{43, 1, 0, {}, false});
  EXPECT_TRUE(expect<Failed>().aborted);
}

TEST_F(HostLaneTest, maps_only_arenas_of_the_registered_size) {
  start(1);
  lane_->submit(MapBuffer{1, std::move(*create_arena(8192)), 4096});
  const Failed size = expect<Failed>();
  EXPECT_THAT(size.message, HasSubstr("8192 bytes, 4096 were registered"));
  EXPECT_EQ(size.buffer, 1U);

  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  lane_->submit(MapBuffer{1, std::move(unsealed), 4096});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("seals 0x0"));

  lane_->submit(MapBuffer{1, UniqueFd(), 4096});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("fstat"));

  lane_->submit(MapBuffer{1, std::move(*create_arena(4096)), 4096});
  expect<Mapped>();
  lane_->submit(MapBuffer{1, std::move(*create_arena(4096)), 4096});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("already mapped"));
}

TEST_F(HostLaneTest, mapping_keeps_what_the_client_wrote_and_unmapping_frees_it) {
  start(2);
  arenas_.emplace_back(64U << 20);
  arenas_[0].data()[12345] = std::byte{9};
  map(0);
  EXPECT_EQ(arenas_[0].data()[12345], std::byte{9});
  const UniqueFd watch = arenas_[0].descriptor();

  struct stat status {};

  ASSERT_EQ(::fstat(watch.get(), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_blocks) * 512, 64U << 20);  // every page is there
  lane_->submit(UnmapBuffer{1});
  expect<Unmapped>();
  ASSERT_EQ(::fstat(watch.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);  // although this process still maps it
  EXPECT_EQ(arenas_[0].data()[12345], std::byte{0});
}

TEST_F(HostLaneTest, frees_the_pages_of_a_buffer_that_was_never_mapped) {
  start(1);
  constexpr std::uint64_t kBytes = 1U << 20;
  UniqueFd fd = std::move(*create_arena(kBytes));
  const UniqueFd held{::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)};
  ASSERT_EQ(::pwrite(held.get(), "x", 1, 4096), 1);
  EXPECT_EQ(populated_bytes(held.get()), 4096U);
  lane_->submit(UnmapBuffer{7, std::move(fd), kBytes});
  EXPECT_EQ(expect<Unmapped>().buffer, 7U);
  EXPECT_EQ(populated_bytes(held.get()), 0U);
}

TEST_F(HostLaneTest, a_plan_whose_buffer_went_away_says_so) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  reduce_all(1);
  lane_->submit(UnmapBuffer{2});
  expect<Unmapped>();
  lane_->submit(FinishStep{kPlan, 1, 1.0, {strict(1.0)}, true});
  EXPECT_THAT(expect<Failed>().message, HasSubstr("buffer 2 of plan 42 was unmapped"));
  lane_->submit(UnloadPlan{kPlan});
  expect<Unloaded>();
}

TEST_F(HostLaneTest, names_what_it_does_not_know) {
  load(lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{3, 0}}));
  const auto failure = [&](LaneCommand command) {
    lane_->submit(std::move(command));
    return expect<Failed>().message;
  };
  EXPECT_THAT(failure(ReduceBucket{99, 1, 0, {}, false}), HasSubstr("plan 99 is not loaded"));
  EXPECT_THAT(failure(ReduceBucket{kPlan, 1, 5, {}, false}), HasSubstr("bucket 5"));
  EXPECT_THAT(failure(ReduceBucket{kPlan, 1, 0, {{7, 0}}, false}), HasSubstr("unused tensor 7 of rank 0"));
  EXPECT_THAT(failure(ReduceBucket{kPlan, 1, 0, {{0, 2}}, false}), HasSubstr("unused tensor 0 of rank 2"));
  EXPECT_THAT(failure(UnmapBuffer{9}), HasSubstr("buffer 9 is not mapped"));
  EXPECT_THAT(failure(UnloadPlan{9}), HasSubstr("plan 9 is not loaded"));
  EXPECT_THAT(failure(LoadPlan{kPlan, layout_}), HasSubstr("already loaded"));
  LanePlan foreign = layout_;
  foreign.rank_buffers[1] = 17;
  EXPECT_THAT(failure(LoadPlan{8, foreign}), HasSubstr("buffer 17 of rank 1 is not mapped"));
}

TEST_F(HostLaneTest, refuses_plans_that_do_not_fit_the_memory) {
  const LanePlan good = lay_out(2, {{plan::DType::Float32, {{0, 1}}, 1}}, {{16, 0}});
  load(good);
  const auto failure = [&](auto change) {
    LanePlan layout = good;
    change(layout);
    lane_->submit(LoadPlan{8, layout});
    return expect<Failed>().message;
  };
  EXPECT_THAT(
      failure([](LanePlan& p) { p.parts[0].elements = p.parts[0].run = 17; }),
      HasSubstr("ends outside the 64 bytes of rank 0")
  );
  EXPECT_THAT(
      failure([](LanePlan& p) { p.parts[0].elements = p.parts[0].run = std::uint64_t{1} << 62; }),
      HasSubstr("ends outside")
  );
  EXPECT_THAT(failure([](LanePlan& p) { p.arenas[0].input = p.arenas[0].output = {1}; }), HasSubstr("not a multiple"));
  EXPECT_THAT(
      failure([](LanePlan& p) { p.arenas[0].input = p.arenas[0].output = {~std::uint64_t{3}}; }),
      HasSubstr("ends outside")
  );
  EXPECT_THAT(failure([](LanePlan& p) { p.tensors[0].clip_group = 1; }), HasSubstr("clip group 1"));
  EXPECT_THAT(failure([](LanePlan& p) { p.tensors[0].layer = 0; }), HasSubstr("layer 0 of 0"));
  EXPECT_THAT(failure([](LanePlan& p) { p.buckets[0].tensors.clear(); }), HasSubstr("tensor 0 is in no bucket"));
  EXPECT_THAT(failure([](LanePlan& p) { p.buckets[0].tensors = {0, 0}; }), HasSubstr("once and alone"));
  EXPECT_THAT(failure([](LanePlan& p) { p.sums[0] = sums_of_groups({{0, 0}}); }), HasSubstr("rank 0 twice as source"));
  EXPECT_THAT(failure([](LanePlan& p) { p.buckets[0].divisor = 0; }), HasSubstr("divisor is 0"));
  EXPECT_THAT(failure([](LanePlan& p) { p.norm_type = 0.5; }), HasSubstr("norm_type is 0.5"));
  EXPECT_THAT(failure([](LanePlan& p) { p.rank_buffers = {1, 1}; }), HasSubstr("share a buffer"));
  EXPECT_THAT(failure([](LanePlan& p) { p.world_size = 3; }), HasSubstr("world_size is 3"));
}

}  // namespace
}  // namespace gradsync::device
