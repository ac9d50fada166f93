// A daemon that is killed while it stores: after each byte, and before and after each system call.

#include "unit/engine/policies/state_folder.hpp"

#include <gtest/gtest.h>

#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace gradsync::engine {
namespace {

/// One pwrite puts a store from its first byte to its last, so that a cut leaves the new bytes up to it.
TEST(PolicyFileKill, a_store_cut_after_any_byte_leaves_the_state_before_it) {
  for (const std::size_t size : {0, 300, 6'000, 2'500}) {
    const StateFolder folder;
    PolicyFile file = opened(folder.path());
    stored(file, 0x1'0000'0001, state_of(1, 7'000));
    stored(file, 0x1'0000'0002, state_of(2, 100));
    const std::string before = bytes_of(folder.file());
    stored(file, 0x1'0000'0003, state_of(3, size));
    const std::string after = bytes_of(folder.file());
    ASSERT_EQ(before.size(), after.size());
    for (std::size_t cut = 0; cut < after.size(); ++cut) {
      if (before[cut] == after[cut]) {
        continue;
      }
      const std::string bytes = after.substr(0, cut) + before.substr(cut);
      ASSERT_EQ(state_in(bytes, 0x1'0000'0002), state_of(2, 100)) << cut;
      ASSERT_EQ(state_in(bytes, 0x1'0000'0003), std::nullopt) << cut;
    }
    EXPECT_EQ(state_in(after, 0x1'0000'0003), state_of(3, size));
  }
}

TEST(PolicyFileKill, a_cut_is_known_also_where_the_word_was_there_before) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  stored(file, 7, std::string(500, 'a'));
  stored(file, 8, state_of(8));
  const std::string before = bytes_of(folder.file());
  stored(file, 7, std::string(500, 'b'));
  const std::string after = bytes_of(folder.file());
  for (std::size_t cut = 0; cut < after.size(); ++cut) {
    const std::string bytes = after.substr(0, cut) + before.substr(cut);
    ASSERT_EQ(state_in(bytes, 8), state_of(8)) << cut;
    const std::optional<std::string> state = state_in(bytes, 7);
    ASSERT_TRUE(!state || *state == std::string(500, bytes == after ? 'b' : 'a')) << cut;
  }
}

TEST(PolicyFileKill, a_mark_cut_after_any_byte_leaves_its_state_pending) {
  const StateFolder folder;
  PolicyFile file = opened(folder.path());
  stored(file, 0x1'0000'0002, state_of(2));
  ASSERT_TRUE(file.stage(0x1'0000'0003, state_of(3), PolicyFile::Vote::Pending));
  const std::string before = bytes_of(folder.file());
  file.keep();
  ASSERT_TRUE(file.settle());
  const std::string after = bytes_of(folder.file());
  int cuts = 0;
  for (std::size_t cut = 0; cut < after.size(); ++cut) {
    if (before[cut] == after[cut]) {
      continue;
    }
    const Result<PolicyFileContents> contents =
        read_policy_file(after.substr(0, cut) + before.substr(cut), kUid, "train");
    ASSERT_TRUE(contents);
    const StateSlot& slot = contents->slots[contents->slots[0].word == 0x1'0000'0003 ? 0 : 1];
    EXPECT_EQ(slot.state(), state_of(3)) << cut;
    EXPECT_TRUE(slot.pending) << cut;
    ++cuts;
  }
  EXPECT_EQ(cuts, 8);
}

/// `work` in a process of its own, killed at its n-th stop, of which each system call has two. False when it ended
/// first.
bool killed_at(int stops, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      ::_exit(77);
    }
    ::raise(SIGSTOP);
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  for (int stop = 0; stop < stops && WIFSTOPPED(status); ++stop) {
    EXPECT_EQ(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr), 0);
    EXPECT_EQ(::waitpid(child, &status, 0), child);
  }
  if (!WIFSTOPPED(status)) {
    EXPECT_EQ(status, 0);
    return false;
  }
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return true;
}

bool may_trace() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

class PolicyFileKillAtCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!may_trace()) {
      GTEST_SKIP() << "ptrace is forbidden here";
    }
  }

  /// Prepares a folder, kills `work` at each of its stops, and gives what is there then to `check`.
  static void at_every_stop(
      const std::function<void(const StateFolder&)>& prepare,
      const std::function<void(const StateFolder&)>& work,
      const std::function<void(PolicyFile&)>& check
  ) {
    bool killed = true;
    int stops = 1;
    for (; killed && stops < 1000; ++stops) {
      SCOPED_TRACE(stops);
      const StateFolder folder;
      prepare(folder);
      killed = killed_at(stops, [&] { work(folder); });
      PolicyFile file = opened(folder.path());
      check(file);
      ASSERT_FALSE(HasFailure());
      EXPECT_EQ(folder.names().size(), 1U) << "what was half made is gone";
    }
    EXPECT_FALSE(killed);
    EXPECT_GT(stops, 2);
  }

  static void with_two_states(const StateFolder& folder) {
    PolicyFile file = opened(folder.path());
    stored(file, 1, state_of(1));
    stored(file, 2, state_of(2));
  }

  /// A daemon goes on with the state of step 2 and stores that of step 3, of so many bytes.
  static void store_one_more(const StateFolder& folder, std::size_t bytes) {
    PolicyFile file = opened(folder.path());
    static_cast<void>(file.find(2));
    static_cast<void>(store(file, 3, state_of(3, bytes)));
  }
};

TEST_F(PolicyFileKillAtCalls, a_store_is_there_or_not_and_the_one_before_always) {
  for (const std::size_t bytes : {300, 50'000}) {
    int without = 0;
    int with = 0;
    at_every_stop(
        with_two_states,
        [&](const StateFolder& folder) { store_one_more(folder, bytes); },
        [&](PolicyFile& file) {
          EXPECT_EQ(file.find(2), state_of(2));
          const std::optional<std::string> third = file.find(3);
          EXPECT_TRUE(!third || *third == state_of(3, bytes));
          (third ? with : without) += 1;
        }
    );
    EXPECT_GT(with, 0);
    EXPECT_GT(without, 0);
  }
}

TEST_F(PolicyFileKillAtCalls, a_step_that_may_fail_is_the_newest_when_it_is_done_and_not_before) {
  for (const std::size_t bytes : {300, 50'000}) {
    std::set<std::uint64_t> newest;
    at_every_stop(
        with_two_states,
        [&](const StateFolder& folder) {
          PolicyFile file = opened(folder.path());
          static_cast<void>(file.find(2));
          static_cast<void>(store(file, 3, state_of(3, bytes), PolicyFile::Vote::Pending));
        },
        [&](PolicyFile& file) {
          const std::optional<PolicyFile::Stored> found = file.newest();
          ASSERT_TRUE(found);
          EXPECT_EQ(found->state, state_of(found->word, found->word == 3 ? bytes : 300));
          newest.insert(found->word);
        }
    );
    EXPECT_EQ(newest, (std::set<std::uint64_t>{2, 3}));
    at_every_stop(
        with_two_states,
        [&](const StateFolder& folder) {
          PolicyFile failed = opened(folder.path());
          static_cast<void>(failed.find(2));
          static_cast<void>(failed.stage(3, state_of(3, bytes), PolicyFile::Vote::Pending));
        },
        [](PolicyFile& file) { EXPECT_EQ(file.newest()->word, 2U); }
    );
  }
}

TEST_F(PolicyFileKillAtCalls, the_first_store_of_a_job_is_there_or_not) {
  at_every_stop(
      [](const StateFolder&) {},
      [](const StateFolder& folder) { store_one_more(folder, 300); },
      [](PolicyFile& file) {
        const std::optional<std::string> first = file.find(3);
        EXPECT_TRUE(!first || *first == state_of(3));
        EXPECT_EQ(file.newest().has_value(), first.has_value());
      }
  );
}

TEST_F(PolicyFileKillAtCalls, a_wipe_forgets_all_or_nothing) {
  at_every_stop(
      with_two_states,
      [](const StateFolder& folder) { static_cast<void>(opened(folder.path()).wipe()); },
      [](PolicyFile& file) {
        EXPECT_EQ(file.find(1).has_value(), file.find(2).has_value());
        EXPECT_TRUE(!file.find(2) || *file.find(2) == state_of(2));
      }
  );
}

}  // namespace
}  // namespace gradsync::engine
