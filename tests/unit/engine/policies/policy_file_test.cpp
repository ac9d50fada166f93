// What a file of policy states gives back, and what it refuses to.

#include "unit/engine/policies/state_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace gradsync::engine {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::optional<std::uint64_t> newest_word(PolicyFile& file) {
  const auto newest = file.newest();
  return newest ? std::optional(newest->word) : std::nullopt;
}

TEST(PolicyFile, remembers_the_last_two_states_each_under_its_word) {
  const StateFolder folder;
  {
    PolicyFile file = opened(folder.path());
    EXPECT_EQ(file.newest(), std::nullopt);
    EXPECT_EQ(file.find(0), std::nullopt);
    for (std::uint64_t word = 1; word <= 5; ++word) {
      stored(file, word, state_of(word));
    }
  }
  PolicyFile file = opened(folder.path());
  EXPECT_EQ(file.find(3), std::nullopt);
  EXPECT_EQ(file.find(0), std::nullopt);
  EXPECT_EQ(file.find(4), state_of(4));
  EXPECT_EQ(file.find(5), state_of(5));
  EXPECT_EQ(newest_word(file), 5U);
  EXPECT_EQ(file.newest()->state, state_of(5));
}

TEST(PolicyFile, gives_back_what_it_stored_itself_without_being_opened_again) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  stored(file, 7, state_of(7));
  stored(file, 8, "");
  EXPECT_EQ(file.find(7), state_of(7));
  EXPECT_EQ(file.find(8), "");
}

// The step stored last was never done: its daemon died before it told anybody.
TEST(PolicyFile, keeps_the_state_a_job_goes_on_with_not_the_one_stored_last) {
  const StateFolder folder;
  {
    PolicyFile file = opened(folder.path());
    stored(file, 1, state_of(1));
    stored(file, 2, state_of(2));
  }
  {
    PolicyFile file = opened(folder.path());
    EXPECT_EQ(file.find(1), state_of(1));
    stored(file, 3, state_of(3));
  }
  PolicyFile file = opened(folder.path());
  EXPECT_EQ(file.find(1), state_of(1));
  EXPECT_EQ(file.find(2), std::nullopt);
  EXPECT_EQ(newest_word(file), 3U);
}

TEST(PolicyFile, the_newest_is_by_time_not_by_word_or_slot_and_is_kept) {
  const StateFolder folder;
  std::optional<std::uint64_t> before;
  for (const std::uint64_t word : {9, 4, 6, 2, 8}) {
    PolicyFile file = opened(folder.path());
    stored(file, word, state_of(word));
    EXPECT_EQ(newest_word(file), word);
    EXPECT_TRUE(!before || state_in(bytes_of(folder.file()), *before)) << "though nobody asked for it";
    before = word;
  }
}

TEST(PolicyFile, forgets_all_when_it_is_wiped) {
  const StateFolder folder;
  {
    PolicyFile file = opened(folder.path());
    stored(file, 1, state_of(1));
    stored(file, 2, state_of(2));
    EXPECT_TRUE(file.wipe());
    EXPECT_EQ(file.newest(), std::nullopt);
    EXPECT_EQ(file.find(2), std::nullopt);
  }
  {
    PolicyFile file = opened(folder.path());
    EXPECT_EQ(file.newest(), std::nullopt);
    EXPECT_TRUE(file.wipe());
    stored(file, 3, state_of(3));
  }
  PolicyFile file = opened(folder.path());
  EXPECT_EQ(file.find(2), std::nullopt);
  EXPECT_EQ(file.find(3), state_of(3));
  EXPECT_THAT(folder.names(), SizeIs(1));
}

