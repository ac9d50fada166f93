#include "base/text/hash.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace gradsync {
namespace {

using ::testing::MatchesRegex;

// From xxHash's own sanity values for XXH3_64bits with seed 0.
TEST(Hash, is_xxh3_64) {
  EXPECT_EQ(hash64(""), 0x2D06800538D394C2U);
  EXPECT_EQ(digest(""), "2d06800538d394c2");
}

TEST(Hash, sees_every_byte_also_zeros) {
  using namespace std::string_view_literals;
  EXPECT_NE(hash64("a\0b"sv), hash64("a\0c"sv));
  EXPECT_NE(hash64("a"sv), hash64("a\0"sv));
}

TEST(Hash, hex_has_16_digits) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0x0123456789abcdefU), "0123456789abcdef");
  EXPECT_EQ(hex64(~std::uint64_t{0}), "ffffffffffffffff");
}

TEST(RandomHex, has_two_digits_per_byte_and_does_not_repeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string text = random_hex(16);
    EXPECT_THAT(text, MatchesRegex("[0-9a-f]{32}"));
    EXPECT_TRUE(seen.insert(text).second);
  }
  EXPECT_EQ(random_hex(0), "");
}

TEST(BytesOfHex, are_two_digits_each) {
  EXPECT_EQ(bytes_of_hex(""), "");
  EXPECT_EQ(bytes_of_hex("00ff7FAa"), std::string("\x00\xff\x7f\xaa", 4));
  EXPECT_EQ(hex_of(std::string("\x00\xff\x7f\xaa", 4)), "00ff7faa");
  EXPECT_EQ(bytes_of_hex("0"), std::nullopt);
  for (const char* wrong : {"0g", "g0", " 0", "0 ", "+1", "-1", "0x"}) {
    EXPECT_EQ(bytes_of_hex(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace gradsync
