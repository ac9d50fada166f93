// What the policy files of a user may take, and which of them go.

#include "base/unique_fd.hpp"
#include "engine/policies/policy_folder.hpp"
#include "unit/engine/policies/state_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace gradsync::engine {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr std::int64_t kMinute = 60;
constexpr std::int64_t kDay = 24 * 60 * kMinute;

std::string path_of(const StateFolder& folder, const std::string& job, std::uint32_t uid = kUid) {
  return folder.path() + "/" + policy_file_name(uid, job);
}

bool is_there(const std::string& path) { return std::filesystem::exists(std::filesystem::symlink_status(path)); }

void age(const std::string& path, std::int64_t seconds) {
  struct stat found {};

  ASSERT_EQ(::lstat(path.c_str(), &found), 0) << path;
  found.st_mtim.tv_sec -= seconds;
  const timespec times[] = {found.st_mtim, found.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
}

/// A job that never comes back, of so many bytes.
std::string left(
    const StateFolder& folder,
    const std::string& job,
    std::int64_t seconds,
    std::size_t bytes = 0,
    std::uint32_t uid = kUid
) {
  const std::string path = path_of(folder, job, uid);
  { opened(folder.path(), job, uid); }
  std::filesystem::resize_file(path, bytes);
  age(path, seconds);
  return path;
}

std::vector<PolicyFile> open_jobs(const StateFolder& folder, std::size_t count) {
  std::vector<PolicyFile> files;
  for (std::size_t job = 0; job < count; ++job) {
    files.push_back(opened(folder.path(), std::to_string(job)));
  }
  return files;
}

TEST(PolicyFileRoom, the_oldest_goes_where_a_user_has_64) {
  const StateFolder folder;
  std::vector<std::string> by_age(kMostPolicyFiles);
  for (std::size_t job = 0; job < by_age.size(); ++job) {
    const std::size_t rank = job * 37 % by_age.size();
    by_age[rank] = left(folder, std::to_string(job), static_cast<std::int64_t>(by_age.size() - rank) * kMinute);
  }
  EXPECT_THAT(folder.names(), SizeIs(kMostPolicyFiles));
  for (std::size_t job = 0; job < 10; ++job) {
    ASSERT_TRUE(is_there(by_age[job]));
    opened(folder.path(), "new " + std::to_string(job));
    EXPECT_FALSE(is_there(by_age[job]));
    EXPECT_THAT(folder.names(), SizeIs(kMostPolicyFiles)) << "and no other";
  }
}

TEST(PolicyFileRoom, a_job_that_is_there_makes_no_other_go) {
  const StateFolder folder;
  for (std::size_t job = 0; job < kMostPolicyFiles; ++job) {
    left(folder, std::to_string(job), kMinute);
  }
  const auto before = folder.names();
  PolicyFile file = opened(folder.path(), "0");
  stored(file, 1, state_of(1));
  stored(file, 2, state_of(2, 100'000));
  EXPECT_EQ(folder.names(), before) << "a larger file in its place is no file more";
}

TEST(PolicyFileRoom, damaged_files_are_among_the_64_and_the_oldest_go) {
  const StateFolder folder;
  const std::string name = left(folder, "train", 0);
  constexpr std::size_t kDamages = kMostPolicyFiles + 5;
  for (std::size_t number = 0; number < kDamages; ++number) {
    write_bytes(name, std::to_string(number));
    age(name, static_cast<std::int64_t>(kDamages - number) * kMinute);
    EXPECT_EQ(opened(folder.path()).newest(), std::nullopt);
  }
  std::set<std::string> contents;
  std::set<std::string> newest = {""};
  for (const std::string& file : folder.names()) {
    contents.insert(bytes_of(folder.path() + "/" + file));
  }
  for (std::size_t number = kDamages; newest.size() < kMostPolicyFiles; --number) {
    newest.insert(std::to_string(number - 1));
  }
  EXPECT_EQ(contents, newest);
}

TEST(PolicyFileRoom, files_of_30_days_go_when_one_is_made_and_only_then) {
  const StateFolder folder;
  const std::string old = left(folder, "old", 0);
  const std::string damaged = left(folder, "damaged", 0) + ".damaged-1";
  std::filesystem::rename(path_of(folder, "damaged"), damaged);
  const std::string half = left(folder, "half", 0) + ".new";
  std::filesystem::rename(path_of(folder, "half"), half);
  const std::string younger = left(folder, "younger", 30 * kDay - kMinute);
  left(folder, "new", 0);
  PolicyFile file = opened(folder.path());
  stored(file, 1, state_of(1, 20'000));
  for (const std::string& path : {old, damaged, half}) {
    age(path, 30 * kDay + kMinute);
  }
  stored(file, 2, state_of(2));
  EXPECT_TRUE(file.wipe());
  { opened(folder.path(), "new"); }
  EXPECT_TRUE(is_there(old) && is_there(damaged) && is_there(half)) << "nobody looked";
  { opened(folder.path(), "another"); }
  EXPECT_FALSE(is_there(old) || is_there(damaged) || is_there(half));
  EXPECT_TRUE(is_there(younger));
  { opened(folder.path(), "old"); }
  age(old, 31 * kDay);
  stored(file, 3, state_of(3));
  EXPECT_FALSE(is_there(old)) << "the first store after a wipe makes a file";
}

TEST(PolicyFileRoom, what_is_of_others_stays_however_old_or_many) {
  const StateFolder folder;
  std::vector<std::string> others;
  for (const std::uint32_t uid : {1U, 100U, 1001U, 10'000U}) {
    others.push_back(left(folder, "train", 0, kMostPolicyBytes, uid));
  }
  const std::string name = folder.path() + "/" + policy_file_name(kUid, "no file");
  for (const char* own : {"1000-notes.policies", "1000-0123456789abcdef.txt", "1000-0123456789ABCDEF.policies"}) {
    others.push_back(folder.path() + "/" + own);
    write_bytes(others.back(), "notes");
  }
  std::filesystem::create_symlink(others.back(), name);
  others.push_back(name);
  others.push_back(folder.path() + "/" + policy_file_name(kUid, "no file either"));
  std::filesystem::create_directory(others.back());
  for (const std::string& path : others) {
    age(path, 100 * kDay);
  }
  for (std::size_t job = 0; job < kMostPolicyFiles + 5; ++job) {
    opened(folder.path(), std::to_string(job));
  }
  for (const std::string& path : others) {
    EXPECT_TRUE(is_there(path)) << path;
  }
  EXPECT_THAT(folder.names(), SizeIs(kMostPolicyFiles + others.size()));
}

TEST(PolicyFileRoom, a_file_that_a_job_has_open_never_goes) {
  const StateFolder folder;
  std::vector<PolicyFile> files = open_jobs(folder, 3);
  for (std::size_t job = 0; job < files.size(); ++job) {
    stored(files[job], 1, state_of(job));
    age(path_of(folder, std::to_string(job)), 100 * kDay);
  }
  for (std::size_t job = 0; job < 2 * kMostPolicyFiles; ++job) {
    opened(folder.path(), "left " + std::to_string(job));
  }
  EXPECT_THAT(folder.names(), SizeIs(kMostPolicyFiles));
  files.clear();
  for (std::size_t job = 0; job < 3; ++job) {
    EXPECT_EQ(opened(folder.path(), std::to_string(job)).find(1), state_of(job));
  }
}

TEST(PolicyFileRoom, where_jobs_have_64_open_another_is_refused_and_leaves_nothing) {
  const StateFolder folder;
  std::vector<PolicyFile> files = open_jobs(folder, kMostPolicyFiles);
  const auto before = folder.names();
  const Result<PolicyFile> refused = PolicyFile::open(folder.path(), kUid, "train");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::LimitExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("'" + folder.path() + "'"));
  EXPECT_THAT(refused.error().message, HasSubstr("65 policy files of uid 1000"));
  EXPECT_THAT(refused.error().message, HasSubstr("64 files with 268435456 bytes"));
  EXPECT_EQ(folder.names(), before);
  stored(files[0], 1, state_of(1, 100'000));
  opened(folder.path(), "train", kUid + 1);
  files.pop_back();
  opened(folder.path(), "train");
  EXPECT_FALSE(is_there(path_of(folder, "63")));
}

TEST(PolicyFileRoom, the_oldest_go_where_the_files_of_a_user_have_too_many_bytes) {
  const StateFolder folder;
  constexpr std::size_t kQuarter = kMostPolicyBytes / 4;
  std::vector<std::string> paths;
  for (const std::int64_t minutes : {2, 9, 5, 7}) {
    paths.push_back(left(folder, std::to_string(minutes), minutes * kMinute, kQuarter));
  }
  const std::string half = path_of(folder, "killed") + ".new";
  write_bytes(half, "as a killed daemon left it");
  age(half, 6 * kMinute);
  PolicyFile file = opened(folder.path());
  EXPECT_FALSE(is_there(paths[1])) << "26 bytes were too many";
  EXPECT_THAT(folder.names(), SizeIs(5));
  stored(file, 1, "small");
  EXPECT_THAT(folder.names(), SizeIs(5)) << "there is room for it";
  stored(file, 2, std::string(kQuarter / 2 + 1, 's'));
  EXPECT_FALSE(is_there(paths[3]));
  EXPECT_TRUE(is_there(paths[2]) && is_there(half)) << "only as many as needed";
  EXPECT_EQ(file.find(1), "small");
}

TEST(PolicyFileRoom, a_store_that_has_no_room_leaves_the_state_before_it) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  stored(file, 1, state_of(1));
  PolicyFile other = opened(folder.path(), "other");
  const std::string path = path_of(folder, "other");
  std::filesystem::resize_file(path, kMostPolicyBytes - std::filesystem::file_size(path_of(folder, "train")));
  const auto before = folder.names();
  const Result<void> refused = store(file, 2, state_of(2, 20'000));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::LimitExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("'" + folder.path() + "'"));
  EXPECT_THAT(refused.error().message, HasSubstr("64 files with 268435456 bytes"));
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(file.find(1), state_of(1));
  EXPECT_EQ(state_in(bytes_of(path_of(folder, "train")), 1), state_of(1));
  stored(file, 2, state_of(2));
  EXPECT_TRUE(other.wipe());
  stored(file, 3, state_of(3, 20'000));
}

TEST(PolicyFileRoom, a_larger_file_that_another_daemon_writes_never_goes) {
  const StateFolder folder;
  const std::string half = path_of(folder, "written") + ".new";
  const UniqueFd writer(::open(half.c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::flock(writer.get(), LOCK_EX), 0);
  ASSERT_EQ(::ftruncate(writer.get(), static_cast<off_t>(kMostPolicyBytes)), 0);
  age(half, 100 * kDay);
  PolicyFile file = opened(folder.path());
  const Result<void> refused = store(file, 1, "state");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::LimitExceeded);
  EXPECT_TRUE(is_there(half));
}

TEST(PolicyFileRoom, the_largest_states_of_one_job_have_room) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  constexpr std::size_t kMost = PolicyFile::kMostStateBytes;
  stored(file, 1, std::string(kMost - kPolicyFilePage, 'a'));
  stored(file, 2, std::string(kMost, 'b'));
  const Result<void> refused = store(file, 3, std::string(kMost + 1, 'c'));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::LimitExceeded);
  EXPECT_EQ(file.newest()->word, 2U);
}

/// Two daemons at the same jobs of the same user: `turn` says which.
template <typename Turn>
void race(const Turn& turn) {
  (void)spdlog::default_logger();  // made here: ThreadSanitizer does not see how the library guards its making
  std::thread other([&] { turn(1); });
  turn(0);
  other.join();
}

TEST(PolicyFileRoom, of_two_that_make_files_at_once_each_gets_its_own_and_keeps_it) {
  const StateFolder folder;
  for (std::size_t job = 0; job < kMostPolicyFiles; ++job) {
    left(folder, "left " + std::to_string(job), kMinute);
  }
  race([&](std::size_t daemon) {
    std::deque<std::pair<PolicyFile, std::string>> held;
    for (std::uint64_t number = 1; number <= 300; ++number) {
      const std::string job = std::to_string(daemon) + " " + std::to_string(number);
      held.emplace_back(opened(folder.path(), job), path_of(folder, job));
      stored(held.back().first, number, state_of(number));
      EXPECT_TRUE(is_there(held.front().second));
      if (held.size() > 20) {
        held.pop_front();
      }
    }
    for (const auto& [file, path] : held) {
      EXPECT_GT(std::filesystem::file_size(path), 0U);
    }
  });
  EXPECT_LE(folder.names().size(), kMostPolicyFiles);
}

TEST(PolicyFileRoom, of_two_that_want_the_last_place_at_once_not_both_get_it) {
  for (int round = 0; round < 50; ++round) {
    const StateFolder folder;
    const std::vector<PolicyFile> files = open_jobs(folder, kMostPolicyFiles - 1);
    std::optional<Result<PolicyFile>> got[2];
    race([&](std::size_t daemon) {
      got[daemon] = PolicyFile::open(folder.path(), kUid, "of " + std::to_string(daemon));
    });
    EXPECT_FALSE(*got[0] && *got[1]);
    for (const auto& result : got) {
      EXPECT_TRUE(*result || result->error().code == ErrorCode::LimitExceeded);
    }
    EXPECT_EQ(folder.names().size(), files.size() + (*got[0] || *got[1] ? 1 : 0));
  }
}

TEST(PolicyFileRoom, of_two_that_make_the_file_of_one_job_at_once_one_has_it) {
  for (int round = 0; round < 200; ++round) {
    const StateFolder folder;
    std::optional<Result<PolicyFile>> got[2];
    race([&](std::size_t daemon) { got[daemon] = PolicyFile::open(folder.path(), kUid, "train"); });
    ASSERT_NE(got[0]->has_value(), got[1]->has_value());
    EXPECT_THAT(got[*got[0] ? 1 : 0]->error().message, HasSubstr("another daemon has"));
    EXPECT_TRUE(is_there(path_of(folder, "train")));
  }
}

TEST(PolicyFileRoom, a_job_that_comes_back_while_its_file_goes_has_one_that_stays) {
  const StateFolder folder;
  for (std::size_t job = 0; job < kMostPolicyFiles; ++job) {
    left(folder, std::to_string(job), static_cast<std::int64_t>(kMostPolicyFiles - job) * kMinute);
  }
  race([&](std::size_t daemon) {
    for (std::size_t job = 0; job < kMostPolicyFiles; ++job) {
      if (daemon == 1) {
        opened(folder.path(), "new " + std::to_string(job));
        continue;
      }
      const std::string name = std::to_string(job);
      Result<PolicyFile> file = PolicyFile::open(folder.path(), kUid, name);
      // Who removes it may be stopped just then.
      EXPECT_TRUE(file || file.error().message.find("another daemon has") != std::string::npos);
      if (file) {
        stored(*file, job + 1, state_of(job + 1));
        const auto contents = read_policy_file(bytes_of(path_of(folder, name)), kUid, name);
        EXPECT_TRUE(contents && (contents->slots[0].word == job + 1 || contents->slots[1].word == job + 1));
      }
    }
  });
  EXPECT_LE(folder.names().size(), kMostPolicyFiles);
}

}  // namespace
}  // namespace gradsync::engine
