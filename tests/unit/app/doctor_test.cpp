#include "app/doctor/gpu_probe.hpp"
#include "app/doctor/machine.hpp"
#include "app/doctor/nccl_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace gradsync::app {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;
using enum Finding::Level;

class Doctor : public testing::Test {
 protected:
  Doctor() : root_(fs::temp_directory_path() / ("gradsync-doctor-" + std::to_string(::getpid()))) {
    write("proc/meminfo", "MemAvailable:   8388608 kB\n");
  }

  ~Doctor() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  void add_gpu() const {
    write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC\n");
    write("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: \t GPU-aaaa\n");
  }

  [[nodiscard]] std::vector<Finding> findings() const {
    return findings_of(read_machine(root_, environment, gpu, (root_ / "bin/gradsyncd").string()), gpu);
  }

  static auto says(Finding::Level level, const std::string& what) {
    return Contains(testing::AllOf(Field(&Finding::level, level), Field(&Finding::what, HasSubstr(what))));
  }

  static bool well(const std::vector<Finding>& found) {
    return std::ranges::none_of(found, [](const Finding& finding) { return finding.level == Problem; });
  }

  Environment environment;
  GpuSection gpu;
  fs::path root_;
};

TEST_F(Doctor, a_machine_without_a_gpu_is_well) {
  EXPECT_THAT(findings(), says(Note, "no driver of NVIDIA is visible here"));
  EXPECT_THAT(findings(), says(Ok, "memory for gradients on CPUs: 8.0 GiB"));
  EXPECT_TRUE(well(findings()));
}

TEST_F(Doctor, names_driver_gpus_and_kernels) {
  add_gpu();
  EXPECT_THAT(findings(), says(Ok, "driver of NVIDIA: 580.65.06"));
  EXPECT_THAT(findings(), says(Ok, "GPUs: GPU-aaaa"));
  EXPECT_THAT(findings(), says(Problem, "there is no libgradsync_kernels.so beside this program"));
  write("lib/libgradsync_kernels.so", "");
  EXPECT_THAT(findings(), says(Ok, "kernels: "));
  EXPECT_TRUE(well(findings()));
}

TEST_F(Doctor, a_driver_without_a_gpu_is_a_problem) {
  write("proc/driver/nvidia/version", "NVRM version: something new\n");
  EXPECT_THAT(findings(), says(Ok, "driver of NVIDIA: unknown"));
  EXPECT_THAT(findings(), says(Problem, "the driver lists no GPU"));
}

TEST_F(Doctor, a_gpu_that_is_configured_has_to_be_there) {
  add_gpu();
  gpu.devices = "GPU-aaaa,GPU-bbbb";
  EXPECT_THAT(findings(), says(Problem, "[gpu] devices names GPU-bbbb"));
  gpu.kernels = "off";
  EXPECT_THAT(findings(), says(Note, "GPUs are switched off"));
  EXPECT_TRUE(well(findings()));
}

