// Our reader of JSON against nlohmann's: above all the bits of numbers, which Boost.JSON does not read exactly itself.
#include "unit/rpc/json_oracle.hpp"

#include "rpc/json/json_tape.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace gradsync::rpc {
namespace {

constexpr std::size_t kDepth = 32;

void expect_agreement(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_EQ(difference_to_oracle(text, kDepth), "") << text;
    EXPECT_EQ(difference_to_oracle("[" + text + "]", kDepth), "") << text;
    EXPECT_EQ(difference_to_oracle("{\"a\":" + text + ",\"b\":[ " + text + " ]}", kDepth), "") << text;
  }
}

TEST(JsonOracle, reads_the_same_bits_of_any_double) {
  std::mt19937_64 random(1);
  std::string shortest = "[0";
  std::string longest = "[0";
  std::vector<std::uint64_t> bits;
  while (bits.size() < 100'000) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) {
      bits.push_back(std::bit_cast<std::uint64_t>(value));
      shortest += fmt::format(",{}", value);
      longest += fmt::format(",{:.16e}", value);
    }
  }
  EXPECT_EQ(difference_to_oracle(shortest + "]", kDepth), "");
  EXPECT_EQ(difference_to_oracle(longest + "]", kDepth), "");
  for (const std::string& text : {shortest, longest}) {
    const Result<Tape> tape = read_json(text + "]", kDepth);
    ASSERT_TRUE(tape);
    std::size_t next = 0;
    tape->root().each_item([&](Value value) {  // the first is the 0 before them; a whole one may be written as integer
      if (next > 0 && value.is(TokenType::Double)) {
        EXPECT_EQ(std::bit_cast<std::uint64_t>(value.token().real), bits[next - 1]);
      }
      ++next;
      return true;
    });
    EXPECT_EQ(next, bits.size() + 1);
  }
}

TEST(JsonOracle, rounds_at_the_edges_of_doubles_alike) {
  std::vector<std::string> texts;
  std::mt19937_64 random(2);
  for (int i = 0; i < 2'000; ++i) {
    const double subnormal = std::bit_cast<double>(random() >> 12);
    texts.push_back(fmt::format("{:.17g}", subnormal == 0 ? 5e-324 : subnormal));
    // Half between two neighbours, to the last of its digits, and a little beside it.
    const double large = std::bit_cast<double>((random() >> 12) | (std::uint64_t{1023 + 60} << 52));
    const std::string half = fmt::format("{:.0f}", large).substr(0, 18);
    texts.push_back(half + ".5");
    texts.push_back(half + ".50000000000000000000000000000000001");
    const auto odd = static_cast<std::int64_t>((random() >> 11) | (1ULL << 52));
    texts.push_back(fmt::format("{}.5e0", odd));
    texts.push_back(fmt::format("{}.5000000000000000000000000000001E+0", odd));
    texts.push_back(fmt::format("-{}.4999999999999999999999999999999", odd));
  }
  expect_agreement(texts);
  expect_agreement(
      {"2.4703282292062327e-324",
       "2.4703282292062328e-324",
       "4.9406564584124654e-324",
       "2.2250738585072011e-308",
       "2.2250738585072014e-308",
       "1.7976931348623157e308",
       "1.7976931348623158e308",
       "1.7976931348623159e308",
       "179769313486231570814527423731704356798070567525844996598917476803157260780028538760589558632766878171540458953"
       "514382464234321326889464182768467546703537516986049910576551282076245490090389328944075868508455133942304583236"
       "903222948165808559332123347747165490e0",
       "0.1e309",
       "1e308",
       "1e309",
       "-1e400",
       "1e400",
       "1e-400",
       "-1e-400",
       "0e400",
       "-0e-400",
       "0.0e99",
       "-0",
       "-0.0",
       "0",
       "1E5",
       "1e+5",
       "1e-5",
       "1.5E+0007",
       "9007199254740993.0",
       "9007199254740993"}
  );
  expect_agreement(
      {std::string(400, '1') + ".0",
       std::string(300, '9') + ".5",
       "0." + std::string(400, '0') + "1",
       "1" + std::string(400, '0') + "e-400",
       "0." + std::string(400, '0') + "1e401",
       "1e" + std::string(400, '0') + "5"}
  );
  expect_agreement(
      {"1e2147483647",
       "1e-2147483647",
       "1e2147483648",
       "1e-2147483648",
       "0e99999999999",
       "1e99999999999",
       "1e-99999999999999999999"}
  );
}

