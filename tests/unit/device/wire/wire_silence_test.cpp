// Connections over which nothing comes: one that the network swallows ends, one whose other node is late does not.

#include "unit/device/wire/wire_fixture.hpp"

#include <gmock/gmock.h>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::milliseconds kPace{50};  ///< between looks: ten of them are half a second
constexpr std::chrono::milliseconds kLong = 25 * kPace;

class WireSilenceTest : public testing::TestWithParam<plan::Payload> {
 protected:
  [[nodiscard]] static WireMessage message(plan::TransferNode peer, std::uint32_t number) {
    return message_to(peer, number, GetParam());
  }

  /// The end of that payload, of a connection whose other end the test plays.
  [[nodiscard]] static UniqueFd& end_of(PlayedNode& node) {
    return GetParam() == plan::Payload::Partial ? node.partials : node.results;
  }

  std::vector<std::byte> memory = std::vector<std::byte>(100);
};

/// Whether the wire has no fault for that long.
bool lives_for(OwnedWire& wire, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    if (wire->fault()) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

FrameBytes next_frame(const UniqueFd& end) {
  FrameBytes bytes{};
  std::size_t here = 0;
  ssize_t more = 1;
  while (here < kFrameBytes && (more = ::recv(end.get(), bytes.data() + here, kFrameBytes - here, 0)) > 0) {
    here += static_cast<std::size_t>(more);
  }
  EXPECT_EQ(here, kFrameBytes);
  return bytes;
}

TEST_P(WireSilenceTest, of_a_connection_that_is_swallowed_ends_the_wire_and_names_what_was_waited_for) {
  Played played = play_node();
  OwnedWire wire(only(std::move(played.connection)), kPace);
  wire->receive(message(1, 4), memory);
  const WireFault fault = wire.fault();
  EXPECT_EQ(fault.peer, plan::TransferNode{1});
  EXPECT_THAT(fault.message, AllOf(HasSubstr("no byte came over the connection of "), HasSubstr("4 of bucket 2 of")));
}

TEST_P(WireSilenceTest, in_the_middle_of_a_message_ends_the_wire_and_says_how_far_it_was) {
  Played played = play_node();
  OwnedWire wire(only(std::move(played.connection)), kPace);
  wire->receive(message(1, 0), memory);
  const FrameBytes before = write_frame(frame_of(message(1, 0), memory.size()));
  ASSERT_EQ(::send(end_of(played.node).get(), before.data(), before.size(), 0), ssize_t{kFrameBytes});
  const std::vector<std::byte> part(60);
  ASSERT_EQ(::send(end_of(played.node).get(), part.data(), part.size(), 0), 60);
  EXPECT_THAT(wire.fault().message, HasSubstr("after 60 bytes of"));
}

TEST_P(WireSilenceTest, is_none_while_the_other_end_answers_that_it_is_there) {
  Played played = play_node();
  OwnedWire wire(only(std::move(played.connection)), kPace);
  wire->receive(message(1, 0), memory);
  const FrameBytes here = write_signal(WireSignal::Here);
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_EQ(next_frame(end_of(played.node)), write_signal(WireSignal::AreYouThere));
    ASSERT_EQ(::send(end_of(played.node).get(), here.data(), here.size(), 0), ssize_t{kFrameBytes});
  }
  EXPECT_FALSE(wire->fault());
}

/// The node that is late has asked for nothing; what the other one sends fits into the socket, or does not.
TEST_P(WireSilenceTest, is_none_while_the_ranks_of_the_other_node_are_late) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{8} << 20}) {
    auto [of_zero, of_one] = connect_nodes(SocketKind::Tcp, 0, 1);
    OwnedWire zero(only(std::move(of_zero)), kPace);
    OwnedWire one(only(std::move(of_one)), kPace);
    const std::vector<std::byte> sent = bytes_of(1, bytes);
    std::vector<std::byte> there(bytes);
    if (bytes > 0) {
      zero->send(message(1, 0), sent);
    }
    zero->receive(message(1, 7), memory);
    EXPECT_TRUE(lives_for(zero, kLong)) << bytes << ": " << zero->fault()->message;
    EXPECT_TRUE(lives_for(one, kPace)) << bytes;

    const std::vector<std::byte> late = bytes_of(2, memory.size());
    if (bytes > 0) {
      one->receive(message(0, 0), there);
    }
    one->send(message(0, 7), late);
    EXPECT_EQ(zero.done(bytes > 0 ? 2 : 1).size(), bytes > 0 ? 2U : 1U);
    EXPECT_EQ(memory, late);
    EXPECT_EQ(one.done(bytes > 0 ? 2 : 1).size(), bytes > 0 ? 2U : 1U);
    EXPECT_TRUE(there == sent);
  }
}

TEST_P(WireSilenceTest, is_nothing_to_an_end_that_waits_for_nothing) {
  const std::vector<std::byte> much(8U << 20);  // the wire reads it for as long as it is there
  Played played = play_node();
  OwnedWire wire(only(std::move(played.connection)), kPace);
  wire->send(message(1, 0), much);  // the other end does not read
  EXPECT_TRUE(lives_for(wire, kLong));
}

INSTANTIATE_TEST_SUITE_P(
    EveryPayload,
    WireSilenceTest,
    testing::Values(plan::Payload::Partial, plan::Payload::Result),
    [](const auto& kind) { return kind.param == plan::Payload::Partial ? "Partial" : "Result"; }
);

}  // namespace
}  // namespace gradsync::device