TEST_F(Doctor, names_what_the_environment_does_to_gpus) {
  add_gpu();
  write("mps/control", "");
  environment = {
      {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:1,expandable_segments:True"},
      {"CUDA_LAUNCH_BLOCKING", "1"},
      {"CUDA_MPS_PIPE_DIRECTORY", (root_ / "mps").string()}};
  EXPECT_THAT(findings(), says(Note, "PYTORCH_CUDA_ALLOC_CONF has expandable_segments"));
  EXPECT_THAT(findings(), says(Note, "CUDA_LAUNCH_BLOCKING=1"));
  EXPECT_THAT(findings(), says(Note, "MPS seems to run"));
  environment.clear();
  EXPECT_THAT(findings(), Not(says(Note, "MPS")));
}

TEST_F(Doctor, little_memory_is_a_problem) {
  write("proc/meminfo", "MemAvailable:   1024 kB\n");
  EXPECT_THAT(findings(), says(Problem, "memory for gradients on CPUs: 1.0 MiB"));
}

TEST_F(Doctor, little_shared_memory_is_said_with_what_to_do) {
  EXPECT_THAT(findings(), says(Note, "there is no /dev/shm"));
  Machine machine = read_machine(root_, environment, gpu, "");
  machine.shared_bytes = 64 << 20;
  const std::vector<Finding> found = findings_of(machine, gpu);
  EXPECT_THAT(found, says(Note, "/dev/shm: 64.0 MiB"));
  EXPECT_THAT(found, Contains(Field(&Finding::hint, HasSubstr("--shm-size"))));
  EXPECT_TRUE(well(found));
  write("dev/shm/file", "");  // its size is that of the file system that the test is on
  EXPECT_THAT(findings(), Contains(Field(&Finding::what, HasSubstr("/dev/shm: "))));
}

TEST_F(Doctor, describes_a_gpu) {
  const std::vector<Finding> found = findings_of("GPU-a", {"NVIDIA H100", 0, 90, std::uint64_t{80} << 30});
  EXPECT_THAT(found, says(Ok, "GPU-a: NVIDIA H100, 80.0 GiB, compute capability 9.0"));
  EXPECT_EQ(found.size(), 1U);
}

TEST_F(Doctor, a_compute_mode_that_keeps_the_second_process_out_is_a_problem) {
  for (const auto& [mode, name] : {std::pair{2, "prohibited"}, std::pair{3, "exclusive process"}}) {
    const std::vector<Finding> found = findings_of("GPU-a", {"NVIDIA H100", mode, 90, 1});
    EXPECT_THAT(found, says(Problem, std::string("GPU-a is in compute mode ") + name));
    EXPECT_EQ(found.back().hint, "nvidia-smi -i GPU-a -c DEFAULT");
  }
}

TEST_F(Doctor, a_mig_instance_is_said) {
  const std::vector<Finding> found = findings_of("GPU-a", {"NVIDIA H100 MIG 1g.10gb", 0, 90, 1});
  EXPECT_THAT(found, says(Note, "GPU-a is a MIG instance"));
  EXPECT_TRUE(well(found));
}

TEST_F(Doctor, nccl_is_looked_at_where_gpus_are_or_somebody_named_it) {
  NcclSection nccl;
  EXPECT_TRUE(findings_of(nccl, environment, false).empty());
  nccl.library = "off";
  EXPECT_THAT(findings_of(nccl, environment, true), says(Note, "NCCL is switched off"));
  nccl.library = "/nowhere/libnccl.so.2";
  const std::vector<Finding> found = findings_of(nccl, environment, false);
  EXPECT_THAT(found, says(Problem, "NCCL cannot be loaded: /nowhere/libnccl.so.2"));
  EXPECT_THAT(found, Contains(Field(&Finding::hint, HasSubstr("[nccl] library"))));
  nccl.library = "libm.so.6";
  EXPECT_THAT(findings_of(nccl, environment, true), says(Problem, "libm.so.6 has no function ncclGetVersion"));
}

TEST_F(Doctor, says_what_of_the_environment_nccl_gets) {
  NcclSection nccl;
  nccl.library = "/nowhere/libnccl.so.2";
  nccl.interface = "=eth0";
  environment = {
      {"NCCL_COMM_ID", "10.0.0.1:5555"},
      {"NCCL_IB_HCA", "mlx5_0"},
      {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
      {"NCCL_SOCKET_IFNAME", "eth1"},
      {"OTHER", "NCCL_"}};
  const std::vector<Finding> found = findings_of(nccl, environment, true);
  EXPECT_THAT(found, says(Problem, "NCCL_COMM_ID=10.0.0.1:5555"));
  EXPECT_THAT(found, says(Note, "NCCL_IB_HCA=mlx5_0 is passed on"));
  EXPECT_EQ(found.size(), 3U) << "of the others the daemon has its own, or they are not NCCL's";
  EXPECT_THAT(nccl_environment_of(nccl), Contains("NCCL_SOCKET_IFNAME==eth0"));
  nccl.interface.clear();
  EXPECT_THAT(findings_of(nccl, environment, true), says(Note, "NCCL_SOCKET_IFNAME=eth1 is passed on"));
}

}  // namespace
}  // namespace gradsync::app
