// Which data connections a job gets, by table: those that it dials, those that come, and those that are closed.

#include "app/peer/data_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::app {
namespace {

using net::DataPayload;
using testing::HasSubstr;

constexpr engine::JobNumber kJob = 3;
constexpr std::uint64_t kEpoch = 7;
constexpr TimePoint kStart{std::chrono::seconds(1000)};

struct FakeDialling final : DataDialling {
  net::LinkId dial(const std::string& address, const net::DataLinkHello& hello) override {
    dials.emplace_back(address, hello);
    return dials.size();
  }

  void drop(net::LinkId dial) override { dropped.insert(dial); }

  std::vector<std::pair<std::string, net::DataLinkHello>> dials;
  std::set<net::LinkId> dropped;
};

/// One end of a connection, and whether the other is open still.
struct Pair {
  UniqueFd given;
  UniqueFd kept;

  Pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    given = UniqueFd{ends[0]};
    kept = UniqueFd{ends[1]};
  }
};

bool is_open(const UniqueFd& kept) {
  pollfd seen{kept.get(), POLLIN, 0};
  return ::poll(&seen, 1, 0) == 0;
}

std::string incarnation_of(engine::NodeNumber node) { return std::string(15, '0') + static_cast<char>('a' + node); }

/// A daemon that is node `own` of the job, and what other nodes do to it.
class Led {
 public:
  explicit Led(engine::NodeNumber own) : own_(own), links(incarnation_of(own), dialling) {}

  std::optional<DataVerdict> want(const std::vector<engine::NodeNumber>& nodes, std::uint64_t epoch = kEpoch) {
    engine::OpenDataLinks wanted{epoch, own_, incarnation_of(own_), {}};
    for (const engine::NodeNumber node : nodes) {
      const std::string name(1, static_cast<char>('a' + node));
      wanted.ends.push_back({node, name, "10.0.0." + std::to_string(node) + ":9478", incarnation_of(node)});
    }
    return links.want(now, kJob, {1000, "job"}, std::move(wanted));
  }

  [[nodiscard]] net::DataLinkHello hello_of(engine::NodeNumber from, DataPayload payload) const {
    return {"job", 1000, kEpoch, payload, incarnation_of(from), incarnation_of(own_)};
  }

  std::optional<DataVerdict> comes(net::DataLinkHello hello) {
    Pair& pair = pairs.emplace_back();
    return links.on_arrived(now, {std::move(hello), "10.0.0.9", std::move(pair.given)});
  }

  std::optional<DataVerdict> comes(engine::NodeNumber from, DataPayload payload) {
    return comes(hello_of(from, payload));
  }

  std::optional<DataVerdict> answers(net::LinkId dial) {
    Pair& pair = pairs.emplace_back();
    return links.on_dialled(dial, std::move(pair.given));
  }

  [[nodiscard]] bool last_is_open() const { return is_open(pairs.back().kept); }

  std::vector<DataVerdict> passes(Milliseconds time) {
    now += time;
    return links.on_time(now);
  }

 private:
  engine::NodeNumber own_;

 public:
  TimePoint now = kStart;
  FakeDialling dialling;
  DataLinks links;
  std::deque<Pair> pairs;
};

engine::LinksReady ready_of(std::optional<DataVerdict> verdict) {
  if (!verdict || !std::holds_alternative<engine::LinksReady>(verdict->second)) {
    ADD_FAILURE() << "not all are there";
    return {};
  }
  EXPECT_EQ(verdict->first, kJob);
  return std::get<engine::LinksReady>(std::move(verdict->second));
}

Error failure_of(const std::vector<DataVerdict>& verdicts) {
  if (verdicts.size() != 1 || !std::holds_alternative<engine::LinksFailed>(verdicts[0].second)) {
    ADD_FAILURE() << "it has not failed";
    return {};
  }
  EXPECT_EQ(std::get<engine::LinksFailed>(verdicts[0].second).epoch, kEpoch);
  return std::get<engine::LinksFailed>(verdicts[0].second).error;
}

