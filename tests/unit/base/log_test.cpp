#include "base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

/// What the log thread wrote to stderr between start and stop.
std::string logged(LogFormat format, const std::string& level, void (*write)()) {
  testing::internal::CaptureStderr();
  start_logging(format, level);
  write();
  stop_logging();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, json_is_one_object_per_line_and_escapes_the_message) {
  const std::string text =
      logged(LogFormat::Json, "info", [] { spdlog::info("say \"a\\b\"\nand\x01 more job={}", "llm"); });
  EXPECT_THAT(
      text,
      MatchesRegex("\\{\"ts\":\"[0-9]+-[0-9]+-[0-9]+T[0-9:]+\\.[0-9]+Z\",\"level\":\"info\",\"logger\":\"gradsyncd\","
                   "\"msg\":\".*\"\\}\n")
  );
  EXPECT_THAT(text, HasSubstr(R"(say \"a\\b\"\u000aand\u0001 more job=llm)"));
}

TEST(Log, json_stays_utf_8_whatever_is_logged) {
  const std::string text =
      logged(LogFormat::Json, "info", [] { spdlog::info("tensor 'gr\xC3\xB6\xC3\x9F' \xFF\xC3"); });
  EXPECT_THAT(text, HasSubstr("gr\xC3\xB6\xC3\x9F"));
  EXPECT_THAT(text, Not(HasSubstr("\xFF")));
  EXPECT_THAT(text, HasSubstr("\xEF\xBF\xBD"));
}

TEST(Log, json_takes_no_overlong_character_and_no_surrogate) {
  const std::string text = logged(LogFormat::Json, "info", [] {
    spdlog::info("<\xC0\xAF> <\xED\xA0\x80> <\xF4\x90\x80\x80> <\xE0\x80\x80> <\xF0\x9F\x98\x80>");
  });
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_THAT(text, HasSubstr("<" + bad + bad + "> <" + bad + bad + bad + "> <" + bad + bad + bad + bad + ">"));
  EXPECT_THAT(text, HasSubstr("<\xF0\x9F\x98\x80>"));
}

TEST(Log, a_line_after_the_end_is_dropped) {
  logged(LogFormat::Text, "info", [] {});
  testing::internal::CaptureStderr();
  spdlog::error("too late");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(set_log_level("info").has_value());
}

TEST(Log, lines_below_the_level_are_left_out) {
  const std::string text = logged(LogFormat::Text, "warn", [] {
    spdlog::info("quiet");
    spdlog::warn("loud");
  });
  EXPECT_THAT(text, HasSubstr("loud"));
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
}

TEST(SetLogLevel, returns_the_level_before_by_its_wire_name) {
  ASSERT_TRUE(set_log_level("warn").has_value());
  EXPECT_EQ(*set_log_level("error"), "warn");
  EXPECT_EQ(*set_log_level("trace"), "error");
  EXPECT_EQ(*set_log_level("info"), "trace");
}

TEST(SetLogLevel, an_unknown_name_changes_nothing) {
  ASSERT_TRUE(set_log_level("info").has_value());
  const auto refused = set_log_level("verbose");
  ASSERT_TRUE(refused.has_error());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidParams);
  EXPECT_EQ(refused.error().path, "level");
  EXPECT_EQ(*set_log_level("info"), "info");
}

}  // namespace
}  // namespace gradsync
