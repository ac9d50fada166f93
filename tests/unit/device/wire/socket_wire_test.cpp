// Messages between two wires, over both kinds of sockets.

#include "unit/device/wire/wire_fixture.hpp"

#include <gmock/gmock.h>

#include <netinet/tcp.h>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

/// Node 0 and node 1.
class SocketWireTest : public testing::TestWithParam<SocketKind> {
 protected:
  SocketWireTest() : SocketWireTest(connect_nodes(GetParam(), 0, 1)) {}

  explicit SocketWireTest(std::pair<NodeConnection, NodeConnection> connections)
      : zero(only(std::move(connections.first))), one(only(std::move(connections.second))) {}

  OwnedWire zero;
  OwnedWire one;
};

constexpr std::size_t kBig = 64u << 20;

TEST_P(SocketWireTest, carries_a_message) {
  const std::vector<std::byte> sent = bytes_of(1, 4097);
  std::vector<std::byte> received(sent.size());
  one->receive(message_to(0, 0), received);
  zero->send(message_to(1, 0), sent);
  const std::vector<WireDone> there = one.done(1);
  const std::vector<WireDone> here = zero.done(1);
  EXPECT_EQ(there[0].message, message_to(0, 0));
  EXPECT_TRUE(there[0].received);
  EXPECT_EQ(here[0].message, message_to(1, 0));
  EXPECT_FALSE(here[0].received);
  EXPECT_EQ(received, sent);
}

TEST_P(SocketWireTest, carries_many_small_messages_both_ways_in_order) {
  constexpr std::uint32_t kMany = 3000;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> there;
  std::vector<std::vector<std::byte>> back;
  for (std::uint32_t i = 0; i < kMany; ++i) {
    sent.push_back(bytes_of(i, 1 + i % 70));
    there.emplace_back(sent.back().size());
    back.emplace_back(sent.back().size());
  }
  for (std::uint32_t i = 0; i < kMany; ++i) {
    zero->send(message_to(1, i), sent[i]);
    one->receive(message_to(0, i), there[i]);
    one->send(message_to(0, i), sent[i]);
    zero->receive(message_to(1, i), back[i]);
  }
  for (OwnedWire* wire : {&zero, &one}) {
    std::uint32_t next[2] = {0, 0};
    for (const WireDone& done : wire->done(2 * kMany)) {
      EXPECT_EQ(done.message.number, next[done.received ? 1 : 0]++);
    }
  }
  EXPECT_EQ(there, sent);
  EXPECT_EQ(back, sent);
}

TEST_P(SocketWireTest, carries_big_messages_both_ways_at_once) {
  const std::vector<std::byte> to_one = bytes_of(1, kBig);
  const std::vector<std::byte> to_zero = bytes_of(2, kBig);
  std::vector<std::byte> at_one(kBig);
  std::vector<std::byte> at_zero(kBig);
  zero->receive(message_to(1, 0), at_zero);
  one->receive(message_to(0, 0), at_one);
  zero->send(message_to(1, 0), to_one);
  one->send(message_to(0, 0), to_zero);
  static_cast<void>(zero.done(2));
  static_cast<void>(one.done(2));
  EXPECT_TRUE(at_one == to_one);
  EXPECT_TRUE(at_zero == to_zero);
}

TEST_P(SocketWireTest, keeps_a_message_until_it_is_asked_for) {
  const std::vector<std::byte> sent = bytes_of(1, kBig);
  zero->send(message_to(1, 0), sent);
  zero->send(message_to(1, 1, plan::Payload::Result), std::span(sent).first(100));
  std::vector<std::byte> result(100);
  one->receive(message_to(0, 1, plan::Payload::Result), result);
  // A result passes a partial sum that nobody receives, and that cannot be sent as a whole.
  EXPECT_EQ(one.done(1)[0].message.payload, plan::Payload::Result);
  EXPECT_EQ(zero.done(1)[0].message.payload, plan::Payload::Result);
  EXPECT_LT(one.totals().received_bytes, 1000);
  std::vector<std::byte> received(kBig);
  one->receive(message_to(0, 0), received);
  EXPECT_EQ(one.done(1)[0].message.payload, plan::Payload::Partial);
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(zero.done(1)[0].message.payload, plan::Payload::Partial);
}

