#include "base/unique_fd.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>

namespace gradsync {
namespace {

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFd, closes_what_it_owns) {
  const int raw = open_null();
  {
    const UniqueFd fd(raw);
    EXPECT_TRUE(fd.valid());
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, moves_ownership) {
  UniqueFd first(open_null());
  const int raw = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  EXPECT_EQ(second.get(), raw);

  UniqueFd third(open_null());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, survives_assignment_to_itself) {
  UniqueFd fd(open_null());
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_TRUE(fd.valid());
  EXPECT_TRUE(is_open(fd.get()));
}

TEST(UniqueFd, release_hands_the_descriptor_over) {
  UniqueFd fd(open_null());
  const int raw = fd.release();
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(is_open(raw));
  ::close(raw);
}

TEST(UniqueFd, reset_closes_and_takes_another) {
  UniqueFd fd(open_null());
  const int first = fd.get();
  const int second = open_null();
  fd.reset(second);
  EXPECT_FALSE(is_open(first));
  EXPECT_EQ(fd.get(), second);
  fd.reset();
  EXPECT_FALSE(is_open(second));
  EXPECT_FALSE(UniqueFd().valid());
}

}  // namespace
}  // namespace gradsync
