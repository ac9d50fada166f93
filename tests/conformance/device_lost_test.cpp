// A GPU that faults while its worker uses it, after which CUDA fails every call of that process. The faults are those
// of the emulation (tests/kernels/simt/simt.hpp); the worker and its end are not.

#include "conformance/lane_kinds.hpp"
#include "device/gpu/kernel_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Those of which driver_types.h says "the process must be terminated and relaunched", and the two of damaged hardware.
constexpr int kLosing[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911};

TEST(ErrorsOfCuda, that_end_the_use_of_a_device_are_those_of_the_list_and_each_has_a_hint) {
  for (int code = 0; code <= 1000; ++code) {
    const bool losing = std::ranges::find(kLosing, code) != std::end(kLosing);
    EXPECT_EQ(ends_use_of_device(code), losing) << code;
    EXPECT_TRUE(!losing || !hint_for_cuda_error(code).empty()) << code;
  }
}

#ifndef __SANITIZE_THREAD__

class DeviceLost : public testing::Test {
 protected:
  DeviceLost() { std::filesystem::create_directories(folder_); }

  ~DeviceLost() override {
    run_.stop();
    std::filesystem::remove_all(folder_);
  }

  void start() {
    ProcessLaneOptions options = worker_options("gpu_worker");
    options.environment = {"GRADSYNC_SIMT_FAULTS=" + folder_.string(), "CUDA_VISIBLE_DEVICES=here"};
    auto lane = std::make_unique<ProcessLane>(std::move(options), run_.sink());
    lane_ = lane.get();
    run_.arenas.clear();
    run_.use(std::move(lane));
    run_.load(job_);
  }

  void fault(int code) const { std::ofstream(folder_ / "here") << code; }

  void reduce(Tag tag) { run_.lane().submit(ReduceBucket{LaneRun::kPlan, tag, 0, {}, false, false}); }

  void finish(Tag tag) {
    const std::vector<plan::ClipRule> rules(job_.layout.clip_groups, strict_rule(1e-3));
    run_.lane().submit(finish_of(LaneRun::kPlan, tag, rules));
  }

  /// The next report, which says that the lane was lost by this error, when its worker is gone.
  Failed expect_lost(int code, pid_t worker) {
    const Failed failed = run_.expect<Failed>();
    EXPECT_TRUE(failed.lane_lost) << code;
    EXPECT_THAT(
        failed.message,
        AllOf(
            StartsWith("the worker of the lane (pid " + std::to_string(worker) + ") lost its device: "),
            HasSubstr("(CUDA error " + std::to_string(code) + ")")
        )
    );
    EXPECT_EQ(failed.hint, hint_for_cuda_error(code));
    EXPECT_EQ(lane_->lost(), failed.message);
    EXPECT_EQ(::kill(worker, 0), -1) << "it is gone before anyone hears of it";
    EXPECT_EQ(errno, ESRCH);
    return failed;
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("gradsync-faults-" + std::to_string(::getpid()));
  ShardedJob job_ = filled(pair_job(1000));
  LaneRun run_;
  ProcessLane* lane_ = nullptr;

 private:
  static ShardedJob filled(ShardedJob job) {
    std::mt19937_64 random(3);
    job.fill(random);
    return job;
  }
};

TEST_F(DeviceLost, in_a_reduction_ends_the_worker_and_fails_all_that_it_had_to_do) {
  for (const int code : kLosing) {
    start();
    const pid_t worker = lane_->worker_pid();
    fault(code);
    reduce(1);
    finish(1);
    run_.lane().submit(UnloadPlan{LaneRun::kPlan});
    EXPECT_EQ(expect_lost(code, worker).tag, 1U);
    EXPECT_EQ(expect_lost(code, worker).tag, 1U);
    EXPECT_EQ(expect_lost(code, worker).plan, LaneRun::kPlan);
    run_.lane().submit(UnmapBuffer{1});  // and so does what comes later
    EXPECT_EQ(expect_lost(code, worker).buffer, 1U);
  }
}

TEST_F(DeviceLost, while_gradients_are_multiplied_ends_the_worker) {
  start();
  const pid_t worker = lane_->worker_pid();
  reduce(1);
  run_.expect<Reduced>();
  fault(700);
  finish(1);
  EXPECT_THAT(expect_lost(700, worker).message, HasSubstr("multiplying"));
}

TEST_F(DeviceLost, costs_nothing_but_its_worker) {
  LaneRun host(LaneKind::Host);
  host.load(job_);
  start();
  const pid_t worker = lane_->worker_pid();
  fault(719);
  reduce(1);
  expect_lost(719, worker);
  start();
  EXPECT_NE(lane_->worker_pid(), worker);
  reduce(1);
  run_.expect<Reduced>();
  host.lane().submit(ReduceBucket{LaneRun::kPlan, 1, 0, {}, false, false});
  host.expect<Reduced>();
  for (std::size_t rank = 0; rank < run_.arenas.size(); ++rank) {
    EXPECT_EQ(std::memcmp(run_.arenas[rank].data(), host.arenas[rank].data(), job_.arenas[rank].size()), 0) << rank;
  }
}

#endif

}  // namespace
}  // namespace gradsync::device