TEST_P(SocketWireTest, carries_messages_without_bytes) {
  std::vector<std::byte> one_byte(1);
  const std::vector<std::byte> sent{std::byte{42}};
  one->receive(message_to(0, 0), {});
  zero->send(message_to(1, 0), {});
  zero->send(message_to(1, 1), sent);
  EXPECT_EQ(one.done(1)[0].message.number, 0U);
  one->receive(message_to(0, 1), one_byte);
  EXPECT_EQ(one.done(1)[0].message.number, 1U);
  EXPECT_EQ(one_byte, sent);
  EXPECT_EQ(zero.done(2)[1].message.number, 1U);
}

TEST_P(SocketWireTest, counts_what_went_over_both_connections_to_a_node) {
  const std::vector<std::byte> sent = bytes_of(1, 1000);
  std::vector<std::byte> received(1000);
  std::vector<std::byte> result(10);
  one->receive(message_to(0, 0), received);
  one->receive(message_to(0, 0, plan::Payload::Result), result);
  zero->send(message_to(1, 0), sent);
  zero->send(message_to(1, 0, plan::Payload::Result), std::span(sent).first(10));
  static_cast<void>(zero.done(2));
  static_cast<void>(one.done(2));
  EXPECT_EQ(zero.totals().peer, 1U);
  EXPECT_EQ(zero.totals().sent_bytes, 1010 + 2 * kFrameBytes);
  EXPECT_EQ(zero.totals().received_bytes, 0U);
  EXPECT_EQ(one.totals().received_bytes, 1010 + 2 * kFrameBytes);
  EXPECT_EQ(one.totals().sent_bytes, 0U);
}

TEST_P(SocketWireTest, knows_the_nodes_that_it_is_connected_to) {
  std::vector<std::byte> bytes(1);
  EXPECT_THROW(zero->send(message_to(2, 0), bytes), DeviceError);
  EXPECT_THROW(zero->receive(message_to(0, 0), bytes), DeviceError);
}

INSTANTIATE_TEST_SUITE_P(
    EveryKind,
    SocketWireTest,
    testing::Values(SocketKind::Unix, SocketKind::Tcp),
    [](const auto& kind) { return kind.param == SocketKind::Unix ? "Unix" : "Tcp"; }
);

/// What the wire of these connections is refused with.
std::string wire_refusal(std::vector<NodeConnection> connections) {
  try {
    static_cast<void>(make_socket_wire(std::move(connections), [] {}));
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "none";
}

TEST(SocketsOfAWire, are_connected_streams) {
  Played datagrams = play_node();
  int fds[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd other(fds[1]);
  datagrams.connection.results = UniqueFd(fds[0]);
  EXPECT_THAT(
      wire_refusal(only(std::move(datagrams.connection))), HasSubstr("results to node 1 cannot be used: it is no str")
  );

  Played unconnected = play_node();
  unconnected.connection.partials = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_THAT(
      wire_refusal(only(std::move(unconnected.connection))), HasSubstr("partial sums to node 1 cannot be used")
  );

  Played none = play_node();
  none.connection.partials.reset();
  EXPECT_THAT(wire_refusal(only(std::move(none.connection))), HasSubstr("Bad file descriptor"));
}

TEST(SocketsOfAWire, are_two_for_each_node) {
  Played first = play_node();
  Played second = play_node();
  std::vector<NodeConnection> connections = only(std::move(first.connection));
  connections.push_back(std::move(second.connection));
  EXPECT_THAT(wire_refusal(std::move(connections)), HasSubstr("node 1 has connections already"));
  EXPECT_TRUE(first.node.read(1).empty()) << "a wire that is refused closes what it was given";
}

int tcp_option(const UniqueFd& socket, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(socket.get(), level, option, &value, &size), 0);
  return value;
}

TEST(SocketsOfAWire, may_stand_still_for_as_long_as_the_other_end_answers) {
  Played played = play_node(SocketKind::Tcp);
  const UniqueFd mine{::dup(played.connection.partials.get())};
  const unsigned short_ms = 10'000;  // counts while the window is closed, so that a slow rank would end the wire
  ASSERT_EQ(::setsockopt(mine.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &short_ms, sizeof short_ms), 0);
  const OwnedWire wire(only(std::move(played.connection)));
  EXPECT_EQ(tcp_option(mine, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  EXPECT_EQ(tcp_option(mine, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(tcp_option(mine, SOL_SOCKET, SO_KEEPALIVE), 1);
  const int seconds = tcp_option(mine, IPPROTO_TCP, TCP_KEEPIDLE) +
                      tcp_option(mine, IPPROTO_TCP, TCP_KEEPINTVL) * tcp_option(mine, IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_EQ(seconds, 10);
}

}  // namespace
}  // namespace gradsync::device
