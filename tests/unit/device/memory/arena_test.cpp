#include "device/memory/arena.hpp"

#include "device/host/thread_count.hpp"
#include "device/memory/memory_headroom.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

namespace gradsync::device {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSize = 1U << 20;

std::uint64_t pages_bytes(int fd) {
  struct stat status {};

  EXPECT_EQ(::fstat(fd, &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(Arena, is_sealed_and_not_populated) {
  const auto fd = create_arena(kSize);
  ASSERT_TRUE(fd);
  constexpr int kNeverExecuted = 0x20;  // F_SEAL_EXEC, which kernels since 6.3 set
  EXPECT_EQ(::fcntl(fd->get(), F_GET_SEALS) & ~kNeverExecuted, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(pages_bytes(fd->get()), 0U);
}

TEST(Arena, cannot_be_resized_or_sealed_by_whoever_gets_it) {
  const auto fd = create_arena(kSize);
  ASSERT_TRUE(fd);
  EXPECT_EQ(::ftruncate(fd->get(), kSize / 2), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(fd->get(), kSize * 2), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Arena, punching_out_frees_the_pages_under_a_living_mapping) {
  const auto fd = create_arena(kSize);
  ASSERT_TRUE(fd);
  const UniqueFd other(::dup(fd->get()));
  void* mapping = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, other.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  auto* bytes = static_cast<unsigned char*>(mapping);
  std::fill(bytes, bytes + kSize, 7);
  ASSERT_EQ(pages_bytes(other.get()), kSize);

  punch_out(fd->get(), kSize);

  EXPECT_EQ(pages_bytes(other.get()), 0U);
  EXPECT_EQ(bytes[kSize / 2], 0);  // still mapped, still of its size
  ::munmap(mapping, kSize);
}

TEST(Arena, refuses_what_the_machine_does_not_have) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 60;
  const auto fits = check_headroom(kMuch, memory_headroom({kMuch, 0}));
  ASSERT_FALSE(fits);
  EXPECT_EQ(fits.error().code, ErrorCode::InsufficientMemory);
  EXPECT_NE(fits.error().message.find("1152921504606846976"), std::string::npos) << fits.error().message;
  EXPECT_TRUE(check_headroom(4096, memory_headroom({4096, 0})));
  EXPECT_EQ(create_arena(0).error().code, ErrorCode::InvalidParams);
}

/// A file tree that looks like a kernel's.
class KernelFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gradsync-device-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal:        8192 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\n");
  }

  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(KernelFiles, without_a_cgroup_the_machine_is_the_limit) {
  EXPECT_EQ(memory_headroom_of(root_).free_bytes, 4096U << 10);
  EXPECT_EQ(memory_headroom_of(root_).limit_bytes, 8192U << 10);
}

TEST_F(KernelFiles, the_tightest_cgroup_limits_whether_own_or_above) {
  write("proc/self/cgroup", "0::/pod/trainer\n");
  write("sys/fs/cgroup/pod/trainer/memory.max", "max\n");
  write("sys/fs/cgroup/pod/trainer/memory.current", "100\n");
  write("sys/fs/cgroup/pod/memory.max", "1000000\n");
  write("sys/fs/cgroup/pod/memory.current", "400000\n");
  write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\nactive_file 5\n");
  EXPECT_EQ(memory_headroom_of(root_).free_bytes, 700000U);
  EXPECT_EQ(memory_headroom_of(root_).limit_bytes, 1000000U);
  write("sys/fs/cgroup/pod/trainer/memory.max", "500\n");
  EXPECT_EQ(memory_headroom_of(root_).free_bytes, 400U);
}

TEST_F(KernelFiles, reads_version_one_too) {
  write("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(memory_headroom_of(root_).free_bytes, 4096U << 10);
  write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "3000\n");
  write("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(memory_headroom_of(root_).free_bytes, 0U);
  EXPECT_EQ(memory_headroom_of(root_).limit_bytes, 3000U);
}

TEST_F(KernelFiles, inside_a_container_the_root_of_the_mount_counts) {
  write("proc/self/cgroup", "0::/not/visible/here\n");
  write("sys/fs/cgroup/memory.max", "2000\n");
  write("sys/fs/cgroup/memory.current", "500\n");
  EXPECT_EQ(memory_headroom_of(root_).free_bytes, 1500U);
}

// A client of another cgroup filled an arena: no page of it is charged to the daemon's yet, and all may be.
TEST_F(KernelFiles, arenas_count_whole_but_for_pages_that_the_cgroup_pays_for) {
  write("proc/self/cgroup", "0::/daemon\n");
  write("sys/fs/cgroup/daemon/memory.max", "1000000\n");
  write("sys/fs/cgroup/daemon/memory.current", "100000\n");
  write("sys/fs/cgroup/daemon/memory.stat", "anon 1\nshmem 0\ninactive_file 0\n");
  EXPECT_EQ(memory_headroom_of(root_, {400000, 400000}).free_bytes, 500000U);
  EXPECT_EQ(memory_headroom_of(root_, {900000, 900000}).short_bytes, 0U);
  EXPECT_EQ(memory_headroom_of(root_, {900001, 900001}).short_bytes, 1U);

  write("sys/fs/cgroup/daemon/memory.current", "500000\n");
  write("sys/fs/cgroup/daemon/memory.stat", "anon 1\nshmem 400000\ninactive_file 0\n");
  EXPECT_EQ(memory_headroom_of(root_, {400000, 400000}).free_bytes, 500000U) << "they are in what is used";
  EXPECT_EQ(memory_headroom_of(root_, {400000, 100000}).free_bytes, 200000U) << "it is other shared memory";
}

TEST_F(KernelFiles, pages_of_arenas_are_no_longer_available_whoever_pays_for_them) {
  EXPECT_EQ(memory_headroom_of(root_, {1U << 20, 1U << 20}).free_bytes, 4096U << 10);
  EXPECT_EQ(memory_headroom_of(root_, {1U << 20, 0}).free_bytes, (4096U << 10) - (1U << 20));
}

TEST_F(KernelFiles, cpu_quotas_round_down_to_whole_threads) {
  EXPECT_EQ(cgroup_cpus(root_), std::nullopt);
  write("proc/self/cgroup", "0::/pod\n");
  write("sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), std::nullopt);
  write("sys/fs/cgroup/pod/cpu.max", "350000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 3);
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 1);
  write("proc/self/cgroup", "3:cpu,cpuacct:/box\n");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 2);
  write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cgroup_cpus(root_), std::nullopt);
}

TEST(KernelText, refuses_what_is_not_a_number) {
  EXPECT_EQ(meminfo_bytes("MemTotal: x kB\n", "MemTotal"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("MemTotalish: 5 kB\n", "MemTotal"), std::nullopt);
  EXPECT_EQ(cgroup_limit("max\n"), std::nullopt);
  EXPECT_EQ(cgroup_limit(""), std::nullopt);
  EXPECT_EQ(cgroup_limit("12a"), std::nullopt);
  EXPECT_EQ(keyed_number("inactive_file_x 5\ninactive_file 7\n", "inactive_file"), 7U);
  EXPECT_EQ(cgroup_path("garbage\n4:memory:/a:b\n", "memory"), "/a:b");
  EXPECT_EQ(cgroup_path("4:memory:/a\n", ""), std::nullopt);
}

TEST(ThreadCount, is_at_least_one) { EXPECT_GE(available_threads(), 1); }

}  // namespace
}  // namespace gradsync::device