TEST(DataLinks, dials_the_lower_node_twice_and_says_for_what) {
  Led led(1);
  EXPECT_FALSE(led.want({0}));
  ASSERT_EQ(led.dialling.dials.size(), 2U);
  const net::DataLinkHello partials{"job", 1000, kEpoch, DataPayload::Partials, incarnation_of(1), incarnation_of(0)};
  EXPECT_EQ(led.dialling.dials[0].first, "10.0.0.0:9478");
  EXPECT_EQ(led.dialling.dials[0].second, partials);
  EXPECT_EQ(led.dialling.dials[1].second.payload, DataPayload::Results);
  EXPECT_FALSE(led.answers(2));
  const engine::LinksReady ready = ready_of(led.answers(1));
  EXPECT_EQ(ready.epoch, kEpoch);
  ASSERT_EQ(ready.connections.size(), 1U);
  EXPECT_EQ(ready.connections[0].node, 0U);
  EXPECT_TRUE(::send(led.pairs[0].kept.get(), "r", 1, 0) == 1 && ::send(led.pairs[1].kept.get(), "p", 1, 0) == 1);
  char partial = 0;
  char result = 0;
  EXPECT_EQ(::recv(ready.connections[0].partials.get(), &partial, 1, 0), 1);
  EXPECT_EQ(::recv(ready.connections[0].results.get(), &result, 1, 0), 1);
  EXPECT_EQ(partial, 'p') << "each payload has its own";
  EXPECT_EQ(result, 'r');
  EXPECT_FALSE(led.links.next_deadline());
}

TEST(DataLinks, waits_for_higher_nodes_and_dials_lower_ones) {
  constexpr engine::NodeNumber kNodes[] = {0, 2, 3};
  Led led(1);
  EXPECT_FALSE(led.want({0, 2, 3}));
  EXPECT_EQ(led.dialling.dials.size(), 2U);
  EXPECT_FALSE(led.comes(3, DataPayload::Results));
  EXPECT_FALSE(led.answers(1));
  EXPECT_FALSE(led.comes(2, DataPayload::Partials));
  EXPECT_FALSE(led.comes(3, DataPayload::Partials));
  EXPECT_FALSE(led.answers(2));
  const engine::LinksReady ready = ready_of(led.comes(2, DataPayload::Results));
  ASSERT_EQ(ready.connections.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ready.connections[i].node, kNodes[i]);
    EXPECT_TRUE(ready.connections[i].partials.valid() && ready.connections[i].results.valid());
  }
}

TEST(DataLinks, nothing_wanted_is_there_at_once) {
  Led led(1);
  EXPECT_TRUE(ready_of(led.want({})).connections.empty());
}

TEST(DataLinks, takes_what_came_before_it_was_wanted) {
  Led led(0);
  EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  EXPECT_FALSE(led.comes(1, DataPayload::Results));
  EXPECT_TRUE(led.last_is_open());
  EXPECT_EQ(ready_of(led.want({1})).connections.size(), 1U);
}

TEST(DataLinks, closes_what_nobody_wants_in_time) {
  Led led(0);
  EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  EXPECT_EQ(led.links.next_deadline(), kStart + DataLinks::kPatience);
  EXPECT_TRUE(led.passes(DataLinks::kPatience - Milliseconds{1}).empty());
  EXPECT_TRUE(led.last_is_open());
  EXPECT_TRUE(led.passes(Milliseconds{1}).empty());
  EXPECT_FALSE(led.last_is_open());
  EXPECT_FALSE(led.links.next_deadline());
}

TEST(DataLinks, closes_the_next_where_too_many_wait) {
  Led led(0);
  for (std::size_t i = 0; i < DataLinks::kMostEarly; ++i) {
    EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  }
  EXPECT_TRUE(led.last_is_open());
  EXPECT_FALSE(led.comes(1, DataPayload::Results));
  EXPECT_FALSE(led.last_is_open());
}

