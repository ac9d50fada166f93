// States that are staged, whether or not their steps are done.

#include "unit/engine/policies/state_folder.hpp"

#include <gtest/gtest.h>

#include <optional>

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

}  // namespace
}  // namespace gradsync::engine
