#include "net/limits/repeated_line.hpp"

#include "net/limits/limited_log.hpp"
#include "net/socket/asio_types.hpp"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

namespace gradsync::net {
namespace {

class RepeatedLines : public testing::Test {
 protected:
  TimePoint now = TimePoint{} + std::chrono::seconds(100);
  RepeatedLine line;
};

TEST_F(RepeatedLines, are_written_once_in_a_while_with_the_number_of_those_left_out) {
  EXPECT_EQ(line.say("refused a", now), "refused a");
  EXPECT_EQ(line.due(), std::nullopt);
  EXPECT_EQ(line.say("refused b", now), std::nullopt);
  now += RepeatedLine::kEvery - std::chrono::nanoseconds(1);
  EXPECT_EQ(line.say("refused c", now), std::nullopt);
  now += std::chrono::nanoseconds(1);
  EXPECT_EQ(line.say("refused d", now), "refused d (and 2 more since the last such line)");
  now += RepeatedLine::kEvery;
  EXPECT_EQ(line.say("refused e", now), "refused e");
}

TEST_F(RepeatedLines, are_counted_to_the_last_when_a_flood_ends) {
  const TimePoint first = now;
  static_cast<void>(line.say("refused a", now));
  static_cast<void>(line.say("refused b", now));
  static_cast<void>(line.say("refused c", now));
  ASSERT_EQ(line.due(), first + RepeatedLine::kEvery);
  now = *line.due();
  EXPECT_EQ(line.rest(now), "refused c (2 such lines since the last one)");
  EXPECT_EQ(line.due(), std::nullopt);
  EXPECT_EQ(line.say("refused d", now), std::nullopt) << "the count was a line, too";
}

TEST_F(RepeatedLines, at_the_beginning_of_the_clock_are_limited_as_well) {
  EXPECT_EQ(line.say("a", TimePoint{}), "a");
  EXPECT_EQ(line.say("b", TimePoint{}), std::nullopt);
}

TEST(LimitedLogs, write_what_was_left_out_when_the_daemon_ends) {
  std::ostringstream written;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_st>(written))
  );
  asio::io_context io;
  const auto log = std::make_shared<LimitedLog>(io.get_executor());
  for (int i = 0; i < 4; ++i) {
    log->write(LimitedLog::Kind::SlowReader, spdlog::level::warn, "does not read");
    log->write(LimitedLog::Kind::NotEnded, spdlog::level::warn, "began a message");
  }
  log->stop();
  io.run();
  spdlog::set_default_logger(before);
  const auto lines_with = [text = written.str()](const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(lines_with("does not read"), 2u) << written.str();
  EXPECT_EQ(lines_with("began a message"), 2u);
  EXPECT_EQ(lines_with("(3 such lines since the last one)"), 2u);
}

}  // namespace
}  // namespace gradsync::net
