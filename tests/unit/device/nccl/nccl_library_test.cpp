// The table of NCCL's functions: what is refused, and the library of the wheel itself, where it is there.

#include "device/nccl/nccl_library.hpp"

#include "device/device_error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(NcclLibrary, names_a_file_that_is_not_there) {
  EXPECT_THAT(
      [] { const NcclLibrary library("/nowhere/libnccl.so.2"); },
      ThrowsMessage<DeviceError>(AllOf(HasSubstr("NCCL cannot be loaded"), HasSubstr("/nowhere/libnccl.so.2")))
  );
}

TEST(NcclLibrary, that_is_not_there_is_what_this_machine_does_not_support) {
  try {
    const NcclLibrary library("/nowhere/libnccl.so.2");
    ADD_FAILURE() << "it was loaded";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.kind(), DeviceError::Kind::Unsupported);
  }
}

TEST(NcclLibrary, names_the_function_that_another_library_lacks) {
  EXPECT_THAT(
      [] { const NcclLibrary library("libm.so.6"); },
      ThrowsMessage<DeviceError>(HasSubstr("libm.so.6 has no function ncclGetVersion"))
  );
}

class FakeVersion : public testing::TestWithParam<std::pair<const char*, const char*>> {};

INSTANTIATE_TEST_SUITE_P(
    Refused,
    FakeVersion,
    testing::Values(
        std::pair("22807", "2.28.7"),
        std::pair("22703", "2.27.3"),
        std::pair("2708", "2.7.8"),
        std::pair("30001", "3.0.1")
    )
);

TEST_P(FakeVersion, that_does_not_fit_is_refused_with_both_versions_and_the_path) {
  ::setenv("GRADSYNC_FAKE_NCCL_VERSION", GetParam().first, 1);
  try {
    const NcclLibrary library(GRADSYNC_FAKE_NCCL_LIBRARY);
    ADD_FAILURE() << "it was loaded";
  } catch (const DeviceError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr(GRADSYNC_FAKE_NCCL_LIBRARY),
            HasSubstr(std::string("is NCCL ") + GetParam().second),
            HasSubstr("needs 2.28.9 or a later 2.x")
        )
    );
    EXPECT_THAT(error.hint(), HasSubstr("pip install 'nvidia-nccl-cu13>=2.28.9'"));
    EXPECT_EQ(error.kind(), DeviceError::Kind::Unsupported);
  }
  ::unsetenv("GRADSYNC_FAKE_NCCL_VERSION");
}

TEST(NcclLibrary, a_later_version_is_taken) {
  ::setenv("GRADSYNC_FAKE_NCCL_VERSION", "23104", 1);
  EXPECT_EQ(nccl_version_text(NcclLibrary(GRADSYNC_FAKE_NCCL_LIBRARY).version()), "2.31.4");
  ::unsetenv("GRADSYNC_FAKE_NCCL_VERSION");
}

/// The wheel nvidia-nccl-cu13==2.28.9, which scripts/setup.sh brings.
class WheelOfNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GRADSYNC_REAL_NCCL_LIBRARY)) {
      GTEST_SKIP() << "there is no " << GRADSYNC_REAL_NCCL_LIBRARY << ": scripts/setup.sh installs it";
    }
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  }
};

TEST_F(WheelOfNccl, has_its_version_and_every_function) {
  const NcclLibrary library(GRADSYNC_REAL_NCCL_LIBRARY);
  EXPECT_EQ(nccl_version_text(library.version()), "2.28.9");
}

TEST_F(WheelOfNccl, makes_unique_ids_without_a_gpu) {
  const NcclLibrary library(GRADSYNC_REAL_NCCL_LIBRARY);
  NcclUniqueId first;
  NcclUniqueId second;
  library.must(library.get_unique_id(&first), "making an id");
  library.must(library.get_unique_id(&second), "making an id");
  EXPECT_NE(first, NcclUniqueId());
  EXPECT_NE(first, second);
}

/// This machine may have a GPU; with one this would wait for the other rank.
TEST_F(WheelOfNccl, understands_our_configuration_and_says_that_there_is_no_gpu) {
  if (std::filesystem::exists("/proc/driver/nvidia/version")) {
    GTEST_SKIP() << "there is a driver";
  }
  const NcclLibrary library(GRADSYNC_REAL_NCCL_LIBRARY);
  NcclUniqueId id;
  library.must(library.get_unique_id(&id), "making an id");
  NcclConfig config;
  config.blocking = 0;
  config.max_ctas = 8;
  config.cga_cluster_size = 0;
  config.communicator_name = "dp:0123456789abcdef";
  NcclCommunicator* made = nullptr;
  const NcclResult result = library.init_rank(&made, 2, id, 0, &config);
  EXPECT_EQ(result, NcclResult::UnhandledCudaError);
  EXPECT_THAT(library.words_for(result), HasSubstr("unhandled cuda error"));
  EXPECT_THAT(hint_for_nccl(result), HasSubstr("NCCL_DEBUG=WARN"));
}

}  // namespace
}  // namespace gradsync::device
