#include "base/text/text.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace gradsync {
namespace {

const std::vector<std::string> kAxes{"dp_replicate", "dp_shard", "tp", "ep"};

TEST(NearestName, finds_a_slip) {
  EXPECT_EQ(nearest_name("dp_shrd", kAxes), "dp_shard");
  EXPECT_EQ(nearest_name("dp_replicated", kAxes), "dp_replicate");
  EXPECT_EQ(nearest_name("t", kAxes), "tp");
  EXPECT_EQ(nearest_name("tp", kAxes), "tp");
}

TEST(NearestName, stays_silent_when_nothing_is_close) {
  EXPECT_EQ(nearest_name("pipeline", kAxes), "");
  EXPECT_EQ(nearest_name("xy", kAxes), "");
  EXPECT_EQ(nearest_name("tp", {}), "");
  EXPECT_EQ(nearest_name("", kAxes), "");
}

TEST(NearestName, the_first_of_equally_near_ones_wins) {
  const std::vector<std::string> names{"ab", "ac"};
  EXPECT_EQ(nearest_name("ad", names), "ab");
}

TEST(EnumerateNames, says_how_many_it_left_out) {
  const std::vector<std::string> names{"a", "b", "c", "d"};
  EXPECT_EQ(enumerate_names(names), "a, b, c, d");
  EXPECT_EQ(enumerate_names(names, 4), "a, b, c, d");
  EXPECT_EQ(enumerate_names(names, 2), "a, b and 2 more");
  EXPECT_EQ(enumerate_names({}), "");
}

TEST(EnumerateNames, without_room_for_any_it_still_reads) {
  const std::vector<std::string> names{"a", "b"};
  EXPECT_EQ(enumerate_names(names, 0), "2 in all");
}

TEST(HumanBytes, picks_the_unit) {
  EXPECT_EQ(human_bytes(0), "0 bytes");
  EXPECT_EQ(human_bytes(1), "1 byte");
  EXPECT_EQ(human_bytes(1023), "1023 bytes");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(std::uint64_t{25} << 20), "25.0 MiB");
  EXPECT_EQ(human_bytes(std::uint64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<std::uint64_t>::max()), "16777216.0 TiB");
}

TEST(HumanBytes, never_shows_1024_of_a_unit) {
  EXPECT_EQ(human_bytes((std::uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes((std::uint64_t{1} << 30) - 1), "1.0 GiB");
}

TEST(Utf8Length, is_zero_where_no_character_begins) {
  EXPECT_EQ(utf8_length("a", 0), 1U);
  EXPECT_EQ(utf8_length("\xc3\xa9", 0), 2U);
  EXPECT_EQ(utf8_length("\xe2\x82\xac", 0), 3U);
  EXPECT_EQ(utf8_length("\xf0\x9f\x98\x80", 0), 4U);
  for (const char* text :
       {"\xa9", "\xc3", "\xc3(", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_length(text, 0), 0U) << text;
  }
}

TEST(EndsWithinCharacter, looks_at_the_last_character) {
  for (const char* text : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xe2\x82\xac."}) {
    EXPECT_FALSE(ends_within_character(text)) << text;
  }
  for (const char* text : {"\xc3", "a\xe2", "a\xe2\x82", "\xf0", "\xf0\x9f", "a\xf0\x9f\x98", "\xc3\xa9\xc3"}) {
    EXPECT_TRUE(ends_within_character(text)) << text;
  }
}

}  // namespace
}  // namespace gradsync
