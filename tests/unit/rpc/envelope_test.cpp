#include "rpc/envelope.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <random>
#include <set>

namespace gradsync::rpc {
namespace {

struct Read {
  Tape tape;
  Envelope envelope;
  Result<void> result;
};

/// The tape is kept, because requests point into it.
std::shared_ptr<Read> read_envelope(const std::string& text, std::size_t batch_items = 64) {
  Result<Tape> tape = read_json(text, 32);
  EXPECT_TRUE(tape) << text;
  auto kept = std::make_shared<Read>(Read{std::move(*tape), {}, {}});
  kept->result = read_envelope(kept->tape.root(), batch_items, kept->envelope);
  return kept;
}

Request request(const std::string& text) { return read_envelope(text)->envelope.requests.at(0); }

void expect_invalid(const std::string& text, std::optional<std::string> id = std::nullopt) {
  const Request broken = request(text);
  ASSERT_TRUE(broken.error) << text;
  EXPECT_EQ(broken.error->code, ErrorCode::InvalidRequest) << text;
  EXPECT_EQ(broken.id, id) << text;
  EXPECT_TRUE(broken.answered()) << text;
}

TEST(Envelope, reads_a_request) {
  const Request call = request(R"({"jsonrpc":"2.0","id":7,"method":"m","params":{}})");
  EXPECT_FALSE(call.error);
  EXPECT_EQ(call.id, "7");
  EXPECT_EQ(call.method, "m");
  EXPECT_TRUE(call.params);
}

TEST(Envelope, echoes_ids_with_value_and_type) {
  EXPECT_EQ(request(R"({"jsonrpc":"2.0","id":"7","method":"m"})").id, "\"7\"");
  EXPECT_EQ(request(R"({"jsonrpc":"2.0","id":"","method":"m"})").id, "\"\"");
  EXPECT_EQ(request(R"({"jsonrpc":"2.0","id":-3,"method":"m"})").id, "-3");
  EXPECT_EQ(request(R"({"jsonrpc":"2.0","id":"a\"\u00e9","method":"m"})").id, "\"a\\\"é\"");
  EXPECT_EQ(request(R"({"jsonrpc":"2.0","id":18446744073709551615,"method":"m"})").id, "18446744073709551615");
}

TEST(Envelope, a_request_without_id_is_a_notification) {
  const Request call = request(R"({"jsonrpc":"2.0","method":"m"})");
  EXPECT_FALSE(call.error);
  EXPECT_FALSE(call.answered());
  EXPECT_FALSE(call.params);
}

TEST(Envelope, refuses_ids_that_cannot_tell_replies_apart) {
  for (const char* id : {"null", "1.5", "1.0", "true", "{}", "[1]"}) {
    expect_invalid(std::string(R"({"jsonrpc":"2.0","method":"m","id":)") + id + "}");
  }
  expect_invalid(R"({"jsonrpc":"2.0","method":"m","id":")" + std::string(129, 'x') + "\"}");
}

TEST(Envelope, refuses_what_is_not_a_request_and_names_its_id_where_it_can) {
  for (const char* text : {"1", "\"m\"", "null", "true", "{}", R"({"method":"m"})", R"({"jsonrpc":"2.0"})"}) {
    expect_invalid(text);
  }
  expect_invalid(R"({"jsonrpc":"1.0","id":1,"method":"m"})", "1");
  expect_invalid(R"({"jsonrpc":2.0,"id":1,"method":"m"})", "1");
  expect_invalid(R"({"jsonrpc":"2.0","id":1,"method":5})", "1");
  expect_invalid(R"({"jsonrpc":"2.0","id":1,"method":"m","params":"bar"})", "1");
  expect_invalid(R"({"jsonrpc":"2.0","id":1,"method":"m","params":null})", "1");
  expect_invalid(R"({"jsonrpc":"2.0","method":"m","params":1})");
  expect_invalid(R"({"jsonrpc":"2.0","id":1,"result":{}})", "1");
}

TEST(Envelope, refuses_members_that_a_request_does_not_have) {
  const Request call = request(R"({"jsonrpc":"2.0","id":1,"method":"m","param":{}})");
  ASSERT_TRUE(call.error);
  EXPECT_EQ(call.error->hint, "did you mean \"params\"?");
}

TEST(Envelope, an_empty_or_too_long_batch_is_one_error) {
  EXPECT_FALSE(read_envelope("[]")->result);
  EXPECT_TRUE(read_envelope("[1,2,3]", 3)->result);
  const auto too_long = read_envelope("[1,2,3,4]", 3);
  ASSERT_FALSE(too_long->result);
  EXPECT_EQ(too_long->result.error().code, ErrorCode::InvalidRequest);
}

