// Dumps of the flight recorder as texts: what is written is read back, and what is wrong is refused by its name.

#include "rpc/wire/dump_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>

namespace gradsync::rpc {
namespace {

using ::testing::HasSubstr;

Result<DumpFile> read(const std::string& text) {
  std::istringstream in(text);
  return read_dump_file(in);
}

TimePoint at(std::int64_t us) { return TimePoint(std::chrono::microseconds(us)); }

/// Attempts, buckets and links by chance, as a recorder could have them.
engine::FlightDump random_dump(std::uint32_t seed) {
  std::mt19937 draw(seed);
  const auto below = [&draw](std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(draw);
  };
  const auto moment = [&] { return below(4) == 0 ? TimePoint{} : at(static_cast<std::int64_t>(1 + below(1U << 30))); };
  engine::FlightDump dump;
  dump.job = "llm-" + std::to_string(below(100));
  dump.uid = static_cast<std::uint32_t>(below(70'000));
  dump.world_size = 8;
  dump.node = below(2) == 0 ? "" : "node-b";
  dump.node_number = 1;
  dump.node_of_rank = {0, 0, 1, 1, 2, 2, 1, 0};
  dump.ranks = {2, 3, 6};
  dump.plan_digest = "00ff";
  dump.data_path = "arena";
  dump.plan_buckets = 3;
  dump.epoch = 1 + below(1U << 30);
  dump.attempt = below(1000);
  dump.waits_for = "rank 6";
  dump.missing = {6};
  dump.taken = at(static_cast<std::int64_t>(1 + below(1U << 30)));
  if (below(2) == 0) {
    dump.cause = make_error(ErrorCode::StepTimeout, "waited 600.0 s\nfor rank 6");
    dump.cause->ranks = {6};
  }
  for (std::uint64_t attempt = 0; attempt < 5; ++attempt) {
    engine::AttemptRecord& record = dump.attempts.emplace_back();
    record.word = engine::attempt_word({dump.epoch, attempt});
    record.step = below(3) == 0 ? -1 : static_cast<std::int64_t>(below(1U << 20));
    record.begun = at(static_cast<std::int64_t>(1 + below(1U << 30)));
    for (TimePoint* time :
         {&record.first_ask,
          &record.ask_before_last,
          &record.last_ask,
          &record.measured,
          &record.decided,
          &record.voted,
          &record.ended}) {
      *time = moment();
    }
    record.last_rank = static_cast<std::int32_t>(below(9)) - 1;
    record.asks = static_cast<std::uint32_t>(below(9));
    record.state = static_cast<engine::AttemptState>(below(3));
    record.error = ErrorCode::StepTimeout;
    record.missing = {6, 2};
    record.missing_count = static_cast<std::uint16_t>(below(3));
    for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
      engine::BucketRecord& of_bucket = dump.buckets.emplace_back();
      of_bucket.word = record.word;
      of_bucket.bucket = bucket;
      of_bucket.bytes = below(std::uint64_t{1} << 40);
      of_bucket.first_ready = moment();
      of_bucket.launched = moment();
      of_bucket.state = static_cast<engine::BucketState>(below(4));
      of_bucket.order = static_cast<std::uint32_t>(below(4));
      of_bucket.last_rank = static_cast<std::int32_t>(below(9)) - 1;
      engine::LinkRecord& link = dump.links.emplace_back();
      link.word = record.word;
      link.bucket = bucket;
      link.node = 2;
      link.sent_bytes = below(std::uint64_t{1} << 40);
      link.partials = moment();
      link.launched = link.sent = link.received = at(static_cast<std::int64_t>(below(1U << 30)));
    }
  }
  dump.first_bucket = below(1000);
  return dump;
}

const DumpOrigin kOrigin{DumpReason::Failure, "host", "0123456789abcdef", "0.1.0", 1'790'000'000'000'000};

TEST(DumpFile, is_read_as_it_was_written) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const DumpFile file = dump_file(random_dump(seed), kOrigin);
    const Result<DumpFile> back = read(dump_text(file));
    ASSERT_TRUE(back) << seed << ": " << back.error().path << ": " << back.error().message;
    EXPECT_EQ(*back, file) << seed;
  }
}

TEST(DumpFile, has_the_words_of_attempts_and_the_steps_of_buckets) {
  engine::FlightDump dump = random_dump(1);
  dump.epoch = 9;
  dump.attempts.resize(1);
  dump.attempts[0].word = engine::attempt_word({9, 0xFFFF'0000});
  dump.attempts[0].step = 77;
  dump.attempts[0].state = engine::AttemptState::Failed;
  dump.attempts[0].last_ask = TimePoint(std::chrono::nanoseconds(1'234'567'890));
  dump.buckets.resize(2);
  dump.buckets[0].word = dump.attempts[0].word;
  dump.buckets[1].word = engine::attempt_word({9, 1});
  dump.first_bucket = 500;
  const DumpFile file = dump_file(dump, kOrigin);
  EXPECT_EQ(file.attempts[0].epoch, 9U);
  EXPECT_EQ(file.attempts[0].attempt, 0xFFFF'0000U);
  EXPECT_EQ(file.attempts[0].last_ask_us, 1'234'567);
  EXPECT_EQ(file.attempts[0].error, "step_timeout");
  EXPECT_EQ(file.buckets[0].step, 77);
  EXPECT_EQ(file.buckets[0].seq, 500U);
  EXPECT_EQ(file.buckets[1].step, std::nullopt);
  EXPECT_EQ(file.buckets[1].attempt, 1U);
  EXPECT_EQ(file.buckets[1].seq, 501U);
  EXPECT_EQ(file.head.nodes.size(), 5U);
  EXPECT_EQ(file.head.nodes[3], (DumpSpan{1, 6, 1}));
}

TEST(DumpFile, has_the_name_of_the_host_where_the_job_has_none_and_lines_that_a_terminal_can_take) {
  engine::FlightDump dump = random_dump(2);
  dump.node = "";
  dump.cause = make_error(ErrorCode::StepFailed, "two\nlines \x1b[31m" + std::string(5000, 'x') + "\xC3\xA9");
  const DumpFile file = dump_file(dump, kOrigin);
  EXPECT_EQ(file.head.node, "host");
  EXPECT_EQ(file.head.cause->message.substr(0, 10), "two lines ");
  EXPECT_EQ(file.head.cause->message.size(), 4096U);
  EXPECT_TRUE(read(dump_text(file)));
}

/// A dump with one line changed, and the error that it gives.
Error refusal(std::size_t line, const std::string& from, const std::string& to) {
  engine::FlightDump dump = random_dump(3);
  dump.cause.reset();
  std::istringstream in(dump_text(dump_file(dump, kOrigin)));
  std::string text;
  std::string all;
  for (std::size_t number = 1; std::getline(in, text); ++number) {
    if (number == line) {
      const std::size_t found = text.find(from);
      EXPECT_NE(found, std::string::npos) << text;
      text.replace(found, from.size(), to);
    }
    all += text + "\n";
  }
  const Result<DumpFile> read_back = read(all);
  EXPECT_TRUE(read_back.has_error()) << from << " → " << to;
  return read_back ? Error{} : read_back.error();
}

TEST(DumpFile, is_refused_by_line_and_field) {
  const struct {
    std::size_t line;
    const char* from;
    const char* to;
    const char* path;
    const char* message;
  } kCases[] = {
      {1, "\"gradsync_blackbox\":1", "\"gradsync_blackbox\":2", "line 1: gradsync_blackbox", "2"},
      {1, "\"uid\"", "\"uidd\"", "line 1: uidd", "uid"},
      {1, "\"world_size\":8", "\"world_size\":7", "line 1: nodes", "7"},
      {1, "\"world_size\":8", "\"world_size\":2", "line 1: ranks", "rank 2, world_size is 2"},
      {1, "\"ranks\":[2,3,6]", "\"ranks\":[3,2,6]", "line 1: ranks", "ascending"},
      {1, "\"ranks\":[2,3,6]", "\"ranks\":[2,3,7]", "line 1: nodes", "ranks says otherwise"},
      {1, "\"missing\":[6]", "\"missing\":[8]", "line 1: missing", "rank 8"},
      {1, "\"waits_for\":\"rank 6\"", "\"waits_for\":\"\\u001b[2J\"", "line 1: waits_for", "no control character"},
      {1, "\"why\":\"failure\"", "\"why\":\"boredom\"", "line 1: why", "boredom"},
      {1, "{", "[", "line 1", ""},
      {2, "\"state\":", "\"statf\":", "line 2: statf", "not a known field"},
      {2, "\"begun_us\":", "\"begun_us\":-", "line 2: begun_us", "0"},
      {2, "\"record\":\"attempt\"", "\"record\":\"bucket\"", "line 2: state", "collecting"},
      {2, "\"record\":\"attempt\"", "\"record\":\"parcel\"", "line 2: record", "parcel"},
      {3, "\"attempt\":1", "\"attempt\":0", "line 3: attempt", "comes behind a later one"},
      {7, "\"bytes\":", "\"bytes\":true,\"b\":", "line 7: bytes", "true"},
      {8, "\"seq\":", "\"seq\":0.5,\"s\":", "line 8: seq", "0.5"},
      {22, "\"node\":2", "\"node\":-2", "line 22: node", "-2"},
  };

  for (const auto& [line, from, to, path, message] : kCases) {
    const Error error = refusal(line, from, to);
    EXPECT_EQ(error.path, path) << from << " → " << to << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr(message)) << to;
  }
}

TEST(DumpFile, is_refused_where_there_is_none_and_where_there_is_no_end) {
  EXPECT_THAT(read("").error().message, HasSubstr("empty"));
  EXPECT_THAT(read("\n\n").error().message, HasSubstr("empty"));
  const Result<DumpFile> endless = read(std::string(kMostDumpLine + 100, ' '));
  ASSERT_TRUE(endless.has_error());
  EXPECT_EQ(endless.error().path, "line 1");
  const DumpFile file = dump_file(random_dump(4), kOrigin);
  std::string many = dump_text({file.head, {}, {}, {}});
  const std::string bucket = to_json(file.buckets[0]) + "\n";
  for (std::size_t i = 0; i <= kMostDumpRecords; ++i) {
    many += bucket;
  }
  const Result<DumpFile> full = read(many);
  ASSERT_TRUE(full.has_error());
  EXPECT_EQ(full.error().path, "line 65538: record");
}

}  // namespace
}  // namespace gradsync::rpc
