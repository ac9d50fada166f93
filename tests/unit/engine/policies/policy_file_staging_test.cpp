// States that are staged, whether or not their steps are done.

#include "unit/engine/policies/state_folder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace gradsync::engine {
namespace {

/// States of steps 1 and 2, which are done.
PolicyFile with_two_steps(const StateFolder& folder) {
  PolicyFile file = opened(folder.path());
  stored(file, 1, state_of(1));
  stored(file, 2, state_of(2));
  return file;
}

TEST(StagedState, leaves_the_state_before_it_and_gives_way_to_the_next) {
  for (const std::size_t bytes : {300, 50'000}) {
    const StateFolder folder;
    PolicyFile file = with_two_steps(folder);
    ASSERT_TRUE(file.stage(3, state_of(3, bytes)));
    EXPECT_EQ(file.find(3), std::nullopt) << "its step is not done";
    EXPECT_EQ(file.find(1), std::nullopt) << "its place is taken";
    EXPECT_EQ(file.newest()->word, 2U);
    EXPECT_EQ(state_in(bytes_of(folder.file()), 2), state_of(2));
    EXPECT_EQ(state_in(bytes_of(folder.file()), 3), state_of(3, bytes));
    stored(file, 4, state_of(4));
    EXPECT_EQ(file.find(2), state_of(2));
    EXPECT_EQ(file.newest()->word, 4U);
    EXPECT_EQ(state_in(bytes_of(folder.file()), 3), std::nullopt) << "written over";
    EXPECT_EQ(state_in(bytes_of(folder.file()), 2), state_of(2));
  }
}

TEST(StagedState, is_found_under_its_word_by_the_next_daemon) {
  for (const std::uint64_t ruled : {2, 3}) {
    const StateFolder folder;
    {
      PolicyFile killed = with_two_steps(folder);
      ASSERT_TRUE(killed.stage(3, state_of(3)));
    }
    PolicyFile file = opened(folder.path());
    EXPECT_EQ(file.find(ruled), state_of(ruled));
    stored(file, 9, state_of(9));
    EXPECT_EQ(file.find(ruled), state_of(ruled)) << "the state that the job went on with";
    EXPECT_EQ(state_in(bytes_of(folder.file()), 5 - ruled), std::nullopt);
  }
}

TEST(StagedState, that_finds_no_room_leaves_all_as_it_was) {
  const StateFolder folder;
  PolicyFile file = with_two_steps(folder);
  {
    const FileLimit limit(0);
    EXPECT_FALSE(file.stage(3, state_of(3, 50'000)));
  }
  EXPECT_EQ(file.find(1), state_of(1)) << "a larger file was not made";
  EXPECT_EQ(file.newest()->word, 2U);
  stored(file, 3, state_of(3));
  EXPECT_EQ(file.find(2), state_of(2));
}

TEST(StagedState, is_kept_once) {
  const StateFolder folder;
  PolicyFile file = with_two_steps(folder);
  EXPECT_DEATH(file.keep(), "what is kept was staged");
  ASSERT_TRUE(file.stage(3, state_of(3)));
  ASSERT_TRUE(file.wipe());
  EXPECT_DEATH(file.keep(), "what is kept was staged");
}

constexpr auto kPending = PolicyFile::Vote::Pending;

/// The word of the newest state that is not pending, as a daemon reads it that starts now.
std::uint64_t newest_on_disk(const StateFolder& folder) {
  const Result<PolicyFileContents> contents = read_policy_file(bytes_of(folder.file()), kUid, "train");
  EXPECT_TRUE(contents);
  const auto age = [](const StateSlot& slot) { return slot.pending ? 0 : slot.sequence; };
  return std::ranges::max(contents->slots, {}, age).word;
}

TEST(PendingState, is_not_the_newest_until_its_step_is_done) {
  for (const std::size_t bytes : {300, 50'000}) {
    const StateFolder folder;
    {
      PolicyFile failed = with_two_steps(folder);
      ASSERT_TRUE(failed.stage(3, state_of(3, bytes), kPending));
    }
    EXPECT_EQ(opened(folder.path()).newest()->word, 2U) << "its step may have failed";
    {
      PolicyFile file = opened(folder.path());
      EXPECT_EQ(file.newest()->word, 2U);
      stored(file, 4, state_of(4));
      ASSERT_TRUE(file.stage(5, state_of(5, bytes), kPending));
      file.keep();
      EXPECT_EQ(newest_on_disk(folder), 4U) << "no rank can know of it";
      ASSERT_TRUE(file.settle());
      EXPECT_EQ(newest_on_disk(folder), 5U);
    }
    EXPECT_EQ(opened(folder.path()).newest()->state, state_of(5, bytes));
    EXPECT_EQ(opened(folder.path()).find(4), state_of(4));
  }
}

TEST(PendingState, that_is_alone_in_the_file_is_no_state_to_go_on_with) {
  const StateFolder folder;
  ASSERT_TRUE(opened(folder.path()).stage(1, state_of(1), kPending));
  PolicyFile file = opened(folder.path());
  EXPECT_FALSE(file.newest());
  stored(file, 2, state_of(2));
  EXPECT_EQ(newest_on_disk(folder), 2U);
  EXPECT_EQ(state_in(bytes_of(folder.file()), 1), std::nullopt) << "it was written over";
}

TEST(PendingState, counts_from_when_a_rank_knows_its_step_as_done) {
  const StateFolder folder;
  {
    PolicyFile killed = with_two_steps(folder);
    ASSERT_TRUE(killed.stage(3, state_of(3), kPending));
  }
  EXPECT_EQ(opened(folder.path()).find(3), state_of(3));
  EXPECT_EQ(opened(folder.path()).newest()->word, 3U);
}

TEST(PendingState, has_the_bytes_of_any_other_when_it_is_kept) {
  const StateFolder one;
  const StateFolder other;
  PolicyFile alone = with_two_steps(one);
  PolicyFile voted = with_two_steps(other);
  stored(alone, 3, state_of(3));
  ASSERT_TRUE(voted.stage(3, state_of(3), kPending));
  EXPECT_NE(bytes_of(one.file()), bytes_of(other.file()));
  voted.keep();
  ASSERT_TRUE(voted.settle());
  EXPECT_EQ(bytes_of(one.file()), bytes_of(other.file()));
}

}  // namespace
}  // namespace gradsync::engine
