#include "base/error.hpp"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace gradsync {
namespace {

TEST(Error, every_code_has_a_kind_of_its_own) {
  std::set<std::string> kinds;
  const int last = static_cast<int>(ErrorCode::UnknownSubscription);
  for (int code = 0; code <= last; ++code) {
    const std::string kind = kind_of(static_cast<ErrorCode>(code));
    EXPECT_FALSE(kind.empty());
    EXPECT_EQ(kind.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string::npos) << kind;
    EXPECT_TRUE(kinds.insert(kind).second) << kind;
  }
  EXPECT_STREQ(kind_of(ErrorCode::RankLost), "rank_lost");
}

TEST(Error, invalid_params_carries_path_and_hint) {
  const Error error = invalid_params("a.b", "b is wrong", "use c");
  EXPECT_EQ(error.code, ErrorCode::InvalidParams);
  EXPECT_EQ(error.path, "a.b");
  EXPECT_EQ(error.message, "b is wrong");
  EXPECT_EQ(error.hint, "use c");
}

Result<int> half(int number) {
  if (number % 2 != 0) {
    return make_error(ErrorCode::InvalidParams, "odd");
  }
  return number / 2;
}

TEST(Result, holds_a_value_or_an_error) {
  ASSERT_TRUE(half(4).has_value());
  EXPECT_EQ(*half(4), 2);
  ASSERT_TRUE(half(3).has_error());
  EXPECT_EQ(half(3).error().message, "odd");
}

TEST(Result, an_unchecked_error_is_a_defect_that_says_what_it_was) {
  try {
    const int value = half(3).value();
    FAIL() << value;
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("odd"), std::string::npos);
  }
}

}  // namespace
}  // namespace gradsync
