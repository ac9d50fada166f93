#include "rpc/json/codec.hpp"

#include "rpc/json/plain_text.hpp"
#include "rpc/wire/wire_session.hpp"
#include "rpc/wire/wire_step.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace gradsync::rpc {
namespace {

template <typename T>
Result<T> read_text(const std::string& text, Bounds bounds = {}) {
  const Result<Tape> tape = read_json(text, 32);
  if (!tape) {
    return tape.error();
  }
  T out{};
  FieldReader reader;
  if (!Codec<T>::read(reader, tape->root(), out, bounds)) {
    return reader.error();
  }
  return out;
}

template <typename T>
Error refused_text(const std::string& text, Bounds bounds = {}) {
  const Result<T> result = read_text<T>(text, bounds);
  EXPECT_FALSE(result) << text;
  return result ? Error{} : result.error();
}

constexpr const char* kAttach =
    R"({"job":"j","rank":0,"world_size":2,"meshes":[{"name":"m","axes":[{"name":"dp","size":2}]}]})";

std::string attach_with(const std::string& from, const std::string& to) {
  std::string text = kAttach;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(Codec, reads_a_struct_in_any_order_of_fields) {
  const auto params = read_text<AttachParams>(
      R"({"restart_count":3,"meshes":[{"axes":[{"size":2,"name":"dp"}],"name":"m"}],"world_size":2,"rank":1,"job":"j"})"
  );
  ASSERT_TRUE(params);
  EXPECT_EQ(params->rank, 1);
  EXPECT_EQ(params->restart_count, 3);
  EXPECT_EQ(params->meshes, (std::vector<plan::Mesh>{{"m", {{"dp", 2}}, {}}}));
}

TEST(Codec, refuses_integers_beyond_64_bits_by_field) {
  for (const char* number : {"18446744073709551616", "-9223372036854775809", "100000000000000000000000000000000"}) {
    const std::string expected =
        std::string("params is the integer ") + number + "; expected a number that fits 64 bits";
    EXPECT_EQ(refused_text<std::int64_t>(number).message, expected);
    EXPECT_EQ(refused_text<std::uint64_t>(number).message, expected);
    EXPECT_EQ(refused_text<std::uint32_t>(number).message, expected);
    EXPECT_EQ(refused_text<double>(number).message, expected);
    EXPECT_EQ(refused_text<std::string>(number).code, ErrorCode::InvalidParams);
  }
  const Error error = refused_text<AttachParams>(attach_with(R"("size":2)", R"("size":18446744073709551616)"));
  EXPECT_EQ(error.code, ErrorCode::InvalidParams);
  EXPECT_EQ(error.path, "meshes[0].axes[0].size");
}

TEST(Codec, names_the_path_of_a_missing_field) {
  const Error error = refused_text<AttachParams>(attach_with(R"(,"size":2)", ""));
  EXPECT_EQ(error.code, ErrorCode::InvalidParams);
  EXPECT_EQ(error.path, "meshes[0].axes[0].size");
  EXPECT_EQ(error.message, "meshes[0].axes[0].size is missing");
}

TEST(Codec, guesses_the_name_of_an_unknown_field_before_it_calls_one_missing) {
  const Error error = refused_text<AttachParams>(attach_with("\"rank\"", "\"ranks\""));
  EXPECT_EQ(error.path, "ranks");
  EXPECT_EQ(error.hint, "did you mean \"rank\"?");
  EXPECT_EQ(refused_text<AttachParams>(attach_with("\"rank\"", "\"zzzzzzzz\"")).hint.substr(0, 10), "known: job");
  EXPECT_EQ(refused_text<AttachParams>(attach_with("\"rank\"", "\"" + std::string(5000, 'r') + "\"")).path, "");
}

TEST(Codec, true_is_not_1_and_one_and_a_half_is_no_integer) {
  EXPECT_EQ(
      refused_text<AttachParams>(attach_with(R"("rank":0)", R"("rank":true)")).message,
      "rank is true; expected an integer"
  );
  EXPECT_EQ(refused_text<AttachParams>(attach_with(R"("rank":0)", R"("rank":1.5)")).path, "rank");
  EXPECT_EQ(refused_text<AttachParams>(attach_with(R"("rank":0)", R"("rank":1.0)")).path, "rank");
  EXPECT_EQ(refused_text<AttachParams>(attach_with(R"("rank":0)", R"("rank":null)")).path, "rank");
  EXPECT_EQ(refused_text<bool>("1").message, "params is 1; expected true or false");
}

TEST(Codec, minus_one_is_not_4294967295) {
  EXPECT_EQ(refused_text<std::uint32_t>("-1").message, "params is -1; expected 0 to 4294967295");
  EXPECT_FALSE(read_text<std::uint64_t>("-1"));
  EXPECT_FALSE(read_text<std::uint32_t>("4294967296"));
  EXPECT_EQ(
      refused_text<AttachParams>(attach_with(R"("rank":0)", R"("rank":-1)")).message, "rank is -1; expected at least 0"
  );
}

TEST(Codec, takes_integers_above_2_to_the_53_as_decimal_text_too) {
  EXPECT_EQ(*read_text<std::uint64_t>("\"18446744073709551615\""), UINT64_MAX);
  EXPECT_EQ(*read_text<std::uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(*read_text<std::int64_t>("\"-9223372036854775808\""), INT64_MIN);
  EXPECT_FALSE(read_text<std::int64_t>("9223372036854775808"));
  for (const char* text : {"\"\"", "\"1.5\"", "\" 1\"", "\"1 \"", "\"0x1\"", "\"18446744073709551616\"", "\"-1\""}) {
    EXPECT_FALSE(read_text<std::uint64_t>(text)) << text;
  }
  EXPECT_FALSE(read_text<std::uint32_t>("\"1\""));
}

TEST(Codec, takes_non_finite_numbers_as_texts_where_a_number_is_allowed) {
  EXPECT_TRUE(std::isnan(*read_text<double>("\"NaN\"")));
  EXPECT_EQ(*read_text<double>("\"Infinity\""), INFINITY);
  EXPECT_EQ(*read_text<double>("\"-Infinity\""), -INFINITY);
  EXPECT_EQ(*read_text<double>("2"), 2.0);
  EXPECT_FALSE(read_text<double>("\"nan\""));
  EXPECT_FALSE(read_text<double>("\"NaN\"", kNatural));
  EXPECT_FALSE(read_text<double>("\"-Infinity\"", kNatural));
  EXPECT_FALSE(read_text<std::int64_t>("\"Infinity\""));
}

TEST(Codec, writes_numbers_that_read_back_to_the_same_bits) {
  for (const double value :
       {0.1,
        -0.0,
        5.0,
        1e300,
        5e-324,
        1.0 / 3,
        123456789012345680.0,
        0x1p63,
        -0x1p63,
        -9223372036854777856.0,
        0x1p64,
        564273336045227671552.0,
        -1e22}) {
    const auto back = read_text<double>(to_json(value));
    ASSERT_TRUE(back);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(*back), std::bit_cast<std::uint64_t>(value)) << value;
  }
  EXPECT_EQ(to_json(std::nan("")), "\"NaN\"");
  EXPECT_EQ(to_json(-HUGE_VAL), "\"-Infinity\"");
  EXPECT_EQ(to_json(std::uint64_t{1} << 53), "9007199254740992");
  EXPECT_EQ(to_json((std::uint64_t{1} << 53) + 1), "\"9007199254740993\"");
  EXPECT_EQ(to_json(INT64_MIN), "\"-9223372036854775808\"");
}

TEST(Codec, writes_any_text_as_valid_json) {
  EXPECT_EQ(to_json(std::string("a\"b\\\n\x01é")), "\"a\\\"b\\\\\\n\\u0001é\"");
  EXPECT_TRUE(read_json(to_json(std::string("\xff\xfe")), 32));
}

TEST(Codec, tells_an_absent_field_from_null) {
  const std::string call = R"({"epoch":1,"attempt":0,"step":5,"ready":"all")";
  const auto absent = read_text<FinishParams>(call + "}");
  const auto null = read_text<FinishParams>(call + R"(,"max_norm":null})");
  const auto given = read_text<FinishParams>(call + R"(,"max_norm":0.5})");
  ASSERT_TRUE(absent && null && given);
  EXPECT_FALSE(absent->max_norm.given);
  EXPECT_TRUE(null->max_norm.given && !null->max_norm.value);
  EXPECT_EQ(given->max_norm.value, 0.5);
  EXPECT_TRUE(absent->ready.all);
}

TEST(Codec, reads_ready_as_all_or_a_list) {
  const std::string call = R"({"epoch":1,"attempt":0,"step":5,"ready":)";
  EXPECT_EQ(read_text<FinishParams>(call + "[2,0]}")->ready.buckets, (std::vector<std::uint32_t>{2, 0}));
  EXPECT_EQ(refused_text<FinishParams>(call + "\"most\"}").path, "ready");
  EXPECT_EQ(refused_text<FinishParams>(call + "[0,-1]}").path, "ready[1]");
}

TEST(Codec, refuses_characters_that_turn_the_direction_of_text) {
  for (const char* turning : {"\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069", "\u061c"}) {
    EXPECT_TRUE(find_control_character(std::string("a") + turning + "b").has_value()) << turning;
  }
  EXPECT_EQ(quote_escaped("a\u202eb"), "\"a\\u202eb\"");
  EXPECT_FALSE(find_control_character("Übergröße – \u05d0\u0627 \u2065").has_value());
}

TEST(Codec, refuses_control_characters_and_shows_them_escaped) {
  const Error error = refused_text<AttachParams>(attach_with("\"j\"", R"("j\nepoch begins\u001b[2J")"));
  EXPECT_EQ(error.path, "job");
  EXPECT_EQ(
      error.message, R"(job is "j\u000aepoch begins\u001b[2J"; expected no control character (U+000A at byte 1))"
  );
  for (const char* text :
       {R"("\u0000")", R"("\u007f")", R"("a\u0085")", R"("\u009b2J")", R"("x\u2028")", R"("\u2029")"}) {
    EXPECT_EQ(refused_text<AttachParams>(attach_with("\"dp\"", text)).path, "meshes[0].axes[0].name") << text;
  }
  for (const char* text : {R"("größe")", R"("\u00a0")", R"("‒—")", R"("模型 7")", "\"a b\""}) {
    EXPECT_TRUE(read_text<AttachParams>(attach_with("\"j\"", text))) << text;
  }
  const Error longer = refused_text<AttachParams>(
      attach_with("\"j\"", "\"" + std::string(59, 'x') + "é\\t" + std::string(90, 'y') + "\"")
  );
  EXPECT_NE(longer.message.find("xé…\";"), std::string::npos) << longer.message;
}

TEST(Codec, limits_texts_and_lists) {
  EXPECT_EQ(
      refused_text<AttachParams>(attach_with("\"j\"", "\"\"")).message, "job is a string of 0 bytes; expected 1 to 256"
  );
  EXPECT_EQ(
      refused_text<AttachParams>(attach_with(R"([{"name":"m","axes":[{"name":"dp","size":2}]}])", "[]")).path, "meshes"
  );
  EXPECT_EQ(
      refused_text<std::vector<std::string>>("[1,2,3]", Bounds{0, 2}).message,
      "params is a list of 3 items; expected 0 to 2"
  ) << "the items are not looked at";
  EXPECT_EQ(refused_text<AttachParams>("[]").message, "params is an array; expected an object");
}

}  // namespace
}  // namespace gradsync::rpc
