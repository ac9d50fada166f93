// The folder of dumps: whole files, the last few of each owner, and what may be wrong with the folder.

#include "app/blackbox/dump_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace gradsync::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMoment = 1'795'887'362'123'456;  // 2026-11-28T17:36:02.123456Z

struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path().string() + "/gradsync-dumps-XXXXXX";
    path = ::mkdtemp(name.data());
  }

  ~TemporaryFolder() { std::filesystem::remove_all(path); }

  [[nodiscard]] std::set<std::string> files(const std::string& under) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path + under)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  std::string path;
};

TEST(DumpName, is_made_of_the_time_the_owner_the_job_and_the_node) {
  EXPECT_EQ((DumpName{kMoment, 7, 1000, "llm", "node-a"}.file()), "20261128T173602123Z-0007.1000.llm.node-a.jsonl");
  EXPECT_EQ(
      (DumpName{kMoment, 12345, 0, "../a b\nc", std::string(100, 'x')}.file()),
      "20261128T173602123Z-12345.0.___a_b_c." + std::string(60, 'x') + ".jsonl"
  );
}

TEST(DumpFolder, is_made_with_its_parent_and_holds_whole_files_for_the_owner_alone) {
  const TemporaryFolder folder;
  DumpFolder dumps(folder.path + "/state/blackbox", 3);
  ASSERT_TRUE(dumps.write("a.1.job.node.jsonl", "first"));
  EXPECT_THAT(folder.files("/state/blackbox"), ElementsAre("a.1.job.node.jsonl"));
  std::ifstream file(folder.path + "/state/blackbox/a.1.job.node.jsonl");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "first");

  struct stat found {};

  ASSERT_EQ(::stat((folder.path + "/state/blackbox").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777U, 0700U);
  ASSERT_EQ(::stat((folder.path + "/state/blackbox/a.1.job.node.jsonl").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777U, 0600U);
}

TEST(DumpFolder, keeps_the_last_of_each_owner_and_touches_no_other_file) {
  const TemporaryFolder folder;
  DumpFolder dumps(folder.path, 3);
  const std::string notes = folder.path + "/20200101T000000000Z.notes.jsonl";
  std::ofstream(notes) << "mine";
  std::ofstream(folder.path + "/old.1000.job.node.jsonl") << "mine";
  std::set<std::string> wanted{"20200101T000000000Z.notes.jsonl", "old.1000.job.node.jsonl"};
  for (std::int64_t number = 0; number < 8; ++number) {
    for (const std::uint32_t uid : {1000U, 10U}) {
      const std::string name = DumpName{kMoment + number * 1000, 1, uid, "job", "node"}.file();
      ASSERT_TRUE(dumps.write(name, "text"));
      if (number >= 5) {
        wanted.insert(name);
      }
    }
  }
  EXPECT_EQ(folder.files(""), wanted);
}

TEST(DumpFolder, never_removes_what_it_has_just_written) {
  const TemporaryFolder folder;
  DumpFolder dumps(folder.path, 1);
  ASSERT_TRUE(dumps.write(DumpName{kMoment, 1, 1000, "job", "node"}.file(), "of a clock that was ahead"));
  const std::string newest = DumpName{kMoment - 5'000'000, 2, 1000, "job", "node"}.file();
  ASSERT_TRUE(dumps.write(newest, "text"));
  EXPECT_THAT(folder.files(""), ElementsAre(newest));
}

TEST(DumpFolder, says_what_is_wrong_with_it_and_goes_on_when_that_is_over) {
  const TemporaryFolder folder;
  DumpFolder dumps(folder.path + "/a/b/c", 3);
  Result<void> written = dumps.write("x", "text");
  ASSERT_TRUE(written.has_error());
  EXPECT_THAT(written.error().message, HasSubstr("making the folder in '" + folder.path + "/a/b/c'"));
  std::filesystem::create_directories(folder.path + "/a/b/c");
  ::chmod((folder.path + "/a/b/c").c_str(), 0777);
  written = dumps.write("x", "text");
  ASSERT_TRUE(written.has_error());
  EXPECT_THAT(written.error().message, HasSubstr("with mode 0777: others may write to it"));
  ::chmod((folder.path + "/a/b/c").c_str(), 0700);
  EXPECT_TRUE(dumps.write("x", "text"));
  EXPECT_TRUE(DumpFolder(folder.path + "/a/b/c/x", 3).write("y", "text").has_error());
}

}  // namespace
}  // namespace gradsync::app
