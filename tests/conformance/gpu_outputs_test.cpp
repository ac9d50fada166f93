// Results that are read out of a GPU which fails meanwhile: zeros are in their place, and nothing comes of them.

#include "device/gpu/gpu_outputs.hpp"

#include "conformance/lane_kinds.hpp"
#include "device/device_error.hpp"
#include "unit/device/transfer/node_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#ifndef __SANITIZE_THREAD__

namespace gradsync::device {
namespace {

using testing::Each;
using testing::HasSubstr;

/// The plan of a node of two, whose ranks 0 and 1 have a whole sum of a tensor of which the other node has a copy.
class PlanOfNode {
 public:
  PlanOfNode() {
    std::mt19937_64 random(1);
    job.add_bucket(plan::DType::Float32, 2.0);
    job.add(replicated({kElements}, {{0, 1}, {2, 3}}));
    job.load();
    job.fill(random);
    LanePlan layout = layout_of_node(job.layout, placed, 0);
    layout.nodes.communicators = communicators_of(layout.nodes, "dp");
    std::vector<BufferView> views = job.views();
    views[2] = views[3] = {};
    loaded.emplace(std::move(layout), views, 1);
  }

  static constexpr std::uint64_t kElements = 5'000;
  const NodeOfRank placed = {0, 0, 1, 1};
  ShardedJob job{4};
  std::optional<LoadedPlan> loaded;
};

std::string failure_of(const GpuOutputs& outputs) {
  try {
    outputs.throw_if_failed();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(OutputsOfAGpu, are_zeros_behind_a_failure_which_is_said) {
  PlanOfNode plan;
  const Chunk& chunk = plan.loaded->nodes()->held.front();
  KernelLibrary library(gpu_options().library);
  GpuOutputs outputs(library);
  const std::size_t bytes = chunk.count() * sizeof(float);
  const std::byte* const results = outputs.read(*plan.loaded, chunk, {0, 0}, sizeof(float));
  EXPECT_EQ(std::memcmp(results, plan.loaded->output(chunk, {0, 0}, sizeof(float)), bytes), 0);
  EXPECT_EQ(failure_of(outputs), "");
  library.read = [](void*, const void*, std::size_t) { return 1; };
  const std::byte* const zeros = outputs.read(*plan.loaded, chunk, {1, 0}, sizeof(float));
  EXPECT_THAT(std::vector<std::byte>(zeros, zeros + bytes), Each(std::byte{0}));
  EXPECT_THAT(failure_of(outputs), HasSubstr("reading results"));
}

/// A process whose device is lost: says by its end whether `use` of it failed while results were read.
template <typename Use>
[[noreturn]] void use_lost_device(Use use) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gradsync-outputs-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  ::setenv("GRADSYNC_SIMT_FAULTS", folder.c_str(), 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "here", 1);
  PlanOfNode plan;
  const std::atomic<bool> cancel{false};
  GpuDevice device(gpu_options(), cancel);
  device.load(*plan.loaded);
  std::ofstream(folder / "here") << 700;
  bool lost = false;
  try {
    device.passes().reduce(*plan.loaded, ReduceBucket{1, 1, 0, {}});
  } catch (const DeviceError&) {
    lost = true;
  }
  std::filesystem::remove_all(folder);
  std::string said;
  try {
    use(device, *plan.loaded);
  } catch (const DeviceError& error) {
    said = error.kind() == DeviceError::Kind::DeviceLost ? error.what() : "";
  }
  ::_exit(lost && said.find("reading results") != std::string::npos ? 0 : 1);
}

TEST(OutputsOfAGpu, that_cannot_be_read_are_not_compared) {
  const auto compare = [](GpuDevice& device, LoadedPlan& plan) { device.node_passes().compare_results(plan, 0); };
  EXPECT_EXIT(use_lost_device(compare), testing::ExitedWithCode(0), "");
}

TEST(OutputsOfAGpu, that_cannot_be_read_are_no_rows) {
  const auto read = [](GpuDevice& device, LoadedPlan& plan) {
    plan.attempt().measured = 1;
    static_cast<void>(device.node_passes().read_copies(plan, ReadRows{1, 1, {}, {{0, 0}}}));
  };
  EXPECT_EXIT(use_lost_device(read), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gradsync::device

#endif
