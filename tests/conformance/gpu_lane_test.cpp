// What the lane of a GPU says where its library or its device is not there.

#include "conformance/lane_kinds.hpp"
#include "device/device_error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(GpuLane, names_a_library_that_is_not_there) {
  EXPECT_THAT(
      [] {
        const GpuLane lane({"/nowhere/libgradsync_kernels.so", ""}, [](LaneReport) {});
      },
      ThrowsMessage<DeviceError>(AllOf(HasSubstr("cannot be loaded"), HasSubstr("/nowhere/libgradsync_kernels.so")))
  );
}

TEST(GpuLane, names_the_function_that_another_library_lacks) {
  EXPECT_THAT(
      [] {
        const GpuLane lane({"libm.so.6", ""}, [](LaneReport) {});
      },
      ThrowsMessage<DeviceError>(HasSubstr("libm.so.6 has no function gradsync_gpu_abi"))
  );
}

#ifndef __SANITIZE_THREAD__

TEST(GpuLane, a_device_that_is_not_visible_fails_the_mapping_and_names_those_that_are) {
  LaneRun run;
  GpuDeviceOptions options = gpu_options();
  options.uuid = "GPU-no-such-device";
  run.use(std::make_unique<GpuLane>(options, run.sink()));
  const ClientArena arena(4096);
  run.lane().submit(MapBuffer{1, arena.descriptor(), arena.size_bytes()});
  EXPECT_THAT(
      run.expect<Failed>().message,
      HasSubstr("opening the GPU: no device GPU-no-such-device is visible here; there are GPU-")
  );
}

TEST(GpuLane, a_plan_that_the_kernels_refuse_is_not_loaded) {
  LaneRun run(LaneKind::Gpu);
  ShardedJob job = pair_job(100);
  run.load(job);
  LanePlan other = job.layout;
  other.buckets[0].divisor = 1e-60;  // 0 in the format of the sums
  run.lane().submit(LoadPlan{7, other});
  EXPECT_THAT(run.expect<Failed>().message, HasSubstr("divisor"));
  run.lane().submit(UnloadPlan{7});
  EXPECT_THAT(run.expect<Failed>().message, HasSubstr("not loaded"));
}

#endif

}  // namespace
}  // namespace gradsync::device
