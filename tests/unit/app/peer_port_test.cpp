// Which role the port of a job has.

#include "app/peer/peer_port.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::app {
namespace {

class NoOwner final : public PeerPort::Owner {
 public:
  void on_told(engine::JobNumber) override {}

  void on_gone(engine::JobNumber) override {}
};

template <typename Kind>
bool has(const std::vector<Outgoing>& outgoing) {
  return std::ranges::any_of(outgoing, [](const Outgoing& each) { return std::holds_alternative<Kind>(each); });
}

struct Port {
  Port() {
    PeerPort::Options options;
    options.job = 1;
    options.identity.job = {1000, "job"};
    options.identity.world_size = 4;
    options.identity.local_world_size = 2;
    options.identity.node = "b";
    options.identity.address = "10.0.0.2";
    options.coordinator = "10.0.0.1";
    options.version = "1";
    options.now = [] { return TimePoint{std::chrono::seconds(1000)}; };
    port.emplace(std::move(options), budget, owner);
  }

  std::vector<Outgoing> ranks(std::vector<std::int64_t> here) {
    static_cast<void>(port->tell(engine::LocalsChanged{std::move(here), {}, std::nullopt}));
    return port->take_outgoing();
  }

  NoOwner owner;
  FairBudget budget{1 << 20, 0};
  std::optional<PeerPort> port;
};

TEST(PeerPort, of_a_node_that_rank_0_has_left_for_good_coordinates_no_more) {
  Port node;
  EXPECT_FALSE(has<engine::OpenLink>(node.ranks({0})));
  EXPECT_TRUE(node.port->coordinates());
  static_cast<void>(node.port->on_link(7, "10.0.0.3"));
  static_cast<void>(node.port->take_outgoing());
  EXPECT_TRUE(node.ranks({2}).empty());
  EXPECT_TRUE(node.port->coordinates()) << "rank 0 may come again";
  const std::vector<Outgoing> outgoing = node.ranks({2, 3});
  EXPECT_FALSE(node.port->coordinates()) << "no seat is left for it";
  EXPECT_TRUE(has<engine::CloseLink>(outgoing));
  EXPECT_TRUE(has<engine::OpenLink>(outgoing)) << "as of every other node";
}

TEST(PeerPort, becomes_the_coordinators_when_rank_0_comes) {
  Port node;
  EXPECT_TRUE(has<engine::OpenLink>(node.ranks({2, 3})));
  EXPECT_FALSE(node.port->coordinates());
  EXPECT_TRUE(has<engine::DropLink>(node.ranks({0, 2})));
  EXPECT_TRUE(node.port->coordinates());
}

}  // namespace
}  // namespace gradsync::app