/// What another daemon may bring to node 1, which waits for 0 and 2, and whether it stays open.
struct Comes {
  const char* name;
  net::DataLinkHello hello;
  bool stays;
};

TEST(DataLinks, closes_what_is_of_another_life_or_of_an_epoch_that_is_over) {
  const std::string us = incarnation_of(1);
  const std::string them = incarnation_of(2);
  const Comes cases[] = {
      {"it is wanted", {"job", 1000, kEpoch, DataPayload::Results, them, us}, true},
      {"an epoch before", {"job", 1000, kEpoch - 1, DataPayload::Results, them, us}, false},
      {"an epoch to come", {"job", 1000, kEpoch + 1, DataPayload::Results, them, us}, true},
      {"an earlier life of this daemon", {"job", 1000, kEpoch, DataPayload::Results, them, "00000000000000ff"}, false},
      {"an earlier life of the other", {"job", 1000, kEpoch, DataPayload::Results, "00000000000000ff", us}, false},
      {"a node that this one dials", {"job", 1000, kEpoch, DataPayload::Results, incarnation_of(0), us}, false},
      {"another user's job", {"job", 1001, kEpoch - 1, DataPayload::Results, them, us}, true},
      {"another job", {"jobs", 1000, kEpoch - 1, DataPayload::Results, them, us}, true}};
  for (const Comes& each : cases) {
    for (const bool early : {false, true}) {
      Led led(1);
      if (!early) {
        EXPECT_FALSE(led.want({0, 2}));
      }
      EXPECT_FALSE(led.comes(each.hello));
      if (early) {
        EXPECT_FALSE(led.want({0, 2}));
      }
      EXPECT_EQ(led.last_is_open(), each.stays) << each.name << (early ? ", before it was wanted" : "");
    }
  }
}

TEST(DataLinks, a_connection_that_comes_again_takes_the_place_of_the_one_before) {
  Led led(0);
  EXPECT_FALSE(led.want({1}));
  EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  EXPECT_FALSE(is_open(led.pairs[0].kept));
  EXPECT_TRUE(led.last_is_open());
}

TEST(DataLinks, dials_again_and_names_what_it_met_last) {
  Led led(1);
  EXPECT_FALSE(led.want({0}));
  EXPECT_FALSE(led.answers(2));
  led.links.on_dial_failed(led.now, 1, "10.0.0.0: Connection refused");
  std::size_t dials = 2;
  for (const int wait_ms : {100, 200, 400, 800, 1'000, 1'000}) {
    const Milliseconds wait{wait_ms};
    EXPECT_EQ(led.links.next_deadline(), led.now + wait);
    EXPECT_TRUE(led.passes(wait - Milliseconds{1}).empty());
    EXPECT_EQ(led.dialling.dials.size(), dials);
    EXPECT_TRUE(led.passes(Milliseconds{1}).empty());
    ASSERT_EQ(led.dialling.dials.size(), ++dials);
    EXPECT_EQ(led.dialling.dials.back(), led.dialling.dials.front());
    led.links.on_dial_failed(led.now, dials, "10.0.0.0: No route to host");
  }
  const Error error = failure_of(led.passes(DataLinks::kPatience));
  EXPECT_EQ(error.code, ErrorCode::NodeRefused);
  EXPECT_EQ(error.node, "a");
  EXPECT_EQ(error.job, "job");
  EXPECT_EQ(error.message, "no data connection with node 'a' (10.0.0.0:9478): within 10 s: 10.0.0.0: No route to host");
  EXPECT_FALSE(led.last_is_open()) << "all or none";
  EXPECT_FALSE(led.links.next_deadline());
}

TEST(DataLinks, a_dial_that_gets_through_in_the_end_counts) {
  Led led(1);
  EXPECT_FALSE(led.want({0}));
  EXPECT_FALSE(led.answers(1));
  led.links.on_dial_failed(led.now, 2, "HTTP 503: it has no place for another link now");
  EXPECT_TRUE(led.passes(Milliseconds{100}).empty());
  EXPECT_EQ(ready_of(led.answers(3)).connections.size(), 1U);
}

