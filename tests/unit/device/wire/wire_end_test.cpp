// The end of a wire, in the middle of whatever it does.

#include "unit/device/wire/wire_fixture.hpp"

#include <filesystem>
#include <fstream>

namespace gradsync::device {
namespace {

constexpr std::size_t kLarge = 32u << 20;

/// How many threads of this process have that name.
std::size_t threads_named(const std::string& name) {
  std::size_t found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    found += std::getline(file, comm) && comm == name ? 1 : 0;
  }
  return found;
}

class WireEndTest : public testing::TestWithParam<SocketKind> {};

/// One message is half received and another half sent. The socket is held by another descriptor, so that bytes still
/// come when the wire is gone.
TEST_P(WireEndTest, leaves_memory_alone_in_the_middle_of_messages) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Played played = play_node(GetParam());
    const UniqueFd held{::dup(played.connection.partials.get())};
    OwnedWire wire(only(std::move(played.connection)));
    const std::vector<std::byte> sent = bytes_of(seed, kLarge);
    std::vector<std::byte> received(kLarge);
    wire->send(message_to(1, 0), sent);
    wire->receive(message_to(1, 0), received);
    const std::size_t half = 1 + seed * 100'000;
    played.node.write(write_frame(frame(0, kLarge)));
    played.node.write(std::span(sent).first(half));
    wait_until_received(wire, 0, kFrameBytes + half);
    EXPECT_LT(wire.totals().sent_bytes, kLarge);

    wire.end();
    const std::vector<std::byte> then = received;
    played.node.write(std::span(sent).subspan(half, 1'000));
    EXPECT_GT(played.node.read(kFrameBytes + 1).size(), kFrameBytes);
    EXPECT_TRUE(received == then);
    EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(half), received.begin()));
    EXPECT_EQ(received[half], std::byte{0});
  }
}

TEST_P(WireEndTest, closes_its_connections) {
  Played played = play_node(GetParam());
  OwnedWire wire(only(std::move(played.connection)));
  wire.end();
  EXPECT_TRUE(played.node.read(1).empty());
  char byte = 0;
  EXPECT_EQ(::recv(played.node.results.get(), &byte, 1, 0), 0);
}

TEST_P(WireEndTest, waits_for_no_other_node) {
  Played played = play_node(GetParam());
  OwnedWire wire(only(std::move(played.connection)));
  const std::vector<std::byte> much(kLarge);
  std::vector<std::byte> never(kLarge);
  wire->send(message_to(1, 0), much);
  wire->receive(message_to(1, 0), never);
  ASSERT_EQ(played.node.read(kFrameBytes).size(), kFrameBytes);
  wire.end();
  EXPECT_LT(played.node.read(kLarge).size(), kLarge) << "what the kernel had taken is all that comes";
}

TEST_P(WireEndTest, joins_its_thread) {
  Played played = play_node(GetParam());
  const std::size_t before = threads_named("wire");
  OwnedWire wire(only(std::move(played.connection)));
  std::vector<std::byte> byte(1);
  wire->send(message_to(1, 0), byte);
  static_cast<void>(wire.done(1));
  EXPECT_EQ(threads_named("wire"), before + 1);
  wire.end();
  EXPECT_EQ(threads_named("wire"), before);
}

TEST_P(WireEndTest, comes_behind_a_fault_too) {
  Played played = play_node(GetParam());
  OwnedWire wire(only(std::move(played.connection)));
  std::vector<std::byte> memory(100);
  wire->receive(message_to(1, 0, plan::Payload::Result), memory);
  played.node.partials.reset();
  static_cast<void>(wire.fault());
  wire.end();
  EXPECT_EQ(memory, std::vector<std::byte>(100));
}

TEST_P(WireEndTest, comes_before_anything_was_done) {
  for (int i = 0; i < 50; ++i) {
    auto [of_zero, of_one] = connect_nodes(GetParam(), 0, 1);
    OwnedWire zero(only(std::move(of_zero)));
    const OwnedWire one(only(std::move(of_one)));
    const std::vector<std::byte> bytes(100);
    zero->send(message_to(1, 0), bytes);
    zero.end();
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryKind,
    WireEndTest,
    testing::Values(SocketKind::Unix, SocketKind::Tcp),
    [](const auto& kind) { return kind.param == SocketKind::Unix ? "Unix" : "Tcp"; }
);

}  // namespace
}  // namespace gradsync::device
