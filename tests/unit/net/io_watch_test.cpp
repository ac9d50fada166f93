#include "net/limits/io_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>
#include <sstream>

namespace gradsync::net {
namespace {

using testing::HasSubstr;
using testing::Not;

void compute(Milliseconds for_time) {
  const auto used = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const auto end = used() + for_time;
  while (used() < end) {
  }
}

class IoWatchTest : public testing::Test {
 protected:
  IoWatchTest() {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  }

  ~IoWatchTest() override { spdlog::set_default_logger(before_); }

  [[nodiscard]] std::string metrics() const { return prometheus::TextSerializer{}.Serialize(registry_.Collect()); }

  [[nodiscard]] long logged() const {
    const std::string text = lines_.str();
    return std::count(text.begin(), text.end(), '\n');
  }

  static constexpr Milliseconds kTooLong = IoWatch::kLongTurn + Milliseconds{10};

  prometheus::Registry registry_;
  IoWatch watch_{registry_};
  std::ostringstream lines_;

 private:
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(IoWatchTest, counts_a_turn_once_with_those_inside_of_it) {
  {
    const IoWatch::Turn outer{watch_, "a page"};
    const IoWatch::Turn inner{watch_, "a message"};
  }
  { const IoWatch::Turn next{watch_, "a page"}; }
  EXPECT_THAT(metrics(), HasSubstr("gradsync_io_turn_seconds_count 2"));
  EXPECT_THAT(metrics(), HasSubstr("gradsync_io_long_turns_total{why=\"computed\"} 0"));
}

TEST_F(IoWatchTest, tells_a_turn_that_computed_too_long_and_the_method_that_did) {
  {
    const IoWatch::Turn turn{watch_, "a message", R"({"jsonrpc": "2.0", "id": 1, "method" : "job.detach"})"};
    compute(kTooLong);
  }
  EXPECT_THAT(metrics(), HasSubstr("gradsync_io_long_turns_total{why=\"computed\"} 1"));
  EXPECT_THAT(metrics(), HasSubstr("gradsync_io_long_turns_total{why=\"held_up\"} 0"));
  EXPECT_THAT(lines_.str(), HasSubstr("a message job.detach, 52 bytes"));
}

TEST_F(IoWatchTest, writes_one_line_a_minute) {
  for (int i = 0; i < 2; ++i) {
    const IoWatch::Turn turn{watch_, "a plan"};
    compute(kTooLong);
  }
  EXPECT_THAT(metrics(), HasSubstr("gradsync_io_long_turns_total{why=\"computed\"} 2"));
  EXPECT_EQ(logged(), 1);
}

TEST_F(IoWatchTest, shows_nothing_of_a_text_but_what_a_method_is_named_with) {
  for (const char* text : {"{\"method\":\"evil\\u000a\x1b[31m\"}", "\"method\"", "\"method\":\"", "\x1b[31m"}) {
    IoWatch watch{registry_};
    const IoWatch::Turn turn{watch, "a message", text};
    compute(kTooLong);
  }
  EXPECT_THAT(lines_.str(), HasSubstr("a message evil, "));
  EXPECT_THAT(lines_.str(), HasSubstr("a message of no known method, "));
  EXPECT_THAT(lines_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(IoWatchTest, ends_the_process_where_a_test_asked_for_it) {
  watch_.abort_above(IoWatch::kLongTurn);
  EXPECT_DEATH(
      {
        const IoWatch::Turn turn(watch_, "a plan");
        compute(kTooLong);
      },
      "computed for .* ms in 'a plan', the limit is 50 ms"
  );
}

TEST_F(IoWatchTest, a_limit_below_what_is_a_long_turn_is_one_as_well) {
  watch_.abort_above(Milliseconds{1});
  EXPECT_DEATH(
      {
        const IoWatch::Turn turn(watch_, "a plan");
        compute(Milliseconds{5});
      },
      "computed for .* ms in 'a plan', the limit is 1 ms"
  );
}

}  // namespace
}  // namespace gradsync::net
