// Messages between daemons there and back, and their texts.

#include "rpc/peer/peer_codec.hpp"

#include "engine/peers/sums/comparison.hpp"
#include "peer_samples.hpp"
#include "plan/transfer/communicator_name.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/peer/peer_fields.hpp"
#include "same_message.hpp"
#include "unit/rpc/committed_file.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace gradsync::rpc {
namespace {

using engine::ToCoordinator;
using engine::ToMember;

template <typename Direction>
Result<Direction> read_peer(PeerReader& reader, const std::string& text) {
  if constexpr (std::is_same_v<Direction, ToCoordinator>) {
    return reader.to_coordinator(text);
  } else {
    return reader.to_member(text);
  }
}

template <typename Direction>
void expect_round_trip(PeerReader& reader, const Direction& message) {
  const Result<std::string> text = encode_peer(message);
  ASSERT_TRUE(text) << text.error().message;
  const Result<Direction> back = read_peer<Direction>(reader, *text);
  ASSERT_TRUE(back) << back.error().message << " in " << *text;
  EXPECT_TRUE(same(*back, message)) << *text;
}

TEST(PeerCodec, random_messages_of_every_kind_come_back_bit_for_bit) {
  PeerReader reader;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    for (std::size_t kind = 0; kind < std::variant_size_v<ToCoordinator>; ++kind) {
      expect_round_trip(reader, random_to_coordinator(kind, seed));
    }
    for (std::size_t kind = 0; kind < std::variant_size_v<ToMember>; ++kind) {
      expect_round_trip(reader, random_to_member(kind, seed));
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

/// The comparison itself finds a difference in every member that a random message has.
TEST(PeerCodec, messages_of_other_seeds_are_not_the_same) {
  for (std::size_t kind = 0; kind + 1 < std::variant_size_v<ToCoordinator>; ++kind) {  // the last is the beat
    EXPECT_FALSE(same(random_to_coordinator(kind, 1), random_to_coordinator(kind, 2))) << kind;
  }
  engine::NodeCells cells;
  engine::NodeCells other;
  other.whole.power_sum.low = -0.0;
  EXPECT_FALSE(same(cells, other));
}

template <typename Direction>
void expect_texts(const std::string& file, const std::vector<Direction>& samples) {
  std::string texts;
  for (const Direction& sample : samples) {
    const Result<std::string> text = encode_peer(sample);
    ASSERT_TRUE(text) << text.error().message;
    texts += *text + "\n";
  }
  expect_committed(file, texts);
  std::istringstream lines(read_committed(file));
  PeerReader reader;
  std::set<std::size_t> kinds;
  for (const Direction& sample : samples) {
    kinds.insert(sample.index());
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << file << " has fewer lines than there are samples";
    const Result<Direction> read = read_peer<Direction>(reader, line);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(same(*read, sample)) << line;
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Direction>) << "a kind has no sample";
}

TEST(PeerCodec, the_texts_to_the_coordinator_are_the_committed_ones) {
  expect_texts("tests/contract/peer/to_coordinator.jsonl", samples_to_coordinator());
}

TEST(PeerCodec, the_texts_to_members_are_the_committed_ones) {
  expect_texts("tests/contract/peer/to_member.jsonl", samples_to_member());
}

TEST(PeerCodec, spells_words_sums_and_ranks_as_the_protocol_says) {
  engine::PeerAsk ask;
  ask.word = 0x0000'0007'0000'0005;
  ask.policy_digest = "00000000000000a1";
  ask.sites.emplace_back().cells = {{{1.0, -0.0}, 0.5, std::numeric_limits<double>::infinity(), 2, 1}, {}, {}, 3};
  const Json params = Json::parse(*encode_peer(ToCoordinator(ask)))["params"];
  EXPECT_EQ(params["word"], "0000000700000005");
  EXPECT_EQ(
      params["sites"][0]["cells"]["whole"],
      "3ff0000000000000"
      "8000000000000000"
      "3fe0000000000000"
      "7ff0000000000000"
      "0000000000000002"
      "0000000000000001"
  );
  EXPECT_EQ(
      Json::parse(*encode_peer(ToMember(engine::PeerPause{{9, 3, 4, 3}})))["params"]["ranks"].dump(), "[[3,2],[9,1]]"
  );
}

TEST(PeerCodec, an_error_comes_back_exactly_as_it_was_sent) {
  Error error = make_error(ErrorCode::StepTimeout, "rank 1 \"slept\" \\ größer", "");
  error.node = "node-b";
  error.ranks = {4095, 0, 0};
  error.waited_s = -0.0;
  PeerReader reader;
  const Result<ToMember> read = reader.to_member(*encode_peer(ToMember(engine::PeerAbort{1, error})));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(same(std::get<engine::PeerAbort>(*read).error, error));
  EXPECT_EQ(std::get<engine::PeerAbort>(*read).error.hint, "") << "the hint of the kind is not sent";
}

TEST(PeerCodec, the_sender_makes_the_texts_of_an_error_fit) {
  Error error = make_error(ErrorCode::StepFailed, std::string(9000, 'x'), "one\ntwo\x1b[2J\xff\u202e.");
  error.path = std::string(1023, 'p') + "é";
  error.tensors.assign(30, std::string(600, '"'));
  for (std::int64_t rank = 0; rank < 4096; ++rank) {
    error.ranks.push_back(4095 - rank);
  }
  error.message[100] = '\0';
  const Result<std::string> text = encode_peer(ToCoordinator(engine::PeerFail{1, error}));
  ASSERT_TRUE(text) << text.error().message;
  PeerReader reader;
  const Result<ToCoordinator> read = reader.to_coordinator(*text);
  ASSERT_TRUE(read) << read.error().message;
  const Error& told = std::get<engine::PeerFail>(*read).error;
  EXPECT_EQ(told.message, std::string(100, 'x') + " " + std::string(8192 - 104, 'x') + "…");
  EXPECT_EQ(told.hint, "one two [2J\uFFFD .");
  EXPECT_EQ(told.path, std::string(1021, 'p') + "…");
  EXPECT_EQ(told.tensors, std::vector<std::string>(20, std::string(509, '"') + "…"));
  EXPECT_EQ(told.ranks, error.ranks);
}

/// Every text in an error at its longest, with characters that JSON escapes.
TEST(PeerCodec, no_error_makes_a_message_too_long) {
  Error error = make_error(ErrorCode::UnsupportedPlacement, std::string(8192, '\\'), std::string(1024, '"'));
  error.path = error.hint;
  error.job = std::string(256, '"');
  error.tensor = std::string(512, '\\');
  error.node = std::string(64, '"');
  error.ranks.assign(4096, 4095);
  error.tensors.assign(20, error.tensor);
  error.rank = 4095;
  error.step = INT64_MIN;
  error.bucket = INT64_MAX;
  error.epoch = UINT64_MAX;
  error.attempt = UINT64_MAX;
  error.waited_s = -2.2250738585072014e-308;
  PeerReader reader;
  expect_round_trip(reader, ToMember(engine::PeerEnd{0xFFFF'FFFF, UINT64_MAX, error}));
}

/// As many as a node may have, each with the longest name, of characters that JSON escapes.
TEST(PeerCodec, no_communicators_make_a_message_too_long) {
  device::LoadedCommunicators loaded{22'809, {}};
  engine::PeerConnect connect{0xFFFF'FFFF, {}};
  for (std::size_t number = 0; number < engine::kMostOffers; ++number) {
    const std::string name = std::to_string(100 + number) + std::string(plan::kCommunicatorNameBytes - 3, '"');
    loaded.offers.push_back({name, 4096, 4095, UINT64_MAX, device::NcclUniqueId{}});
    connect.communicators.push_back({name, UINT64_MAX, device::NcclUniqueId{}});
  }
  PeerReader reader;
  const std::string digest(16, 'f');
  expect_round_trip(reader, ToCoordinator(engine::PeerReady{0xFFFF'FFFF, digest, digest, true, std::move(loaded)}));
  expect_round_trip(reader, ToMember(std::move(connect)));
}

/// Everything that a node of three sites may find at once, by the longest numbers.
engine::PeerAsk longest_ask_of(
    const plan::Plan& plan, const engine::Comparison& comparison, std::int64_t ranks_of_each
) {
  constexpr std::uint32_t kLast = 9'999'999;
  engine::PeerAsk ask;
  ask.word = 1;
  ask.terms.step = INT64_MIN;
  ask.terms.scale = 2.2250738585072014e-308;
  ask.terms.max_norm = 2.2250738585072014e-308;
  ask.terms.override_max_norm = true;
  ask.policy_digest = std::string(16, 'f');
  engine::SiteSums site;
  site.cells.groups.resize(comparison.groups);
  site.cells.layers.resize(comparison.layers);
  site.cells.counted_elements = UINT64_MAX;
  site.row_hashes.resize(comparison.of_node.back().size());
  site.findings.nonfinite_total = UINT64_MAX;
  std::vector<std::int64_t> ranks;
  std::vector<std::pair<std::int64_t, std::uint64_t>> counts;
  for (std::int64_t rank = 0; rank < ranks_of_each; ++rank) {
    ranks.push_back(4095 - rank);
    counts.emplace_back(4095 - rank, UINT64_MAX);
  }
  for (std::uint32_t number = 0; number < device::kMaxFindings; ++number) {
    site.findings.nonfinite.push_back({kLast - number, UINT64_MAX, counts});
    site.findings.divergence.push_back({kLast - number, ranks, ranks, ranks});
    site.findings.missing.push_back({kLast - number, ranks});
  }
  for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); tensor += 2) {
    site.findings.absent.emplace_back(kLast - static_cast<std::uint32_t>(plan.tensors.size()) + tensor, 1);
  }
  ask.sites.assign(3, site);
  return ask;
}

TEST(PeerCodec, an_ask_is_no_longer_than_the_planner_takes_it_to_be) {
  for (const std::int64_t ranks : {1, 5}) {
    SCOPED_TRACE(ranks);
    plan::Plan plan;
    plan.tensors.resize(1001);
    engine::Comparison comparison;
    comparison.groups = 7;
    comparison.layers = 1000;
    comparison.of_node.resize(4, std::vector<std::uint32_t>(300));
    std::vector<engine::NodeNumber> node_of_rank{0};  // the coordinator's, and three sites of another
    comparison.node_of_rank = node_of_rank;
    for (std::int64_t rank = 0; rank < 3 * ranks; ++rank) {
      node_of_rank.push_back(1);
      comparison.node_of_rank.push_back(1 + static_cast<engine::SiteNumber>(rank / ranks));
    }
    const engine::AskSize taken = engine::largest_ask(plan, comparison, node_of_rank);
    EXPECT_EQ(taken.sites, 3U);
    const Result<std::string> text = encode_peer(ToCoordinator(longest_ask_of(plan, comparison, ranks)));
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_LE(text->size(), taken.bytes);
    EXPECT_GT(text->size(), taken.bytes - taken.bytes / 8) << "and not much shorter";
  }
}

TEST(PeerCodec, cuts_texts_between_characters) {
  EXPECT_EQ(tidy_text("größe", 7), "größe");
  EXPECT_EQ(tidy_text("größe", 6), "gr…") << "a character is not cut in two";
  EXPECT_EQ(tidy_text("abcd", 3), "…");
  EXPECT_EQ(tidy_text("\xe6\xa8", 9), "\uFFFD\uFFFD");
  EXPECT_EQ(tidy_text("a\u2028b\tc\u0085", 9), "a b c ");
  EXPECT_EQ(tidy_text("", 3), "");
}

TEST(PeerCodec, a_text_that_no_reader_would_take_is_not_written) {
  engine::PeerDecision decision;
  decision.word = 1;
  decision.cells.emplace().layers.resize((16U << 20) / 99);
  const Result<std::string> text = encode_peer(ToMember(decision));
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::LimitExceeded);
  EXPECT_EQ(text.error().message.find("peer.decision is a text of 16777"), 0U) << text.error().message;
  EXPECT_NE(text.error().message.find("; expected at most 16777216"), std::string::npos) << text.error().message;
  EXPECT_NE(text.error().hint, "");
}

TEST(PeerCodec, a_hello_of_another_protocol_is_read_as_far_as_it_says_which) {
  PeerReader reader;
  const Result<ToMember> other = reader.to_member(
      R"({"jsonrpc":"2.0","method":"peer.hello","params":{"peer_protocol":2,"node":"a","version":"9.1","x":[],"challenge":1}})"
  );
  ASSERT_TRUE(other) << other.error().message;
  const engine::PeerHello& hello = std::get<engine::PeerHello>(*other);
  EXPECT_EQ(hello.peer_protocol, 2);
  EXPECT_EQ(hello.version, "9.1");
  EXPECT_EQ(hello.node, "a");
  EXPECT_EQ(hello.challenge, 0U);
  const Result<ToMember> odd = reader.to_member(
      R"({"jsonrpc":"2.0","method":"peer.hello","params":{"peer_protocol":3,"node":"a\nb","version":7}})"
  );
  ASSERT_TRUE(odd) << odd.error().message;
  EXPECT_EQ(std::get<engine::PeerHello>(*odd).node, "") << "a line end must not reach the log";
  EXPECT_FALSE(reader.to_member(R"({"jsonrpc":"2.0","method":"peer.hello","params":{"peer_protocol":0}})"));
}

}  // namespace
}  // namespace gradsync::rpc
