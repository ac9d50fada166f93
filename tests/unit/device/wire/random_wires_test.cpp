// Two to eight nodes that send each other random messages. Both ends of each connection know the sequence, as both ends
// of a transfer program do; when a node asks for the next one, and when it sends, is random.

#include "unit/device/wire/wire_fixture.hpp"

#include <map>
#include <set>
#include <tuple>

namespace gradsync::device {
namespace {

/// Sender, receiver, payload.
using Sequence = std::tuple<plan::TransferNode, plan::TransferNode, plan::Payload>;

struct Planned {
  WireMessage message;  ///< its peer is the other end, from either side
  std::size_t bytes = 0;
};

/// A node, and where it is in each of its sequences.
struct WiredNode {
  struct Place {
    const std::vector<Planned>* planned = nullptr;
    std::size_t begun = 0;
    std::size_t done = 0;
    std::vector<std::vector<std::byte>> memory;
  };

  std::unique_ptr<OwnedWire> wire;
  std::map<std::pair<plan::TransferNode, plan::Payload>, Place> sends;
  std::map<std::pair<plan::TransferNode, plan::Payload>, Place> receives;
};

class RandomWires {
 public:
  RandomWires(std::size_t nodes, std::uint64_t seed) : random_(seed), nodes_(nodes) {
    const auto count = static_cast<plan::TransferNode>(nodes_.size());
    std::vector<std::vector<NodeConnection>> connections(count);
    for (plan::TransferNode one = 0; one < count; ++one) {
      for (plan::TransferNode other = one + 1; other < count; ++other) {
        auto [mine, theirs] = connect_nodes(below(4) == 0 ? SocketKind::Tcp : SocketKind::Unix, one, other);
        connections[one].push_back(std::move(mine));
        connections[other].push_back(std::move(theirs));
        for (const plan::Payload payload : {plan::Payload::Partial, plan::Payload::Result}) {
          plan_sequence(one, other, payload);
          plan_sequence(other, one, payload);
        }
      }
    }
    for (plan::TransferNode node = 0; node < count; ++node) {
      nodes_[node].wire = std::make_unique<OwnedWire>(std::move(connections[node]));
    }
  }

  void run() {
    std::size_t open = 1;
    while (open > 0 && !testing::Test::HasFailure()) {
      open = 0;
      for (plan::TransferNode node = 0; node < nodes_.size(); ++node) {
        open += step(node);
      }
    }
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  void plan_sequence(plan::TransferNode sender, plan::TransferNode receiver, plan::Payload payload) {
    std::vector<Planned>& planned = planned_[{sender, receiver, payload}];
    for (std::uint64_t left = below(30); left > 0; --left) {
      const std::size_t bytes = below(4) == 0 ? below(200'000) : below(200);
      const Tag tag = planned.empty() ? below(5) : planned.back().message.tag + below(2);
      planned.push_back(
          {{0, payload, tag, static_cast<std::uint32_t>(below(9)), static_cast<std::uint32_t>(below(99))}, bytes}
      );
    }
    nodes_[sender].sends[{receiver, payload}].planned = &planned;
    nodes_[receiver].receives[{sender, payload}].planned = &planned;
  }

  static std::uint64_t seed_of(plan::TransferNode sender, const Planned& planned, std::size_t place) {
    return sender * 7919 + planned.bytes * 31 + place;
  }

  /// Begins some messages and takes what is done. Returns how many are not done.
  std::size_t step(plan::TransferNode node) {
    WiredNode& own = nodes_[node];
    for (auto& [key, place] : own.sends) {
      for (std::uint64_t more = below(4); more > 0 && place.begun < place.planned->size(); --more) {
        begin_send(node, key.first, place);
      }
    }
    for (auto& [key, place] : own.receives) {
      for (std::uint64_t more = below(3); more > 0 && place.begun < place.planned->size(); --more) {
        begin_receive(node, key.first, place);
      }
    }
    std::vector<WireDone> done;
    (*own.wire)->take_done(done);
    for (const WireDone& one : done) {
      check(own, one);
    }
    const std::optional<WireFault> fault = (*own.wire)->fault();
    EXPECT_FALSE(fault.has_value()) << fault->message;
    return open_in(own.sends) + open_in(own.receives);
  }

  static std::size_t open_in(const std::map<std::pair<plan::TransferNode, plan::Payload>, WiredNode::Place>& places) {
    std::size_t open = 0;
    for (const auto& [key, place] : places) {
      open += place.planned->size() - place.done;
    }
    return open;
  }

  void begin_send(plan::TransferNode node, plan::TransferNode peer, WiredNode::Place& place) {
    const Planned& planned = (*place.planned)[place.begun];
    place.memory.push_back(bytes_of(seed_of(node, planned, place.begun), planned.bytes));
    ++place.begun;
    (*nodes_[node].wire)->send(to(peer, planned), place.memory.back());
  }

  void begin_receive(plan::TransferNode node, plan::TransferNode peer, WiredNode::Place& place) {
    const Planned& planned = (*place.planned)[place.begun];
    place.memory.emplace_back(planned.bytes);
    ++place.begun;
    (*nodes_[node].wire)->receive(to(peer, planned), place.memory.back());
  }

  static WireMessage to(plan::TransferNode peer, const Planned& planned) {
    WireMessage message = planned.message;
    message.peer = peer;
    return message;
  }

  static void check(WiredNode& own, const WireDone& done) {
    auto& places = done.received ? own.receives : own.sends;
    WiredNode::Place& place = places.at({done.message.peer, done.message.payload});
    ASSERT_LT(place.done, place.begun);
    const Planned& planned = (*place.planned)[place.done];
    EXPECT_EQ(done.message, to(done.message.peer, planned));
    std::vector<std::byte>& memory = place.memory[place.done];
    if (done.received) {
      EXPECT_EQ(memory, bytes_of(seed_of(done.message.peer, planned, place.done), planned.bytes));
    }
    std::fill(memory.begin(), memory.end(), std::byte{0});  // a message that is done is of its owner again
    ++place.done;
  }

  std::mt19937_64 random_;
  std::vector<WiredNode> nodes_;
  std::map<Sequence, std::vector<Planned>> planned_;
};

class RandomWiresTest : public testing::TestWithParam<std::size_t> {};

TEST_P(RandomWiresTest, carry_every_message_once_and_in_order) {
  for (std::uint64_t seed = 0; seed < 6 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomWires wires(GetParam(), seed);
    wires.run();
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, RandomWiresTest, testing::Range<std::size_t>(2, 9));

}  // namespace
}  // namespace gradsync::device