TEST(DataLinks, names_the_first_node_that_did_not_come) {
  Led led(0);
  EXPECT_FALSE(led.want({1, 2, 3}));
  EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  EXPECT_FALSE(led.comes(1, DataPayload::Results));
  EXPECT_FALSE(led.comes(2, DataPayload::Partials));
  EXPECT_TRUE(led.passes(DataLinks::kPatience - Milliseconds{1}).empty());
  const Error error = failure_of(led.passes(Milliseconds{1}));
  EXPECT_EQ(error.node, "c");
  EXPECT_THAT(error.message, HasSubstr("node 'c' (10.0.0.2:9478) and 1 more: it opened none within 10 s"));
  for (const Pair& pair : led.pairs) {
    EXPECT_FALSE(is_open(pair.kept));
  }
  EXPECT_FALSE(led.comes(3, DataPayload::Partials)) << "it hears one word";
  EXPECT_FALSE(led.last_is_open()) << "nobody waits for that epoch any more";
}

TEST(DataLinks, an_epoch_that_is_over_leaves_nothing_open) {
  Led led(1);
  EXPECT_FALSE(led.want({0, 2}));
  EXPECT_FALSE(led.answers(1));
  EXPECT_FALSE(led.comes(2, DataPayload::Partials));
  led.links.forget(kJob);
  EXPECT_EQ(led.dialling.dropped, std::set<net::LinkId>{2});
  EXPECT_FALSE(is_open(led.pairs[0].kept));
  EXPECT_FALSE(is_open(led.pairs[1].kept));
  EXPECT_FALSE(led.answers(2)) << "it was on its way";
  EXPECT_FALSE(led.last_is_open());
  EXPECT_TRUE(led.passes(DataLinks::kPatience).empty());
  EXPECT_FALSE(led.links.next_deadline());
}

TEST(DataLinks, what_is_wanted_next_takes_the_place_of_what_was) {
  Led led(1);
  EXPECT_FALSE(led.want({0, 2}));
  EXPECT_FALSE(led.comes(2, DataPayload::Partials));
  EXPECT_FALSE(led.want({0}, kEpoch + 1));
  EXPECT_FALSE(led.last_is_open());
  EXPECT_EQ(led.dialling.dropped, (std::set<net::LinkId>{1, 2}));
  EXPECT_EQ(led.dialling.dials.size(), 4U);
  EXPECT_FALSE(led.answers(1));
  EXPECT_FALSE(led.answers(3));
  EXPECT_EQ(ready_of(led.answers(4)).epoch, kEpoch + 1);
}

TEST(DataLinks, what_is_ready_is_the_jobs) {
  Led led(0);
  EXPECT_FALSE(led.want({1}));
  EXPECT_FALSE(led.comes(1, DataPayload::Partials));
  const engine::LinksReady ready = ready_of(led.comes(1, DataPayload::Results));
  led.links.forget(kJob);
  led.links.erase(kJob);
  EXPECT_TRUE(is_open(led.pairs[0].kept) && is_open(led.pairs[1].kept));
}

TEST(DataLinks, of_two_jobs_of_a_name_the_later_one_has_it) {
  Led led(0);
  EXPECT_FALSE(led.want({1}));
  engine::OpenDataLinks later{1, 0, incarnation_of(0), {{1, "b", "10.0.0.1:9478", incarnation_of(1)}}};
  EXPECT_FALSE(led.links.want(led.now, kJob + 1, {1000, "job"}, std::move(later)));
  net::DataLinkHello hello = led.hello_of(1, DataPayload::Partials);
  hello.epoch = 1;
  EXPECT_FALSE(led.comes(hello));
  hello.payload = DataPayload::Results;
  const auto verdict = led.comes(hello);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->first, kJob + 1);
}

}  // namespace
}  // namespace gradsync::app
