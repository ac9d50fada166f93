#include "app/daemon/gpu_workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gradsync::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

class GpuWorkersTest : public testing::Test {
 protected:
  GpuWorkersTest() : folder_(fs::temp_directory_path() / ("gradsync-gpus-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }

  ~GpuWorkersTest() override { fs::remove_all(folder_); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }

  /// The refusal of a worker for this GPU.
  static Error refusal(GpuSection options, const std::string& gpu) {
    GpuWorkers workers(std::move(options), {}, 1, [](device::LaneId, device::LaneReport) {});
    const auto started = workers.start(1, gpu);
    EXPECT_FALSE(started);
    return started ? Error{} : started.error();
  }

  fs::path folder_;
};

TEST_F(GpuWorkersTest, know_the_gpus_that_the_driver_lists) {
  write("0000:01:00.0/information", "Model: \t\t NVIDIA H100\nIRQ:   \t 42\nGPU UUID: \t GPU-bbbb \nVideo BIOS: 1\n");
  write("0000:02:00.0/information", "GPU UUID:\tGPU-aaaa\n");
  write("0000:03:00.0/information", "GPU UUID: \t ????????\n");  // a GPU that nothing has opened yet
  fs::create_directories(folder_ / "0000:04:00.0");
  EXPECT_THAT(gpus_listed_in(folder_.string()), ElementsAre("GPU-aaaa", "GPU-bbbb"));
  EXPECT_THAT(gpus_listed_in((folder_ / "nowhere").string()), IsEmpty());
}

TEST_F(GpuWorkersTest, know_the_gpus_that_are_configured) {
  EXPECT_THAT(listed_gpus("GPU-1, GPU-2,,  GPU-3 "), ElementsAre("GPU-1", "GPU-2", "GPU-3"));
  EXPECT_THAT(listed_gpus(" "), IsEmpty());
}

TEST_F(GpuWorkersTest, find_the_kernels_beside_the_program_or_where_they_were_said_to_be) {
  const std::string program = (folder_ / "bin" / "gradsyncd").string();
  EXPECT_EQ(find_kernels("", program), "");
  write("lib/libgradsync_kernels.so", "");
  EXPECT_EQ(find_kernels("", program), (folder_ / "lib" / "libgradsync_kernels.so").string());
  write("mine.so", "");
  EXPECT_EQ(find_kernels((folder_ / "mine.so").string(), program), (folder_ / "mine.so").string());
  EXPECT_EQ(find_kernels((folder_ / "other.so").string(), program), "");
}

TEST_F(GpuWorkersTest, collect_nothing_where_the_environment_names_one_address_for_all_communicators) {
  GpuWorkers workers({}, {}, 1, [](device::LaneId, device::LaneReport) {});
  EXPECT_TRUE(workers.may_collect());
  ASSERT_EQ(::setenv("NCCL_COMM_ID", "10.0.0.1:5555", 1), 0);
  const Result<void> may = workers.may_collect();
  const auto started = workers.start_cpu_collectives(1);
  ::unsetenv("NCCL_COMM_ID");
  ASSERT_FALSE(may);
  EXPECT_EQ(may.error().code, ErrorCode::UnsupportedPlacement);
  EXPECT_THAT(may.error().message, HasSubstr("NCCL_COMM_ID=10.0.0.1:5555"));
  EXPECT_EQ(may.error().hint, "unset it for the daemon");
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().message, may.error().message);
}

TEST_F(GpuWorkersTest, are_refused_with_what_is_missing) {
  EXPECT_THAT(refusal({"off", "GPU-1"}, "GPU-1").message, HasSubstr("switched off"));
  const Error unknown = refusal({"", "GPU-1,GPU-2"}, "GPU-3");
  EXPECT_EQ(unknown.code, ErrorCode::NoGpu);
  EXPECT_EQ(unknown.message, "the daemon does not see the GPU GPU-3; it sees GPU-1, GPU-2");
  EXPECT_THAT(refusal({"/nowhere.so", "GPU-1"}, "GPU-1").message, HasSubstr("there is no /nowhere.so"));
}

}  // namespace
}  // namespace gradsync::app
