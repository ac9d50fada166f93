// What ends a wire: bytes of a stranger, a name or size that was not expected, connections that end. The test plays the
// other node.

#include "unit/device/wire/wire_fixture.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <thread>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::byte kUntouched{0xab};

std::uint16_t port_of(const UniqueFd& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

class WireFaultTest : public testing::TestWithParam<SocketKind> {
 protected:
  WireFaultTest() : WireFaultTest(play_node(GetParam())) {}

  explicit WireFaultTest(Played played) : node(std::move(played.node)), wire(only(std::move(played.connection))) {}

  void expect_untouched() const {
    EXPECT_THAT(memory, testing::Each(kUntouched)) << "bytes were written that nobody had asked for";
  }

  std::vector<std::byte> memory = std::vector<std::byte>(100, kUntouched);
  PlayedNode node;
  OwnedWire wire;
};

TEST_P(WireFaultTest, bytes_of_a_stranger) {
  wire->receive(message_to(1, 0), memory);
  node.write("GET / HTTP/1.1\r\nHost: node0:9478\r\nUser-Agent: curl/7.88.1\r\n\r\n");
  const WireFault fault = wire.fault();
  EXPECT_EQ(fault.peer, plan::TransferNode{1});
  EXPECT_THAT(fault.message, HasSubstr("on the connection of partial sums \"GET \" came where"));
  expect_untouched();
}

TEST_P(WireFaultTest, bytes_of_a_stranger_where_nothing_is_expected) {
  node.write("GET / HTTP/1.1\r\nHost: node0:9478\r\nUser-Agent: curl/7.88.1\r\n\r\n");
  EXPECT_THAT(wire.fault().message, HasSubstr("\"GET \" came where"));
}

TEST_P(WireFaultTest, a_payload_of_the_other_connection) {
  const WireMessage result = message_to(1, 0, plan::Payload::Result);
  node.write(write_frame(frame_of(result, 100)));
  EXPECT_THAT(
      wire.fault().message, HasSubstr("on the connection of partial sums came result 0 of bucket 2 of attempt 7 (100 b")
  );
}

/// Another attempt, bucket, number, size: one less and one more.
TEST_P(WireFaultTest, another_name_or_size) {
  const WireFrame expected = frame(5, 100);
  for (int what = 0; what < 8 && !HasFailure(); ++what) {
    Played played = play_node(GetParam());
    OwnedWire other(only(std::move(played.connection)));
    other->receive(message_to(1, 5), memory);
    WireFrame came = expected;
    const std::uint32_t by = what % 2 == 0 ? 1 : ~0U;
    came.tag += what / 2 == 0 ? std::uint64_t{by} : 0;
    came.bucket += what / 2 == 1 ? by : 0;
    came.number += what / 2 == 2 ? by : 0;
    came.bytes = what / 2 == 3 ? 100 + (what % 2 == 0 ? 1 : -1) : 100;
    played.node.write(write_frame(came));
    played.node.write(bytes_of(1, 60));
    EXPECT_THAT(
        other.fault().message, StartsWith(words_of(came) + " came where " + words_of(expected) + " was expected")
    );
    expect_untouched();
  }
}

TEST_P(WireFaultTest, a_name_that_is_not_expected_once_it_is_asked_for) {
  node.write(write_frame(frame(1, 100)));
  wire->receive(message_to(1, 0), memory);
  EXPECT_THAT(wire.fault().message, AllOf(HasSubstr("partial sum 1 of"), HasSubstr("where partial sum 0 of")));
}

TEST_P(WireFaultTest, the_order_of_the_receives_is_that_of_the_sends) {
  std::vector<std::byte> second(10);
  wire->receive(message_to(1, 1), second);
  wire->receive(message_to(1, 0), memory);
  node.write(write_frame(frame(0, 100)));
  EXPECT_THAT(wire.fault().message, HasSubstr("partial sum 1 of bucket 2 of attempt 7 (10 bytes) was expected"));
}

TEST_P(WireFaultTest, a_connection_that_is_closed_where_nothing_is_expected) {
  node.partials.reset();
  const WireFault fault = wire.fault();
  EXPECT_EQ(fault.peer, plan::TransferNode{1});
  EXPECT_THAT(
      fault.message, StartsWith("the other node closed the connection of partial sums, where nothing was expected")
  );
}

TEST_P(WireFaultTest, a_connection_of_results_that_is_closed) {
  node.results.reset();
  EXPECT_THAT(wire.fault().message, HasSubstr("the connection of results"));
}

TEST_P(WireFaultTest, a_connection_that_is_closed_before_a_message) {
  wire->receive(message_to(1, 3), memory);
  wire->receive(message_to(1, 4), memory);
  node.write(write_frame(frame(3, 100)));
  node.write(bytes_of(1, 100));
  node.partials.reset();
  EXPECT_EQ(wire.done(1)[0].message.number, 3U);
  EXPECT_THAT(
      wire.fault().message,
      StartsWith(
          "the other node closed the connection of partial sums, where partial sum 4 of bucket 2 of attempt 7 (100 "
          "bytes) was expected"
      )
  );
}

TEST_P(WireFaultTest, a_connection_that_is_closed_in_a_frame) {
  node.write(std::span<const std::byte>(write_frame(frame(0, 100))).first(39));
  node.partials.reset();
  EXPECT_THAT(wire.fault().message, HasSubstr("partial sums, after 39 of the 40 bytes before a message"));
}

TEST_P(WireFaultTest, a_connection_that_is_closed_in_a_message) {
  wire->receive(message_to(1, 0), memory);
  node.write(write_frame(frame(0, 100)));
  node.write(bytes_of(1, 60));
  node.partials.reset();
  EXPECT_THAT(
      wire.fault().message, HasSubstr(", after 60 bytes of partial sum 0 of bucket 2 of attempt 7 (100 bytes)")
  );
}

TEST_P(WireFaultTest, a_connection_that_is_closed_while_a_message_is_sent) {
  const std::vector<std::byte> much(16u << 20);
  wire->send(message_to(1, 0), much);
  ASSERT_EQ(node.read(1000).size(), 1000U);
  ::shutdown(node.partials.get(), SHUT_RD);
  node.partials.reset();
  const std::string message = wire.fault().message;
  EXPECT_THAT(message, HasSubstr("the connection of partial sums"));
}

/// Node 2 is in the middle of a message when node 1 turns out to be a stranger, and goes on. Its connection is held by
/// another descriptor, too, which tells what is not read.
TEST_P(WireFaultTest, is_final) {
  auto [mine, theirs] = connect_nodes(GetParam(), 0, 2);
  const UniqueFd held{::dup(mine.partials.get())};
  const PlayedNode two{std::move(theirs.partials), std::move(theirs.results)};
  Played one = play_node(GetParam());
  std::vector<NodeConnection> connections = only(std::move(one.connection));
  connections.push_back(std::move(mine));
  OwnedWire both(std::move(connections));
  both->receive(message_to(2, 0), memory);
  two.write(write_frame(frame(0, 100)));
  two.write(bytes_of(1, 50));
  wait_until_received(both, 1, kFrameBytes + 50);
  one.node.write(bytes_of(1, 40));
  ASSERT_EQ(both.fault().peer, plan::TransferNode{1});

  two.write(bytes_of(1, 50));
  const std::vector<std::byte> sent(100);
  both->send(message_to(2, 0), sent);
  both->receive(message_to(2, 1), memory);
  for (int i = 0; i < 300; ++i) {
    std::this_thread::yield();
    int unread = 0;
    ASSERT_EQ(::ioctl(held.get(), FIONREAD, &unread), 0);
    ASSERT_EQ(unread, 50);
  }
  std::vector<WireDone> done;
  both->take_done(done);
  EXPECT_TRUE(done.empty());
  both.end();
  EXPECT_THAT(std::span(memory).subspan(50), testing::Each(kUntouched));
  EXPECT_EQ(::shutdown(held.get(), SHUT_RDWR), 0);
  EXPECT_TRUE(two.read(1).empty());
}

TEST_P(WireFaultTest, closes_nothing_until_the_wire_ends) {
  node.write(bytes_of(1, 40));
  static_cast<void>(wire.fault());
  char byte = 0;
  EXPECT_EQ(::recv(node.results.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  wire.end();
  EXPECT_EQ(::recv(node.results.get(), &byte, 1, 0), 0);
}

TEST_P(WireFaultTest, the_first_one_counts) {
  node.write(bytes_of(1, 40));
  const std::string first = wire.fault().message;
  node.results.reset();
  node.partials.reset();
  EXPECT_EQ(wire.fault().message, first);
}

TEST_P(WireFaultTest, what_was_done_before_is_given_out) {
  wire->receive(message_to(1, 0), memory);
  node.write(write_frame(frame(0, 100)));
  node.write(bytes_of(1, 100));
  node.write(bytes_of(2, 40));
  static_cast<void>(wire.fault());
  std::vector<WireDone> done;
  wire->take_done(done);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].message, message_to(1, 0));
  EXPECT_EQ(memory, bytes_of(1, 100));
}

INSTANTIATE_TEST_SUITE_P(
    EveryKind,
    WireFaultTest,
    testing::Values(SocketKind::Unix, SocketKind::Tcp),
    [](const auto& kind) { return kind.param == SocketKind::Unix ? "Unix" : "Tcp"; }
);

TEST(WireFault, names_both_ends_of_the_connection) {
  Played played = play_node(SocketKind::Tcp);
  const std::uint16_t here = port_of(played.connection.partials);
  const std::uint16_t there = port_of(played.node.partials);
  OwnedWire wire(only(std::move(played.connection)));
  played.node.partials.reset();
  EXPECT_THAT(wire.fault().message, EndsWith(fmt::format(" (127.0.0.1:{} to 127.0.0.1:{})", here, there)));
}

TEST(WireFault, a_connection_that_is_reset) {
  Played played = play_node(SocketKind::Tcp);
  OwnedWire wire(only(std::move(played.connection)));
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(played.node.partials.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  played.node.partials.reset();
  EXPECT_THAT(wire.fault().message, HasSubstr("the connection of partial sums broke: Connection reset by peer"));
}

TEST(WireBytes, come_in_any_pieces) {
  Played played = play_node();
  OwnedWire wire(only(std::move(played.connection)));
  std::vector<std::vector<std::byte>> memory(20, std::vector<std::byte>(30));
  std::vector<std::byte> stream;
  for (std::uint32_t i = 0; i < memory.size(); ++i) {
    wire->receive(message_to(1, i), memory[i]);
    const FrameBytes before = write_frame(frame(i, 30));
    const std::vector<std::byte> bytes = bytes_of(i, 30);
    stream.insert(stream.end(), before.begin(), before.end());
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  std::mt19937 random{1};  // NOLINT(bugprone-random-generator-seed)
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t count = std::min<std::size_t>(1 + random() % 90, stream.size() - at);
    played.node.write(std::span<const std::byte>(stream).subspan(at, count));
    at += count;
  }
  EXPECT_EQ(wire.done(memory.size()).size(), memory.size());
  for (std::uint32_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(memory[i], bytes_of(i, 30));
  }
}

TEST(WireBytes, stay_in_the_connection_until_somebody_asks_for_them) {
  Played played = play_node();
  OwnedWire wire(only(std::move(played.connection)));
  const int empty = played.node.unread();
  played.node.write(write_frame(frame(0, 100)));
  played.node.write(bytes_of(1, 100));
  // The wire has seen what was written before this result, or does by the time it has read the frame.
  std::vector<std::byte> result(1);
  const PlayedNode results{UniqueFd(::dup(played.node.results.get())), {}};
  wire->receive(message_to(1, 0, plan::Payload::Result), result);
  results.write(write_frame(frame_of(message_to(1, 0, plan::Payload::Result), 1)));
  results.write(bytes_of(1, 1));
  ASSERT_EQ(wire.done(1).size(), 1U);
  EXPECT_GT(played.node.unread(), empty);
  std::vector<std::byte> memory(100);
  wire->receive(message_to(1, 0), memory);
  ASSERT_EQ(wire.done(1).size(), 1U);
  EXPECT_EQ(memory, bytes_of(1, 100));
  EXPECT_EQ(played.node.unread(), empty);
}

}  // namespace
}  // namespace gradsync::device