TEST(PolicyFile, states_may_grow_and_shrink) {
  const StateFolder folder;
  std::size_t files = 0;
  ino_t before = 0;
  std::uint64_t word = 0;
  for (std::size_t bytes = 0; bytes < 40'000; bytes += 97) {
    PolicyFile file = opened(folder.path());
    EXPECT_TRUE(word == 0 || file.find(word) == state_of(word, bytes - 97)) << word;
    ++word;
    stored(file, word, state_of(word, bytes));

    struct stat found {};

    ASSERT_EQ(::stat(folder.file().c_str(), &found), 0);
    files += found.st_ino != before ? 1 : 0;
    before = found.st_ino;
  }
  EXPECT_LE(files, 6U) << "each new file has twice the room";
  PolicyFile file = opened(folder.path());
  EXPECT_NE(file.find(word - 1), std::nullopt) << "also what another file had is carried over";
  stored(file, 1'000, "small");
  EXPECT_EQ(file.find(1'000), "small");
}

TEST(PolicyFile, ten_thousand_stores_leave_one_file_of_one_size) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  stored(file, 1, state_of(1, 8'000));
  const auto size = std::filesystem::file_size(folder.file());
  EXPECT_EQ(size, kPolicyFilePage + 2 * slot_bytes_for(8'000));
  for (std::uint64_t word = 2; word <= 10'000; ++word) {
    stored(file, word, std::to_string(word));
  }
  EXPECT_EQ(std::filesystem::file_size(folder.file()), size);
  EXPECT_EQ(file.find(9'999), "9999");
}

TEST(PolicyFile, jobs_of_other_names_and_other_users_have_other_files) {
  const StateFolder folder;
  PolicyFile one = opened(folder.path(), "train", 1000);
  PolicyFile other_user = opened(folder.path(), "train", 1001);
  PolicyFile other_job = opened(folder.path(), "../train/", 1000);
  stored(one, 1, "one");
  EXPECT_EQ(other_user.newest(), std::nullopt);
  stored(other_user, 1, "other user");
  stored(other_job, 1, "other job");
  EXPECT_EQ(one.find(1), "one");
  EXPECT_THAT(folder.names(), SizeIs(3));
}

TEST(PolicyFile, the_file_of_another_job_under_this_name_is_set_aside) {
  const StateFolder folder;
  const StateFolder others;
  { opened(folder.path()); }
  for (const auto& [job, uid] : {std::pair("Train", kUid), std::pair("train", kUid + 1)}) {
    {
      PolicyFile other = opened(others.path(), job, uid);
      stored(other, 1, "of another job");
    }
    write_bytes(folder.file(), bytes_of(others.file()));
    std::filesystem::remove(others.file());
    const std::string name = folder.file();
    EXPECT_EQ(opened(folder.path()).newest(), std::nullopt);
    EXPECT_TRUE(std::filesystem::remove(name + ".damaged-1"));
  }
}

TEST(PolicyFile, is_had_by_one_daemon_at_a_time) {
  const StateFolder folder;
  std::optional<PolicyFile> first = opened(folder.path());
  const auto refused = [&] {
    const Result<PolicyFile> second = PolicyFile::open(folder.path(), kUid, "train");
    return !second && second.error().message.find("another daemon has") != std::string::npos;
  };
  EXPECT_TRUE(refused());
  stored(*first, 1, state_of(1));
  EXPECT_TRUE(refused());
  stored(*first, 2, state_of(2, 100'000));
  EXPECT_TRUE(refused()) << "a larger file is locked as well";
  EXPECT_TRUE(first->wipe());
  EXPECT_TRUE(refused());
  first.reset();
  EXPECT_FALSE(refused());
}

TEST(PolicyFile, damaged_files_are_kept_beside_it_and_none_is_overwritten) {
  const StateFolder folder;
  { opened(folder.path()); }
  const std::string name = folder.file();
  for (const char* text : {"first", "second", "third"}) {
    write_bytes(name, text);
    EXPECT_EQ(opened(folder.path()).newest(), std::nullopt);
  }
  EXPECT_EQ(bytes_of(name + ".damaged-1"), "first");
  EXPECT_EQ(bytes_of(name + ".damaged-2"), "second");
  EXPECT_EQ(bytes_of(name + ".damaged-3"), "third");
  EXPECT_EQ(bytes_of(name), "");
}

TEST(PolicyFile, a_byte_that_was_changed_never_gives_another_state) {
  const StateFolder folder;
  {
    PolicyFile file = opened(folder.path());
    stored(file, 0x1234567800000001, state_of(1));
    stored(file, 0x1234567800000002, state_of(2));
  }
  const std::string whole = bytes_of(folder.file());
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      const Result<PolicyFileContents> contents = read_policy_file(changed, kUid, "train");
      refused += contents ? 0 : 1;
      for (std::size_t slot = 0; contents && slot < 2; ++slot) {
        const StateSlot& found = contents->slots[slot];
        ASSERT_TRUE(found.word == 0 || found.state() == state_of(found.word & 0xff)) << at;
      }
    }
  }
  // All of the header, and of each slot its state, checksum and, where the size is too large, no stamp that is equal.
  EXPECT_GE(refused, 2 * (kPolicyFilePage + 2 * 300));
}

TEST(PolicyFile, a_file_that_was_cut_short_is_set_aside) {
  const StateFolder folder;
  {
    PolicyFile file = opened(folder.path());
    stored(file, 1, state_of(1));
  }
  const std::string whole = bytes_of(folder.file());
  for (std::size_t size = 1; size < whole.size(); ++size) {
    ASSERT_FALSE(read_policy_file(std::string_view(whole).substr(0, size), kUid, "train")) << size;
  }
  EXPECT_FALSE(read_policy_file(whole + "x", kUid, "train"));
  EXPECT_FALSE(read_policy_file(whole + "xx", kUid, "train"));
  EXPECT_TRUE(read_policy_file(whole, kUid, "train"));
  EXPECT_TRUE(read_policy_file("", kUid, "train"));
  const std::string name = folder.file();
  ASSERT_EQ(::truncate(name.c_str(), static_cast<off_t>(whole.size() / 2)), 0);
  EXPECT_EQ(opened(folder.path()).newest(), std::nullopt);
  ASSERT_EQ(::truncate(name.c_str(), off_t{1} << 40), 0);
  EXPECT_EQ(opened(folder.path()).newest(), std::nullopt) << "a terabyte of nothing is not read";
  EXPECT_THAT(folder.names(), SizeIs(1)) << "and has no room beside it";
}

TEST(PolicyFile, of_a_newer_release_stays_as_it_is) {
  const StateFolder folder;
  { opened(folder.path()); }
  std::string later = bytes_of(folder.file());
  later.resize(std::max<std::size_t>(later.size(), kPolicyFilePage));
  const std::string header = policy_file_header(kUid, "train", kPolicyFilePage);
  later.replace(0, header.size(), header);
  later[16] = 2;
  write_bytes(folder.file(), later);
  const auto file = PolicyFile::open(folder.path(), kUid, "train");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::VersionMismatch);
  EXPECT_THAT(file.error().message, HasSubstr(folder.file()));
  EXPECT_THAT(folder.names(), SizeIs(1));
  EXPECT_EQ(bytes_of(folder.file()), later);
}

TEST(PolicyFile, says_what_it_found_in_a_file_of_another_version) {
  std::string later = policy_file_header(kUid, "train", kPolicyFilePage) + std::string(2 * kPolicyFilePage, '\0');
  EXPECT_TRUE(read_policy_file(later, kUid, "train"));
  later[16] = 2;
  const auto contents = read_policy_file(later, kUid, "train");
  ASSERT_FALSE(contents);
  EXPECT_THAT(contents.error().message, HasSubstr("version 2"));
}

TEST(PolicyFile, refuses_what_others_may_have_written) {
  const StateFolder folder;
  { opened(folder.path()); }
  const std::string name = folder.file();
  const auto message = [&] {
    const Result<PolicyFile> file = PolicyFile::open(folder.path(), kUid, "train");
    return file ? std::string() : file.error().message;
  };
  ASSERT_EQ(::chmod(name.c_str(), 0620), 0);
  EXPECT_THAT(message(), HasSubstr("mode 100620"));
  std::filesystem::remove(name);
  std::filesystem::create_symlink("elsewhere", name);
  EXPECT_THAT(message(), HasSubstr("opening"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/elsewhere")) << "a link is not followed";
  std::filesystem::remove(name);
  ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0);
  EXPECT_THAT(message(), HasSubstr("mode 010600"));
  std::filesystem::remove(name);
  std::filesystem::create_directory(name);
  EXPECT_THAT(message(), HasSubstr("opening"));
  std::filesystem::remove(name);
  EXPECT_EQ(message(), "");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  EXPECT_THAT(message(), HasSubstr("mode 0777"));
}

TEST(PolicyFile, a_name_that_has_no_room_and_a_directory_that_cannot_be_made_are_named) {
  const StateFolder folder;
  const auto long_name = PolicyFile::open(folder.path(), kUid, std::string(4096, 'j'));
  ASSERT_FALSE(long_name);
  EXPECT_EQ(long_name.error().path, "job");
  EXPECT_THAT(long_name.error().message, HasSubstr("4096 bytes"));
  const auto missing = PolicyFile::open(folder.path() + "/missing/too", kUid, "train");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("/missing/too"));
  EXPECT_THAT(folder.names(), SizeIs(0));
  opened(folder.path(), std::string(512, 'j'));
}

TEST(PolicyFile, makes_its_directory_for_the_daemons_user_alone) {
  const StateFolder folder;
  const std::string directory = folder.path() + "/states";
  { opened(directory); }
  opened(directory);

  struct stat found {};

  ASSERT_EQ(::stat(directory.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700U);
}

Result<void> stored_within(std::size_t bytes, PolicyFile& file, std::uint64_t word, const std::string& state) {
  const FileLimit limit(bytes);
  return store(file, word, state);
}

TEST(PolicyFile, a_store_that_fails_at_any_byte_leaves_the_state_before_it) {
  const StateFolder folder;
  std::size_t failures = 0;
  PolicyFile file = opened(folder.path());
  std::uint64_t word = 1;
  stored(file, word, state_of(word));
  for (std::size_t bytes = 0; bytes <= kPolicyFilePage + 2 * slot_bytes_for(300); bytes += 61) {
    const Result<void> done = stored_within(bytes, file, word + 1, state_of(word + 1));
    failures += done ? 0 : 1;
    ASSERT_TRUE(done || done.error().code == ErrorCode::LimitExceeded) << done.error().message;
    word += done ? 1 : 0;
    ASSERT_EQ(newest_word(file), word) << bytes;
    ASSERT_EQ(state_in(bytes_of(folder.file()), word), state_of(word)) << bytes;
    ASSERT_TRUE(!file.find(word - 1) || state_in(bytes_of(folder.file()), word - 1)) << bytes;
    ASSERT_EQ(file.find(word), state_of(word)) << bytes;
  }
  EXPECT_GT(failures, 100U);
  stored(file, word + 1, state_of(word + 1));
  EXPECT_EQ(file.find(word), state_of(word));
}

TEST(PolicyFile, a_larger_file_that_finds_no_room_leaves_the_one_before) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  EXPECT_FALSE(stored_within(0, file, 1, state_of(1)));
  EXPECT_EQ(file.newest(), std::nullopt);
  stored(file, 1, state_of(1));
  for (std::size_t bytes = 0; bytes < 200'000; bytes += 9'999) {
    const Result<void> done = stored_within(bytes, file, 2, state_of(2, 100'000));
    ASSERT_FALSE(done);
    ASSERT_EQ(done.error().code, ErrorCode::LimitExceeded);
    ASSERT_THAT(done.error().message, HasSubstr("File too large"));
    ASSERT_EQ(file.find(1), state_of(1));
    ASSERT_THAT(folder.names(), SizeIs(1)) << "no half of a new file stays";
  }
  stored(file, 2, state_of(2, 100'000));
  EXPECT_EQ(file.find(1), state_of(1));
}

}  // namespace
}  // namespace gradsync::engine
