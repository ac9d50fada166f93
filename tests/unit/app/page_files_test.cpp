// The files of the page for browsers as the binary has them.

#include "app/page/page_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace gradsync::app {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kMostBytes = 150 * 1000;

std::string text_at(std::string_view path) {
  const auto file = page_file(path);
  return file ? file->body : "";
}

TEST(PageFiles, are_small_together) {
  std::size_t bytes = 0;
  for (const PageFile& file : page_files()) {
    EXPECT_FALSE(file.text.empty()) << file.name;
    bytes += file.text.size();
  }
  EXPECT_GT(bytes, 10'000u);
  EXPECT_LE(bytes, kMostBytes);
}

TEST(PageFiles, name_only_each_other) {
  const std::regex named{R"re((?:src|href|from) ?=? ?"(?:page|\.)/([\w.]+)")re"};
  for (const PageFile& file : page_files()) {
    const std::string text(file.text);
    EXPECT_THAT(text, Not(HasSubstr("https://"))) << file.name;
    for (auto found = std::sregex_iterator(text.begin(), text.end(), named); found != std::sregex_iterator(); ++found) {
      EXPECT_TRUE(page_file("/page/" + (*found)[1].str())) << file.name << " names " << (*found)[1];
    }
  }
  EXPECT_THAT(text_at("/"), HasSubstr("page/page.js"));
}

TEST(PageFiles, have_no_script_and_no_style_within_the_document) {
  const std::string document = text_at("/");
  EXPECT_THAT(document, Not(HasSubstr("<style")));
  EXPECT_THAT(document, Not(HasSubstr(" style=")));
  EXPECT_FALSE(std::regex_search(document, std::regex(R"( on\w+=)")));
  EXPECT_FALSE(std::regex_search(document, std::regex(R"(<script(?![^>]* src=))")));
}

TEST(PageFiles, come_with_their_type_and_a_policy_that_lets_only_this_daemon_in) {
  EXPECT_EQ(page_file("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(page_file("/page/page.js")->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(page_file("/page/page.css")->content_type, "text/css; charset=utf-8");
  EXPECT_EQ(page_file("/page/icon.svg")->content_type, "image/svg+xml");
  EXPECT_THAT(page_file("/")->content_policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page_file("/")->content_policy, Not(HasSubstr("unsafe")));
}

TEST(PageFiles, are_at_their_paths_and_nowhere_else) {
  EXPECT_TRUE(is_page_file("/"));
  EXPECT_TRUE(is_page_file("/page/charts.js"));
  for (const char* path : {"", "/page", "/page/", "/page/page.html", "/page.js", "/page/../page.js", "/page/none.js"}) {
    EXPECT_FALSE(is_page_file(path)) << path;
    EXPECT_FALSE(page_file(path)) << path;
  }
}

TEST(PageFiles, are_for_readers_that_ask_for_html) {
  EXPECT_TRUE(is_browser("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
  EXPECT_FALSE(is_browser("*/*"));
  EXPECT_FALSE(is_browser(""));
}

}  // namespace
}  // namespace gradsync::app
