#include "rpc/json/json_tape.hpp"

#include <gtest/gtest.h>

namespace gradsync::rpc {
namespace {

std::string refusal(std::string_view text, std::size_t depth = 32) {
  const Result<Tape> tape = read_json(text, depth);
  if (tape) {
    return "";
  }
  EXPECT_EQ(tape.error().code, ErrorCode::ParseError);
  return tape.error().message;
}

std::string nested(std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(JsonTape, keeps_integers_and_doubles_apart) {
  const Result<Tape> tape = read_json("[1, -1, 1.0, 18446744073709551615, -9223372036854775808, -0, 1e2]", 32);
  ASSERT_TRUE(tape);
  std::vector<TokenType> types;
  tape->root().each_item([&](Value value) {
    types.push_back(value.type());
    return true;
  });
  using enum TokenType;
  EXPECT_EQ(types, (std::vector{Unsigned, Negative, Double, Unsigned, Negative, Unsigned, Double}));
}

TEST(JsonTape, skips_nested_values_by_their_end) {
  const Result<Tape> tape = read_json(R"({"a": {"x": [1, {"y": 2}]}, "b": "é\n\u00e9", "c": null})", 32);
  ASSERT_TRUE(tape);
  EXPECT_EQ(tape->root().member("b")->text(), "é\né");
  EXPECT_TRUE(tape->root().member("c")->is(TokenType::Null));
  EXPECT_FALSE(tape->root().member("x").has_value());
}

TEST(JsonTape, refuses_what_is_not_json) {
  for (const char* text :
       {"",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "01",
        "1.",
        "+1",
        "NaN",
        "'a'",
        "\"\t\"",
        "nul",
        "1 2",
        "// c\n1",
        "\"\\x\"",
        "{1:2}",
        "[1}"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(JsonTape, refuses_invalid_utf8_and_lone_surrogates) {
  EXPECT_NE(refusal("\"\xff\""), "");
  EXPECT_NE(refusal("\"\xc0\x80\""), "");
  EXPECT_NE(refusal("\"\xed\xa0\x80\""), "");
  EXPECT_NE(refusal(R"("\ud800")"), "");
  EXPECT_NE(refusal(R"("\udc00")"), "");
  EXPECT_EQ(refusal(R"("\ud83d\ude00")"), "");
}

TEST(JsonTape, keeps_integers_beyond_64_bits_as_text_instead_of_rounding_them) {
  const std::string long_one = "1" + std::string(400, '0');
  const std::string text = R"({"a":18446744073709551616,"b":"é","c":-9223372036854775809,"d":)" + long_one + "}";
  const Result<Tape> tape = read_json(text, 32);
  ASSERT_TRUE(tape);
  EXPECT_EQ(tape->root().member("a")->type(), TokenType::LongInteger);
  EXPECT_EQ(tape->root().member("a")->text(), "18446744073709551616");
  EXPECT_EQ(tape->root().member("b")->text(), "é");
  EXPECT_EQ(tape->root().member("c")->describe(), "the integer -9223372036854775809");
  EXPECT_EQ(tape->root().member("d")->text(), long_one);
  EXPECT_LT(tape->root().member("d")->describe().size(), 100U);
}

TEST(JsonTape, refuses_numbers_beyond_the_range_of_doubles) {
  EXPECT_NE(refusal("1e999"), "");
  EXPECT_EQ(refusal("1e-999"), "");
}

TEST(JsonTape, limits_the_depth) {
  EXPECT_EQ(refusal(nested(32)), "");
  EXPECT_NE(refusal(nested(33)).find("32 levels"), std::string::npos);
  EXPECT_NE(refusal(std::string(1 << 20, '[')), "");
}

TEST(JsonTape, refuses_a_key_twice_in_one_object) {
  EXPECT_NE(refusal(R"({"a": 1, "b": 2, "a": 3})").find("\"a\" appears twice"), std::string::npos);
  EXPECT_NE(refusal(R"({"a": 1, "\u0061": 2})"), "");
  EXPECT_EQ(refusal(R"([{"a": 1}, {"a": {"a": 2}}])"), "");
}

TEST(JsonTape, finds_a_double_key_among_many) {
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i) {
    text += "\"key" + std::to_string(i) + "\":0,";
  }
  EXPECT_EQ(refusal(text + "\"other\":0}"), "");
  EXPECT_NE(refusal(text + "\"key7\":0}").find("\"key7\" appears twice"), std::string::npos);
  EXPECT_NE(refusal(text + "\"key49999\":0}"), "");
}

TEST(JsonTape, says_where_the_text_breaks_without_repeating_all_of_it) {
  const std::string message = refusal("{\"a\": \"" + std::string(100'000, 'x'));
  EXPECT_NE(message.find("line 1"), std::string::npos);
  EXPECT_LT(message.size(), 400U);
}

}  // namespace
}  // namespace gradsync::rpc
