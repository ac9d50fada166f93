#include "rpc/wire/declaration_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace gradsync::rpc {
namespace {

using ::testing::HasSubstr;

const std::string kHead =
    R"({"gradsync_declaration": 1, "world_size": 2, "meshes": [{"name": "m", "axes": [{"name": "dp", "size": 2}]}],)"
    R"( "options": {"data_path": "stats", "clip": [{"group": "all", "max_norm": 1}]}})"
    "\n";

std::string rank(int number, const std::string& local = "[2]") {
  return R"({"rank": )" + std::to_string(number) + R"(, "tensors": [{"name": "w", "shape": [4], "local_shape": )" +
         local +
         R"(, "dtype": "float32", "mesh": "m", "placements": [{"axes": ["dp"], "kind": "shard", "dim": 0}]}]})" + "\n";
}

Error refused_file(const std::string& text) {
  std::istringstream in(text);
  const Result<JobDeclaration> job = read_declaration_file(in);
  return job ? make_error(ErrorCode::InternalError, "accepted") : job.error();
}

TEST(DeclarationFile, holds_every_rank_in_any_order) {
  std::istringstream in(kHead + rank(1) + "\n" + rank(0));
  std::size_t heard = 0;
  const Result<JobDeclaration> job = read_declaration_file(in, [&heard](std::size_t ranks) { heard = ranks; });
  ASSERT_TRUE(job) << job.error().message;
  ASSERT_EQ(job->ranks.size(), 2u);
  EXPECT_EQ(job->ranks[0].tensors[0].local_shape, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(job->ranks[1].options.data_path, plan::DataPath::Stats);
  EXPECT_EQ(heard, 2u);
}

TEST(DeclarationFile, says_the_line_and_the_field_at_fault) {
  EXPECT_THAT(refused_file("").message, HasSubstr("empty"));
  EXPECT_EQ(refused_file("{").path, "line 1");
  EXPECT_EQ(refused_file(kHead + "{\"rank\": 0}\n").path, "line 2: tensors");
  EXPECT_EQ(refused_file(kHead + rank(0) + rank(1, "[5]")).path, "line 3: tensors[0].local_shape[0]");
  EXPECT_EQ(refused_file(kHead + rank(0) + rank(1, "[5]")).rank, 1);
  EXPECT_THAT(refused_file(kHead + rank(0) + rank(0)).message, HasSubstr("rank 0 has a second line"));
  EXPECT_THAT(refused_file(kHead + rank(2)).message, HasSubstr("rank is 2, world_size 2"));
  EXPECT_THAT(refused_file(kHead + rank(0)).message, HasSubstr("rank 1 of 2 has no line"));
  EXPECT_EQ(
      refused_file(R"({"gradsync_declaration": 2, "world_size": 1, "meshes": []})").path, "line 1: gradsync_declaration"
  );
}

TEST(DeclarationFile, ranks_that_declare_alike_hold_one_list) {
  const std::string spaced = R"({"tensors":[{"placements":[{"axes":["dp"],"kind":"shard","dim":0}],"mesh":"m",)"
                             R"("dtype":"float32","local_shape":[2],"shape":[4],"name":"w"}],"rank":1})";
  for (const std::string& other : {rank(1), spaced}) {
    std::istringstream in(kHead + rank(0) + other);
    const Result<JobDeclaration> job = read_declaration_file(in);
    ASSERT_TRUE(job) << job.error().message;
    EXPECT_EQ(job->ranks[0].tensors.identity(), job->ranks[1].tensors.identity());
  }
  std::istringstream in(kHead + rank(0, "[3]") + rank(1, "[1]"));
  const Result<JobDeclaration> job = read_declaration_file(in);
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_NE(job->ranks[0].tensors.identity(), job->ranks[1].tensors.identity());
}

// A line that differs in its rank alone from one that was read is not read again.
TEST(DeclarationFile, a_line_like_an_earlier_one_is_refused_as_any_other) {
  const auto line = [](const std::string& number) { return R"({"rank":)" + number + R"(,"tensors":[]})" + "\n"; };
  EXPECT_THAT(refused_file(kHead + line("0") + line("0")).message, HasSubstr("rank 0 has a second line"));
  EXPECT_THAT(refused_file(kHead + line("0") + line("2")).message, HasSubstr("rank is 2, world_size 2"));
  for (const char* number : {"01", "+1", "-1", "1.0", "1e0", "\"x\"", "", "18446744073709551616"}) {
    const Error alone = refused_file(kHead + "\n" + line(number));
    const Error after = refused_file(kHead + line("0") + line(number));
    EXPECT_EQ(after.message, alone.message) << number;
    EXPECT_EQ(after.path, alone.path) << number;
    EXPECT_EQ(after.code, alone.code) << number;
  }
  std::istringstream in(kHead + line("0") + line("1"));
  EXPECT_TRUE(read_declaration_file(in));
}

}  // namespace
}  // namespace gradsync::rpc
