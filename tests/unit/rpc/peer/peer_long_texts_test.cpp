// Long messages between daemons: how long each kind may be, that this is known before a text is parsed, and that no
// long text takes much time or keeps memory.

#include "peer_samples.hpp"
#include "rpc/peer/peer_codec.hpp"
#include "rpc/peer/wire_peer_declaration.hpp"
#include "rpc/peer/wire_peer_step.hpp"
#include "same_message.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <malloc.h>

namespace gradsync::rpc {
namespace {

constexpr std::size_t kMiB = 1U << 20;

std::string opening_of(const std::string& method) {
  return R"({"jsonrpc":"2.0","method":")" + method + R"(","params":)";
}

/// A text of `bytes` bytes which is no JSON beyond its opening.
std::string broken_text(const std::string& method, std::size_t bytes) {
  std::string text = opening_of(method);
  text.resize(bytes, '?');
  return text;
}

template <typename... Messages>
void expect_lengths(
    const std::variant<Messages...>&,
    const std::function<Error(const std::string&)>& read,
    std::vector<std::string>& longer
) {
  (
      [&] {
        constexpr std::size_t kMost = Fields<Messages>::kMostBytes;
        const std::string method = Fields<Messages>::kName;
        EXPECT_EQ(read(broken_text(method, kMost)).code, ErrorCode::ParseError) << method;
        const Error error = read(broken_text(method, kMost + 1));
        EXPECT_EQ(error.code, ErrorCode::LimitExceeded) << "it was parsed: " << error.message;
        EXPECT_EQ(
            error.message,
            method + " is a text of " + std::to_string(kMost + 1) + " bytes; expected at most " + std::to_string(kMost)
        );
        if (kMost > kShortTextBytes) {
          longer.push_back(method);
        }
      }(),
      ...
  );
}

TEST(PeerLongTexts, each_kind_has_its_length_and_a_longer_text_is_not_parsed) {
  PeerReader reader;
  std::vector<std::string> longer;
  expect_lengths(
      engine::ToCoordinator{}, [&](const std::string& text) { return reader.to_coordinator(text).error(); }, longer
  );
  EXPECT_EQ(
      longer,
      (std::vector<std::string>{"peer.join", "peer.ask", "peer.rows", "peer.want", "peer.policies", "peer.declaration"})
  );
  longer.clear();
  expect_lengths(
      engine::ToMember{}, [&](const std::string& text) { return reader.to_member(text).error(); }, longer
  );
  EXPECT_EQ(
      longer,
      (std::vector<std::string>{
          "peer.prepare", "peer.compare", "peer.decision", "peer.want", "peer.policies", "peer.declaration"})
  );
}

TEST(PeerLongTexts, a_long_text_has_to_begin_as_long_ones_do) {
  PeerReader reader;
  const std::string spaces(kShortTextBytes, ' ');
  const std::string beat = R"({"jsonrpc":"2.0","method":"peer.beat","params":{}})";
  EXPECT_TRUE(reader.to_member(beat + spaces.substr(beat.size())));
  const std::string want = R"("method":"peer.want","params":{"hashes":["0123456789abcdef0123456789abcdef"]})";
  EXPECT_TRUE(reader.to_member(R"({"jsonrpc":"2.0",)" + want + "}" + spaces));
  EXPECT_TRUE(reader.to_member("{" + want + R"(,"jsonrpc":"2.0"})")) << "a short text may have any order";
  for (const std::string& text :
       {"{" + want + R"(,"jsonrpc":"2.0"})" + spaces,
        R"({"jsonrpc": "2.0",)" + want + "}" + spaces,
        spaces + R"({"jsonrpc":"2.0",)" + want + "}",
        R"({"jsonrpc":"2.0","method":")" + spaces}) {
    const Result<engine::ToMember> read = reader.to_member(text);
    ASSERT_FALSE(read) << text.substr(0, 100);
    EXPECT_EQ(read.error().code, ErrorCode::LimitExceeded) << read.error().message;
    EXPECT_EQ(read.error().message.find("a message that does not begin as a long one does is a text of 65"), 0U)
        << read.error().message;
  }
}

TEST(PeerLongTexts, what_begins_as_a_long_kind_is_not_read_as_another_one) {
  PeerReader reader;
  std::string text = opening_of("peer.want") + R"({},"method":"peer.beat"})";
  text.insert(text.size() - 1, kShortTextBytes, ' ');
  EXPECT_EQ(reader.to_member(text).error().code, ErrorCode::ParseError) << "a key appears twice";
}

/// Seconds of the processor, so that other programs do not count.
double seconds_of(const std::function<void()>& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

constexpr double kPatience = 20;  // seconds with sanitizers: some tenths without them, hours where time is quadratic

std::string decision_of_16_mib(engine::ToMember& message) {
  engine::PeerDecision decision;
  decision.word = 1;
  decision.cells.emplace();
  constexpr std::size_t kLayers = (16 * kMiB - 1000) / 99;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const auto value = static_cast<double>(layer);
    decision.cells->layers.push_back({{value, value / 0x1p60}, 1, value, layer, layer});
  }
  message = std::move(decision);
  const Result<std::string> text = encode_peer(message);
  EXPECT_TRUE(text) << text.error().message;
  EXPECT_GT(text->size(), 16 * kMiB - 2000);
  return *text;
}

TEST(PeerLongTexts, a_message_of_16_mib_is_read_in_reasonable_time) {
  engine::ToMember message;
  const std::string text = decision_of_16_mib(message);
  PeerReader reader;
  std::optional<Result<engine::ToMember>> read;
  const double seconds = seconds_of([&] { read = reader.to_member(text); });
  RecordProperty("seconds", std::to_string(seconds));
  ASSERT_TRUE(*read) << read->error().message;
  EXPECT_TRUE(same(**read, message));
  EXPECT_LT(seconds, kPatience);
}

constexpr std::size_t kHostileBytes = 4 * kMiB;

/// `begin`, then `item(0)`, `item(1)`, … up to 4 MiB, then `end`.
std::string filled(std::string begin, const std::function<std::string(std::size_t)>& item, const std::string& end) {
  begin.reserve(kHostileBytes);
  for (std::size_t i = 0; begin.size() < kHostileBytes; ++i) {
    begin += item(i);
  }
  return begin + end;
}

void expect_refused(const std::string& text, const std::string& words) {
  ASSERT_GE(text.size(), kHostileBytes);
  PeerReader reader;
  std::optional<Error> error;
  const double seconds = seconds_of([&] { error = reader.to_coordinator(text).error(); });
  EXPECT_NE(error->message.find(words), std::string::npos) << error->message;
  EXPECT_LT(error->message.size(), 1000U);
  EXPECT_LT(seconds, kPatience) << words;
}

TEST(PeerLongTexts, no_text_of_4_mib_takes_long_to_refuse) {
  const auto key = [](std::size_t i) { return "\"k" + std::to_string(i) + "\":0,"; };
  const auto repeat = [](const char* text) { return [text](std::size_t) { return std::string(text); }; };
  const std::string ask = opening_of("peer.ask");
  const std::string declared = opening_of("peer.join") + "{\"declared\":{";
  const std::string rows = opening_of("peer.rows");
  expect_refused(filled(ask + "{", key, "\"k\":0}}"), "is not a known field");
  expect_refused(filled(ask + "{", repeat("\"k\":0,"), "\"k\":0}}"), "twice in one object");
  expect_refused(filled(ask + "[", repeat("[],"), "[]]}"), "params is an array");
  expect_refused(filled(ask + "{\"policy_digest\":\"", repeat("aaaaaaaa"), "\"}}"), "16 lower-case hex digits");
  expect_refused(
      filled(ask + "{\"sites\":[{\"findings\":{\"absent\":[[0,1]", repeat(",[0,1]"), "]}}]}}"), "spans that ascend"
  );
  expect_refused(filled(ask + "{\"sites\":[{\"findings\":{\"missing\":[0", repeat(",0"), "]}}]}}"), "expected 0 to 64");
  expect_refused(
      filled(ask + "{\"sites\":[{\"cells\":{\"layers\":[\"\"", repeat(",\"\""), "]}}]}}"), "96 lower-case hex digits"
  );
  expect_refused(filled(declared + "\"weight_fingerprints\":[[\"\"", repeat(",\"\""), "],7]}}}"), "expected a list");
  expect_refused(filled(declared + "\"by_content\":[{\"ranks\":[[0,1]", repeat(",[4095,1]"), "]}]}}}"), "ascend");
  expect_refused(
      filled(rows + "{\"box_hashes\":[", repeat("\"0000000000000000\","), "7]}}"), "16 lower-case hex digits"
  );
}

/// The heap's own count; sanitizers have another heap, which says 0.
std::size_t bytes_in_use() {
  const struct mallinfo2 heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

TEST(PeerLongTexts, the_reader_of_a_silent_link_keeps_no_memory_of_a_long_text) {
  engine::ToMember message;
  const std::string text = decision_of_16_mib(message);
  const std::string refused = broken_text("peer.want", 200'000);
  PeerReader reader;
  ASSERT_TRUE(reader.to_member(R"({"jsonrpc":"2.0","method":"peer.beat","params":{}})"));
  const std::size_t before = bytes_in_use();
  ASSERT_TRUE(reader.to_member(text));
  EXPECT_LT(bytes_in_use(), before + kMiB / 4);
  ASSERT_FALSE(reader.to_member(refused));
  EXPECT_LT(bytes_in_use(), before + kMiB / 4);
}

}  // namespace
}  // namespace gradsync::rpc
