#include "engine/peers/record_words.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace gradsync::engine {
namespace {

constexpr std::uint64_t kDoubt = 7;

RecordWords record(std::uint64_t doubt, std::uint64_t done) { return {doubt, done, true}; }

const RecordWords kNew{};  // its ranks and daemon have no record

std::optional<Verdict> verdict(const std::vector<RecordWords>& nodes, bool all) {
  return verdict_of(kDoubt, nodes, all);
}

TEST(VerdictOf, is_done_where_any_record_says_so) {
  EXPECT_EQ(verdict({record(0, kDoubt), record(kDoubt, 6)}, false), Verdict::Done);
  EXPECT_EQ(verdict({kNew, record(kDoubt, 6), record(0, kDoubt)}, true), Verdict::Done);
  EXPECT_EQ(verdict({record(kDoubt, 6), record(0, kDoubt)}, true), Verdict::Done)
      << "the coordinator's own record was stored before any other, but may be read before that";
}

TEST(VerdictOf, is_failed_where_the_coordinators_record_is_known_and_does_not_say_done) {
  EXPECT_EQ(verdict({record(kDoubt, 6), record(kDoubt, 6)}, true), Verdict::Failed);
  EXPECT_EQ(verdict({record(0, 6)}, false), Verdict::Failed) << "no other node needs to be waited for";
}

TEST(VerdictOf, waits_for_all_nodes_and_then_cannot_be_known_where_the_coordinators_record_is_gone) {
  EXPECT_EQ(verdict({kNew, record(kDoubt, 6)}, false), std::nullopt);
  EXPECT_EQ(verdict({kNew, record(kDoubt, 6)}, true), Verdict::Unknown);
}

}  // namespace
}  // namespace gradsync::engine