TEST(Envelope, reads_each_item_of_a_batch_by_itself) {
  const auto batch = read_envelope(R"([1, {"jsonrpc":"2.0","method":"m"}, {"jsonrpc":"2.0","id":1,"method":"m"}, []])");
  ASSERT_TRUE(batch->result);
  EXPECT_TRUE(batch->envelope.batch);
  ASSERT_EQ(batch->envelope.requests.size(), 4U);
  EXPECT_TRUE(batch->envelope.requests[0].error);
  EXPECT_FALSE(batch->envelope.requests[1].answered());
  EXPECT_FALSE(batch->envelope.requests[2].error);
  EXPECT_TRUE(batch->envelope.requests[3].error);
}

TEST(UsedIds, refuses_an_id_in_flight_however_old_it_is) {
  UsedIds ids;
  ASSERT_TRUE(ids.begin("old"));
  for (std::size_t i = 0; i < 2 * UsedIds::kRemembered; ++i) {
    ASSERT_TRUE(ids.begin(std::to_string(i)));
    ids.end(std::to_string(i));
  }
  EXPECT_FALSE(ids.begin("old"));
  ids.end("old");
  EXPECT_EQ(ids.in_flight(), 0U);
  EXPECT_TRUE(ids.begin("old"));
}

TEST(UsedIds, remembers_the_last_ids_and_no_more) {
  UsedIds ids;
  for (std::size_t i = 0; i <= UsedIds::kRemembered; ++i) {
    ASSERT_TRUE(ids.begin(std::to_string(i)));
    ids.end(std::to_string(i));
  }
  EXPECT_TRUE(ids.begin("0"));
  EXPECT_FALSE(ids.begin("2"));
  EXPECT_FALSE(ids.begin(std::to_string(UsedIds::kRemembered)));
}

/// The last ids one by one, and those in flight.
class PlainIds {
 public:
  bool begin(const std::string& id) {
    if (in_flight_.contains(id) || std::find(last_.begin(), last_.end(), id) != last_.end()) {
      return false;
    }
    in_flight_.insert(id);
    last_.push_back(id);
    if (last_.size() > UsedIds::kRemembered) {
      last_.pop_front();
    }
    return true;
  }

  void end(const std::string& id) { in_flight_.erase(id); }

 private:
  std::set<std::string> in_flight_;
  std::deque<std::string> last_;
};

/// An id as clients give them that count, in both directions and past both ends, jump, repeat themselves, or use texts.
std::string some_id(std::mt19937& random, std::int64_t& counter) {
  switch (random() % 40) {
    case 0:
      counter = static_cast<std::int64_t>(random() % 4096) - 2048;
      break;
    case 1:
      counter = std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(random() % 3);
      break;
    case 2:
      counter -= counter > -5000 ? static_cast<std::int64_t>(random() % 2048) : 0;
      break;
    case 3:
      return std::to_string(std::numeric_limits<std::uint64_t>::max() - random() % 3);
    case 4:
      return "\"" + std::to_string(random() % 64) + "\"";
    case 5:
      return std::to_string(-static_cast<std::int64_t>(random() % 3));
    default:
      break;
  }
  const std::string id = std::to_string(counter);
  counter = counter == std::numeric_limits<std::int64_t>::max() ? -1 : counter + 1;
  return id;
}

TEST(UsedIds, refuses_exactly_the_last_ones_whatever_they_are) {
  std::mt19937 random(7);
  for (const unsigned texts : {0U, 1U, 500U}) {
    UsedIds ids;
    PlainIds plain;
    std::int64_t counter = 0;
    std::vector<std::string> waiting;
    for (int call = 0; call < 20'000; ++call) {
      const std::string id = texts != 0 && random() % texts == 0 ? "\"" + std::to_string(random() % 3000) + "\""
                                                                 : some_id(random, counter);
      const bool fresh = ids.begin(id);
      ASSERT_EQ(fresh, plain.begin(id)) << id;
      if (fresh) {
        waiting.push_back(id);
      }
      while (waiting.size() > random() % 4) {
        const std::string done = waiting.front();
        waiting.erase(waiting.begin());
        ids.end(done);
        plain.end(done);
      }
    }
  }
}

TEST(UsedIds, an_integer_and_a_text_are_different_ids) {
  UsedIds ids;
  EXPECT_TRUE(ids.begin("1"));
  EXPECT_TRUE(ids.begin("\"1\""));
}

}  // namespace
}  // namespace gradsync::rpc
