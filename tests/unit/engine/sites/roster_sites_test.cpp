// How the sites of a job are numbered: what nodes say of their devices, by rank.

#include "engine/peers/peer_message.hpp"
#include "engine/peers/roster_by_rank.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;

struct RankedNode {
  std::vector<std::int64_t> ranks;
  std::vector<std::uint32_t> devices = {};
};

std::shared_ptr<const RosterByRank> roster_of_devices(const std::vector<RankedNode>& nodes) {
  SharedList<RosterNode> roster;
  std::int64_t world = 0;
  for (const RankedNode& node : nodes) {
    RosterNode entry;
    DeclaredRanks declared{"content", {}, std::nullopt};
    for (const std::int64_t rank : node.ranks) {
      declared.ranks.emplace_back(rank, 1);
      ++world;
    }
    entry.by_content = {std::move(declared)};
    entry.devices = node.devices;
    roster.own().push_back(std::move(entry));
  }
  return roster_by_rank(roster, world, 0);
}

TEST(RosterSites, a_node_that_says_nothing_of_devices_is_one_site_with_its_number) {
  const auto roster = roster_of_devices({{{0, 3}}, {{1, 4}}, {{2, 5}}});
  ASSERT_TRUE(roster);
  EXPECT_THAT(roster->site_of_rank, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_EQ(roster->site_of_rank, roster->node_of_rank);
  EXPECT_THAT(roster->sites, ElementsAre(FieldsAre(0, 0), FieldsAre(1, 0), FieldsAre(2, 0)));
}

TEST(RosterSites, are_numbered_by_their_lowest_ranks_over_all_nodes) {
  const auto roster = roster_of_devices({{{0, 2, 4, 6}, {0, 1, 1, 0}}, {{1, 3, 5}, {0, 0, 1}}});
  ASSERT_TRUE(roster);
  EXPECT_THAT(roster->site_of_rank, ElementsAre(0, 1, 2, 1, 2, 3, 0));
  EXPECT_THAT(roster->sites, ElementsAre(FieldsAre(0, 0), FieldsAre(1, 0), FieldsAre(0, 1), FieldsAre(1, 1)));
  EXPECT_THAT(roster->sites_of_node, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(RosterSites, of_one_node_do_not_depend_on_how_it_numbers_its_devices) {
  const auto roster = roster_of_devices({{{0, 1, 2, 3}, {7, 7, 2, 4}}, {{4}}});
  ASSERT_TRUE(roster);
  EXPECT_THAT(roster->site_of_rank, ElementsAre(0, 0, 1, 2, 3));
  EXPECT_THAT(roster->sites, ElementsAre(FieldsAre(0, 0), FieldsAre(0, 1), FieldsAre(0, 2), FieldsAre(1, 0)));
}

TEST(RosterSites, of_two_nodes_are_different_where_their_devices_have_one_number) {
  const auto roster = roster_of_devices({{{0, 1}, {0, 1}}, {{2, 3}, {1, 0}}});
  ASSERT_TRUE(roster);
  EXPECT_THAT(roster->site_of_rank, ElementsAre(0, 1, 2, 3));
}

TEST(RosterSites, devices_of_too_few_or_too_many_ranks_are_no_roster) {
  EXPECT_FALSE(roster_of_devices({{{0, 1, 2}, {0, 1}}, {{3}}}));
  EXPECT_FALSE(roster_of_devices({{{0, 1}, {0, 1, 1}}, {{2}}}));
  EXPECT_FALSE(roster_of_devices({{{0}}, {{1}, {0, 1}}}));
  EXPECT_TRUE(roster_of_devices({{{0, 1, 2}, {0, 1, 1}}, {{3}}}));
}

}  // namespace
}  // namespace gradsync::engine
