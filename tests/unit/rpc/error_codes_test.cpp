#include "rpc/error_codes.hpp"

#include "base/error_page.hpp"
#include "committed_file.hpp"
#include "rpc/json/codec.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace gradsync::rpc {
namespace {

TEST(ErrorCodes, has_one_row_per_code_and_no_number_twice) {
  std::set<int> numbers;
  for (int code = 0; code <= static_cast<int>(ErrorCode::DoctorFailed); ++code) {
    const ErrorRow& row = row_of(static_cast<ErrorCode>(code));
    EXPECT_TRUE(numbers.insert(row.json_rpc).second) << row.json_rpc;
    EXPECT_STRNE(row.hint, "") << kind_of(row.code);
  }
  EXPECT_EQ(numbers.size(), error_rows().size());
}

TEST(ErrorCodes, keeps_domain_codes_out_of_the_reserved_range) {
  for (const ErrorRow& row : error_rows()) {
    const bool reserved = row.json_rpc >= -32768 && row.json_rpc <= -32000;
    EXPECT_EQ(reserved, row.code <= ErrorCode::InternalError) << kind_of(row.code);
    EXPECT_TRUE(row.http >= 400 && row.http < 600) << kind_of(row.code);
  }
}

TEST(ErrorCodes, passes_every_field_of_an_error_on) {
  Error error = make_error(ErrorCode::StepTimeout, "rank 1 did not finish");
  error.path = "ready";
  error.job = "llm";
  error.tensor = "wq";
  error.ranks = {1, 3};
  error.tensors = {"wq", "wk"};
  error.rank = 1;
  error.step = 7;
  error.bucket = 2;
  error.epoch = 4;
  error.attempt = 9;
  error.waited_s = 1.5;
  const Json expected = Json::parse(R"({"code":1404,"message":"rank 1 did not finish","data":{"kind":"step_timeout",
      "retryable":true,"hint":"","path":"ready","job":"llm","tensor":"wq","ranks":[1,3],"tensors":["wq","wk"],"rank":1,
      "step":7,"bucket":2,"epoch":4,"attempt":9,"waited_s":1.5}})");
  Json written = Json::parse(error_json(error));
  EXPECT_EQ(written["data"]["hint"], with_page(row_of(ErrorCode::StepTimeout).hint, ErrorCode::StepTimeout));
  written["data"]["hint"] = "";
  EXPECT_EQ(written, expected);
}

TEST(ErrorCodes, prefers_the_hint_of_the_error) {
  EXPECT_EQ(
      Json::parse(error_json(make_error(ErrorCode::NotReady, "m", "h")))["data"]["hint"],
      "h (gradsyncd explain not_ready)"
  );
  EXPECT_EQ(Json::parse(error_json(make_error(ErrorCode::NotReady, "m")))["data"].size(), 3U);
}

TEST(ErrorCodes, are_exported_for_the_python_client) {
  expect_committed("tests/contract/error_codes.json", error_table_json());
}

/// docs/errors.md: one table row per kind, `| kind | code | retryable | …`.
TEST(ErrorCodes, are_listed_in_the_documents) {
  const std::string text = read_committed("docs/errors.md");
  std::map<std::string, std::pair<int, std::string>> listed;
  const std::regex row(R"(\n\| `([a-z_]+)` \| (-?[0-9]+) \| ([0-9]+) \| (yes|no) \|)");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), row); at != std::sregex_iterator(); ++at) {
    EXPECT_TRUE(listed.try_emplace((*at)[1], std::stoi((*at)[2]), (*at)[3].str() + (*at)[4].str()).second) << (*at)[1];
  }
  for (const ErrorRow& entry : error_rows()) {
    const auto found = listed.find(kind_of(entry.code));
    ASSERT_NE(found, listed.end()) << kind_of(entry.code) << " is not in docs/errors.md";
    EXPECT_EQ(found->second.first, entry.json_rpc) << found->first;
    EXPECT_EQ(found->second.second, std::to_string(entry.http) + (entry.retryable ? "yes" : "no")) << found->first;
  }
  EXPECT_EQ(listed.size(), error_rows().size()) << "docs/errors.md lists a kind that does not exist";
}

}  // namespace
}  // namespace gradsync::rpc
