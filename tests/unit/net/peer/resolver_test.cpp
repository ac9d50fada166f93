#include "net/peer/resolver.hpp"

#include "net/socket/peer.hpp"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <latch>

namespace gradsync::net {
namespace {

/// Runs handlers of the io context until there are so many answers.
void run_until(boost::asio::io_context& io, const std::vector<std::string>& answers, std::size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  io.restart();  // it stops itself each time it has no work
  const auto work = boost::asio::make_work_guard(io);
  while (answers.size() < count && std::chrono::steady_clock::now() < deadline) {
    io.run_one_for(std::chrono::seconds(1));
  }
}

class ResolverTest : public testing::Test {
 protected:
  [[nodiscard]] Resolver::Done noting() {
    return [this](const Resolved& resolved) { answers.push_back(resolved.why); };
  }

  boost::asio::io_context io{1};
  std::vector<std::string> answers;
};

TEST_F(ResolverTest, answers_in_the_order_asked_on_the_thread_of_the_io_context) {
  Resolver resolver{io, [](const std::string& host, std::uint16_t port) {
                      return Resolved{{}, host + " " + std::to_string(port)};
                    }};
  for (std::uint16_t port = 1; port <= 3; ++port) {
    static_cast<void>(resolver.resolve("node", port, noting()));
  }
  EXPECT_TRUE(answers.empty());
  run_until(io, answers, 3);
  EXPECT_EQ(answers, (std::vector<std::string>{"node 1", "node 2", "node 3"}));
}

TEST_F(ResolverTest, forgets_a_query_that_waits_and_one_that_is_under_way) {
  std::promise<void> began;
  std::latch goes_on{1};
  std::vector<std::string> looked_up;
  Resolver resolver{io, [&](const std::string& host, std::uint16_t) {
                      looked_up.push_back(host);
                      if (host == "under way") {
                        began.set_value();
                        goes_on.wait();
                      }
                      return Resolved{{}, host};
                    }};
  const Resolver::Query under_way = resolver.resolve("under way", 1, noting());
  const Resolver::Query waits = resolver.resolve("waits", 1, noting());
  began.get_future().wait();
  resolver.forget(under_way);
  resolver.forget(waits);
  static_cast<void>(resolver.resolve("wanted", 1, noting()));
  goes_on.count_down();
  run_until(io, answers, 1);
  EXPECT_EQ(answers, std::vector<std::string>{"wanted"});
  resolver.stop();
  EXPECT_EQ(looked_up, (std::vector<std::string>{"under way", "wanted"}));
}

TEST_F(ResolverTest, answers_a_later_query_by_the_lookup_that_is_under_way) {
  std::promise<void> began;
  std::latch goes_on{1};
  std::vector<std::string> looked_up;
  Resolver resolver{io, [&](const std::string& host, std::uint16_t port) {
                      looked_up.push_back(host);
                      if (looked_up.size() == 1) {
                        began.set_value();
                        goes_on.wait();
                      }
                      return Resolved{{}, host + " " + std::to_string(port)};
                    }};
  const Resolver::Query gives_up = resolver.resolve("slow", 1, noting());
  began.get_future().wait();
  resolver.forget(gives_up);
  for (const std::uint16_t port : std::initializer_list<std::uint16_t>{1, 2, 1}) {
    static_cast<void>(resolver.resolve("slow", port, noting()));
  }
  goes_on.count_down();
  run_until(io, answers, 3);
  EXPECT_EQ(answers, (std::vector<std::string>{"slow 1", "slow 1", "slow 2"}));
  static_cast<void>(resolver.resolve("slow", 1, noting()));
  run_until(io, answers, 4);
  EXPECT_EQ(answers.size(), 4u);
  resolver.stop();
  EXPECT_EQ(looked_up.size(), 3u) << "and anew for a query that comes behind the answer";
}

TEST_F(ResolverTest, ends_beside_a_lookup_that_hangs) {
  std::promise<void> began;
  std::promise<void> goes_on;
  const std::shared_future<void> told = goes_on.get_future().share();
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> after = ended->get_future();
  {
    Resolver resolver{io, [&began, told, ended](const std::string&, std::uint16_t) {
                        began.set_value();
                        told.wait();
                        ended->set_value();
                        return Resolved{{}, "late"};
                      }};
    static_cast<void>(resolver.resolve("hangs", 1, noting()));
    began.get_future().wait();
  }
  goes_on.set_value();
  after.wait();
  io.poll();
  EXPECT_TRUE(answers.empty());
}

TEST_F(ResolverTest, that_was_never_asked_has_no_thread) {
  Resolver resolver{io, [](const std::string&, std::uint16_t) { return Resolved{}; }};
  resolver.stop();
  resolver.stop();
}

TEST(NumericAddressOf, a_host_is_known_without_a_lookup) {
  const auto ipv4 = numeric_address("10.1.2.3", 9478);
  ASSERT_TRUE(ipv4.has_value());
  EXPECT_EQ(address_text(ipv4->storage), "10.1.2.3");
  const auto ipv6 = numeric_address("fd00::1", 9478);
  ASSERT_TRUE(ipv6.has_value());
  EXPECT_EQ(address_text(ipv6->storage), "fd00::1");
  for (const char* name : {"localhost", "node0", "", "10.1.2.3.4", "256.1.1.1", "::g"}) {
    EXPECT_FALSE(numeric_address(name, 9478).has_value()) << name;
  }
}

TEST(AddressText, of_ipv4_is_the_same_also_where_a_socket_of_ipv6_took_it) {
  const auto mapped = numeric_address("::ffff:10.1.2.3", 9478);
  ASSERT_TRUE(mapped.has_value());
  EXPECT_EQ(address_text(mapped->storage), "10.1.2.3");
  EXPECT_EQ(address_text(sockaddr_storage{}), "");
}

TEST(NameLookupOfTheSystem, finds_this_host_and_says_why_it_finds_none) {
  const Resolved here = look_up_name("localhost", 9478);
  ASSERT_FALSE(here.addresses.empty()) << here.why;
  EXPECT_TRUE(here.why.empty());
  EXPECT_LE(here.addresses.size(), Resolver::kMostAddresses);
  const Resolved none = look_up_name(std::string(64, 'n'), 9478);
  EXPECT_TRUE(none.addresses.empty());
  EXPECT_NE(none.why.find("has no address: "), std::string::npos) << none.why;
}

}  // namespace
}  // namespace gradsync::net