TEST(JsonOracle, tells_integers_from_doubles_at_the_edges_of_64_bits) {
  expect_agreement(
      {"9223372036854775807",
       "9223372036854775808",
       "-9223372036854775807",
       "-9223372036854775808",
       "-9223372036854775809",
       "18446744073709551615",
       "18446744073709551616",
       "18446744073709551614",
       "18446744073709551620",
       "-18446744073709551615",
       "99999999999999999999",
       "100000000000000000000000",
       "9223372036854775807.0",
       "18446744073709551616.0",
       "18446744073709551616e0",
       "-9223372036854775809e0",
       "1000000000000000",
       "9999999999999999",
       "10000000000000000",
       "12345678901234567",
       "-1234567890123456",
       "-12345678901234567",
       "1234567890123456.25",
       "4503599627370497.5",
       "1e0",
       "10E0",
       "-1",
       "-10",
       "-01",
       "-"}
  );
}

TEST(JsonOracle, takes_and_refuses_the_same_strings) {
  std::vector<std::string> texts;
  for (int byte = 1; byte < 256; ++byte) {
    for (const char* tail :
         {"", "\x80", "\x80\x80", "\x80\x80\x80", "\x9f\xbf", "\xbf\xbf", "\x8f\xbf\xbf", "\x90\x80\x80", "a"}) {
      texts.push_back("\"" + std::string(1, static_cast<char>(byte)) + tail + "\"");
      texts.push_back("\"0123456789abcdefghijklmnopqrstuvwxyz" + std::string(1, static_cast<char>(byte)) + tail + "\"");
    }
    texts.push_back("\"\\" + std::string(1, static_cast<char>(byte)) + "\"");
    texts.push_back(std::string(1, static_cast<char>(byte)));
    texts.push_back("1" + std::string(1, static_cast<char>(byte)));
  }
  for (const char* escapes :
       {R"("\u0000")",
        R"("\ud800")",
        R"("\ud800x")",
        R"("\ud800\u0041")",
        R"("\ud800\ud800")",
        R"("\ud83d\ude00")",
        R"("\uD83D\uDE00")",
        R"("\udc00")",
        R"("\udc00\ud800")",
        R"("\ud800\n")",
        R"("\u12")",
        R"("\u12g4")",
        R"("\U0041")",
        R"("\/\b\f\n\r\t\"\\")",
        R"("\'")",
        R"("\v")",
        R"("\x41")",
        R"("\)",
        R"("\u)",
        "\"\\u00",
        "\"abc",
        "\""}) {
    texts.emplace_back(escapes);
  }
  expect_agreement(texts);
}

TEST(JsonOracle, takes_and_refuses_the_same_structures) {
  const std::vector<std::string> words{
      "[", "]", "{", "}", ",", ":", "\"a\"", "\"b\"", "1", "-", "null", "true", " ", "\n"};
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (std::uint64_t left = 1 + random() % 9; left > 0; --left) {
      text += words[random() % words.size()];
    }
    ASSERT_EQ(difference_to_oracle(text, 3), "") << text;
  }
  expect_agreement(
      {"",
       " ",
       "nul",
       "nulll",
       "True",
       "NaN",
       "Infinity",
       "-Infinity",
       "-NaN",
       "0x10",
       ".5",
       "5.",
       "1.e5",
       "1e",
       "1e+",
       "+1",
       "--1",
       "00",
       "1 2",
       "[1] x",
       "// c\n1",
       "1 // c",
       "/* c */ 1",
       "'a'",
       "[1,]",
       "{\"a\":1,}",
       "{,}",
       "[,]",
       "{a:1}",
       "{1:1}",
       "\f1",
       "\v1",
       "1\t\r\n ",
       "\xEF\xBB\xBF"
       "1",
       "\xEF\xBB"
       "1",
       "1\xEF\xBB\xBF",
       "\xEF\xBB\xBF",
       "\xEF\xBB\xBF\xEF\xBB\xBF"
       "1",
       "\xC2\xA0"
       "1"}
  );
}

TEST(JsonOracle, a_nul_byte_does_not_end_a_text) {
  using std::string_literals::operator""s;
  for (const std::string& text : {"1\0"s, "1\0garbage"s, "\0"s, "[1,\0]"s, "\"a\0b\""s, "{}\0{}"s}) {
    EXPECT_FALSE(read_json(text, kDepth)) << text;
  }
}

}  // namespace
}  // namespace gradsync::rpc
