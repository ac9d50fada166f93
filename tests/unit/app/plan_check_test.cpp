// `gradsyncd plan check`: the plan of a daemon with the same settings.

#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "plan/make_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace gradsync::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Two ranks with two tensors of 4,096 bytes, placed as `placement` says.
class PlanCheck : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& placement, const std::string& options = "") {
    std::ofstream file(command.file);
    file << R"({"gradsync_declaration":1,"world_size":2,"meshes":[{"name":"m","axes":[{"name":"dp","size":2}]}],)"
         << R"("options":{"data_path":")" << path << '"' << options << "}}\n";
    for (const int rank : {0, 1}) {
      file << R"({"rank":)" << rank << R"(,"tensors":[)";
      for (const char* name : {"a", "b"}) {
        file << (*name == 'b' ? "," : "") << R"({"name":")" << name << R"(","shape":[1024],"dtype":"float32",)"
             << R"("mesh":"m","placements":[)" << placement << "]}";
      }
      file << "]}\n";
    }
  }

  std::string run(int expected = kExitOk) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(execute(command), expected);
    return ::testing::internal::GetCapturedStdout();
  }

  nlohmann::json json() {
    command.json = true;
    return nlohmann::json::parse(run());
  }

  void TearDown() override { std::filesystem::remove(command.file); }

  static std::string temporary() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return ::testing::TempDir() + "plan_check_" + test->name() + ".jsonl";
  }

  PlanCheckCommand command{
      {std::nullopt, {{"engine.first_bucket_bytes", "1048576"}, {"engine.bucket_bytes", "26214400"}}}, temporary()};
};

constexpr const char* kPartial = R"({"axes":["dp"],"kind":"partial","op":"mean","to":{"kind":"replicate"}})";

TEST_F(PlanCheck, plans_buckets_by_the_settings_of_the_daemon_and_says_their_sizes) {
  write("arena", kPartial);
  const nlohmann::json large = json();
  EXPECT_EQ(large["bucket_sizes"]["bucket_bytes"], 25 << 20);
  command.settings.flags["engine.first_bucket_bytes"] = "4096";
  command.settings.flags["engine.bucket_bytes"] = "4096";
  const nlohmann::json small = json();
  EXPECT_EQ(small["bucket_sizes"]["first_bucket_bytes"], 4096);
  EXPECT_NE(small["plan_digest"], large["plan_digest"]);

  plan::RankDeclaration declaration;
  for (const char* name : {"a", "b"}) {
    plan::TensorDeclaration& tensor = declaration.tensors.own().emplace_back();
    tensor.name = name;
    tensor.shape = tensor.local_shape = {1024};
    tensor.mesh = "m";
    tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
  }
  const std::vector<plan::Mesh> meshes{{"m", {{"dp", 2}}, {}}};
  const std::vector<const plan::RankDeclaration*> by_rank{&declaration, &declaration};
  EXPECT_EQ(small["plan_digest"], plan::plan_job(by_rank, meshes, {4096, 4096})->digest);
  command.json = false;
  EXPECT_THAT(run(), HasSubstr("2 buckets"));
}

TEST_F(PlanCheck, says_that_torchs_rule_has_sizes_of_its_own) {
  command.settings.flags["engine.first_bucket_bytes"] = "4096";
  command.settings.flags["engine.bucket_bytes"] = "4096";
  write("arena", kPartial, R"(,"buckets":"torch")");
  EXPECT_EQ(json()["bucket_sizes"]["first_bucket_bytes"], 1 << 20);
  command.json = false;
  EXPECT_THAT(run(), HasSubstr("1 buckets, those of torch's DistributedDataParallel"));
}

TEST_F(PlanCheck, says_nothing_of_buckets_where_there_are_none) {
  write("stats", R"({"axes":["dp"],"kind":"replicate"})");
  EXPECT_FALSE(json().contains("bucket_sizes"));
  command.json = false;
  EXPECT_THAT(run(), Not(HasSubstr("bucket")));
}

TEST_F(PlanCheck, refuses_settings_that_the_daemon_would_refuse) {
  write("arena", kPartial);
  command.settings.flags["engine.bucket_bytes"] = "many";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(kExitConfiguration), "");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("bucket_bytes"));
}

}  // namespace
}  // namespace gradsync::app
