// The coordinator of a job in which one node has two sites: what is added up, compared and joined is so by site, and
// what is asked, voted and named is so by node.

#include "engine/peers/sums/node_sums.hpp"
#include "unit/engine/peers/machine_states.hpp"
#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

/// Ranks 1 and 3 are on two GPUs of node 1, so that sites 1 and 3 are its own; 0 and 2 are sites of nodes of one.
/// Tensor 0 is a sum of each of these two ranks by itself, and tensor 1 of each rank of the job.
plan::Plan plan_of_own_sums() {
  plan::Plan plan;
  plan.world_size = 4;
  plan.sums = {
      {sum_of_ranks({1}), sum_of_ranks({3})},
      {sum_of_ranks({0}), sum_of_ranks({1}), sum_of_ranks({2}), sum_of_ranks({3})},
  };
  plan.tensors = {tensor_held_by(0, {{1, 0}, {3, 0}}), tensor_held_by(1, {{0, 0}, {1, 0}, {2, 0}, {3, 0}})};
  for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
    plan.tensors[tensor].parts = {{0, tensor, 4, 0, 4, {}}};
  }
  return plan;
}

/// All have joined; `begin` leads it on.
struct SitesOfNodes {
  static constexpr std::uint64_t kSame = 5;
  static constexpr std::uint64_t kOther = 6;

  SitesOfNodes() {
    (void)by(0, join_of(0, {0}, {}));
    (void)machine.on_link(kNow, 1, "10.0.0.1");
    (void)by(1, join_of(1, {1, 3}, {0, 1}));
    (void)machine.on_link(kNow, 2, "10.0.0.2");
    prepared = by(2, join_of(2, {2}, {}));
  }

  static PeerJoin join_of(NodeNumber node, std::vector<std::int64_t> ranks, std::vector<std::uint32_t> devices) {
    PeerJoin join = LedCoordinator::join_of(node, node);
    join.world_size = 4;
    join.local_world_size = static_cast<std::int64_t>(ranks.size());
    join.declared->by_content[0].ranks.clear();
    for (const std::int64_t rank : ranks) {
      join.declared->by_content[0].ranks.emplace_back(rank, 1);
    }
    join.declared->devices = std::move(devices);
    join.ranks = std::move(ranks);
    return join;
  }

  CoordinatorActions by(LinkNumber link, ToCoordinator message) {
    return link == 0 ? machine.on_own(kNow, std::move(message)) : machine.on_message(kNow, link, std::move(message));
  }

  CoordinatorActions all(const ToCoordinator& message) {
    (void)by(0, message);
    (void)by(1, message);
    return by(2, message);
  }

  void begin() {
    auto plan = std::make_shared<const plan::Plan>(plan_of_own_sums());
    auto comparison = std::make_shared<const Comparison>(comparison_of(*plan, {0, 1, 2, 3}));
    machine.on_comparison(kEpoch, std::move(plan), std::move(comparison));
    (void)all(PeerReady{kEpoch, "plan", "policies", false});
    (void)all(PeerConnected{kEpoch});
  }

  /// `hashes`: of tensor 0 and 1 as this site has it; the other nodes have no part of tensor 0.
  static SiteSums sums_of(NodeNumber node, std::vector<std::uint64_t> hashes = {kSame, kSame}) {
    SiteSums sums;
    sums.row_hashes = node == 1 ? std::move(hashes) : std::vector<std::uint64_t>{hashes[1]};
    return sums;
  }

  static PeerAsk asking(NodeNumber node, std::vector<SiteSums> sites = {}, Ask::Kind kind = Ask::Kind::Finish) {
    PeerAsk ask = ask_of(kWord, kind);
    ask.sites = std::move(sites);
    if (ask.sites.empty()) {
      ask.sites.assign(node == 1 ? 2 : 1, sums_of(node));
    }
    return ask;
  }

  /// Node 1 asks with these sites, and the others with what is the same everywhere.
  CoordinatorActions ask_with(std::vector<SiteSums> sites) {
    (void)by(0, asking(0));
    (void)by(1, asking(1, std::move(sites)));
    return by(2, asking(2));
  }

  CoordinatorActions hashes(LinkNumber link, std::uint32_t site, std::vector<std::uint64_t> boxes) {
    return by(link, PeerRows{kWord, std::move(boxes), {}, site});
  }

  CoordinatorActions rows(LinkNumber link, std::uint32_t site, std::vector<PeerRows::Row> rows) {
    return by(link, PeerRows{kWord, {}, std::move(rows), site});
  }

  CoordinatorActions prepared;
  SomeDeclarations declarations;
  CoordinatorMachine machine{{{0, "job"}, "a", "1", "n0", 1}, declarations};
};

class CoordinatorSites : public testing::Test, protected SitesOfNodes {
 protected:
  CoordinatorSites() { begin(); }
};

constexpr const char* kDecided = "1:decision 2:decision own:decision";

TEST(CoordinatorSitesRoster, says_the_devices_of_each_node_to_all) {
  const SitesOfNodes led;
  const auto& prepare = sent<PeerPrepare>(led.prepared);
  EXPECT_THAT(prepare.roster[0].devices, IsEmpty());
  EXPECT_THAT(prepare.roster[1].devices, ElementsAre(0, 1));
  ASSERT_TRUE(prepare.by_rank);
  EXPECT_THAT(prepare.by_rank->site_of_rank, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(prepare.by_rank->node_of_rank, ElementsAre(0, 1, 2, 1));
}

TEST_F(CoordinatorSites, sums_of_all_sites_are_added) {
  std::vector<SiteSums> sites(2, sums_of(1));
  sites[0].cells = cells_of(2, 10);
  sites[1].cells = cells_of(16, 100);
  std::vector<SiteSums> own{sums_of(0)};
  own[0].cells = cells_of(1, 1);
  std::vector<SiteSums> last{sums_of(2)};
  last[0].cells = cells_of(64, 1000);
  (void)by(1, asking(1, sites));
  (void)by(2, asking(2, last));
  const CoordinatorActions actions = by(0, asking(0, own));
  EXPECT_EQ(words_of(actions), kDecided);
  const auto& decision = sent<PeerDecision>(actions);
  EXPECT_EQ(decision.cells->whole.power_sum.high, 83);
  EXPECT_EQ(decision.cells->whole.maximum, 8);
  EXPECT_EQ(decision.cells->counted_elements, 1111U);
}

/// Added one after the other in that order, to the bit: (2^-60 + 1) − 1 would be another sum.
TEST_F(CoordinatorSites, are_added_in_the_order_of_their_numbers_whichever_node_asks_first) {
  const auto decided = [](const std::vector<LinkNumber>& order) {
    SitesOfNodes led;
    led.begin();
    std::vector<std::vector<SiteSums>> of_node{{sums_of(0)}, {sums_of(1), sums_of(1)}, {sums_of(2)}};
    of_node[0][0].cells.whole.power_sum = {0x1p+60, 3};
    of_node[1][0].cells.whole.power_sum = {1.0, 0x1p-60};
    of_node[2][0].cells.whole.power_sum = {0x1p-50, 0x1p-110};
    of_node[1][1].cells.whole.power_sum = {0x1p+10 / 3, 0x1p-48 / 3};
    CoordinatorActions last;
    for (const LinkNumber link : order) {
      const auto node = static_cast<NodeNumber>(link);
      last = led.by(link, asking(node, of_node[node]));
    }
    const NodeCells cells = *sent<PeerDecision>(last).cells;
    const std::vector<const NodeCells*> by_site{
        &of_node[0][0].cells, &of_node[1][0].cells, &of_node[2][0].cells, &of_node[1][1].cells};
    const NodeCells expected = sum_of_nodes(2, by_site);
    EXPECT_EQ(cells.whole.power_sum.high, expected.whole.power_sum.high);
    EXPECT_EQ(cells.whole.power_sum.low, expected.whole.power_sum.low);
    return std::pair(cells.whole.power_sum.high, cells.whole.power_sum.low);
  };
  EXPECT_EQ(decided({0, 1, 2}), decided({2, 1, 0}));
}

TEST_F(CoordinatorSites, an_ask_with_too_few_or_too_many_sites_is_refused_with_the_name_of_its_node) {
  const auto refused = [](LinkNumber link, std::size_t sites) {
    SitesOfNodes led;
    led.begin();
    const auto node = static_cast<NodeNumber>(link);
    const CoordinatorActions actions = led.by(link, asking(node, std::vector<SiteSums>(sites, sums_of(node))));
    EXPECT_EQ(words_of(actions), "1:end 2:end own:end");
    const Error error = sent<PeerEnd>(actions).error;
    EXPECT_EQ(error.node, "n" + std::to_string(node));
    return error.message;
  };
  EXPECT_EQ(refused(1, 1), "what node 'n1' asks has sums of 1 devices, and its node 2");
  EXPECT_EQ(refused(1, 3), "what node 'n1' asks has sums of 3 devices, and its node 2");
  EXPECT_EQ(refused(2, 2), "what node 'n2' asks has sums of 2 devices, and its node 1");
  EXPECT_EQ(refused(0, 2), "what node 'n0' asks has sums of 2 devices, and its node 1");
}

TEST_F(CoordinatorSites, each_site_says_the_hashes_of_its_own_classes) {
  std::vector<SiteSums> sites(2, sums_of(1));
  sites[1].row_hashes.pop_back();
  EXPECT_EQ(sent<PeerEnd>(by(1, asking(1, sites))).error.message, "what node 'n1' asks has 1 hashes for 2 classes");
}

TEST_F(CoordinatorSites, what_differs_on_two_sites_of_one_node_is_asked_of_that_alone_and_judged) {
  const CoordinatorActions first = ask_with({sums_of(1), sums_of(1, {kOther, kSame})});
  EXPECT_EQ(words_of(first), "1:compare");
  EXPECT_THAT(sent<PeerCompare>(first).classes, ElementsAre(0));
  EXPECT_EQ(words_of(hashes(1, 0, {kSame})), "");
  const CoordinatorActions second = hashes(1, 1, {kOther});
  EXPECT_EQ(words_of(second), "1:compare");
  EXPECT_THAT(sent<PeerCompare>(second).boxes, ElementsAre(Pair(0, 0)));
  EXPECT_EQ(words_of(rows(1, 1, {row_of(0, 0, 3, 9)})), "");
  const CoordinatorActions last = rows(1, 0, {row_of(0, 0, 1, 4)});
  EXPECT_EQ(words_of(last), kDecided);
  const auto& decision = sent<PeerDecision>(last);
  ASSERT_THAT(decision.findings.divergence, SizeIs(1));
  EXPECT_EQ(decision.findings.divergence[0].tensor, 0U);
  EXPECT_THAT(decision.findings.divergence[0].ranks, ElementsAre(3)) << "as the box is counted on rank 1";
}

TEST_F(CoordinatorSites, what_differs_on_sites_of_all_nodes_is_asked_of_each_node_once) {
  const CoordinatorActions first = ask_with({sums_of(1), sums_of(1, {kSame, kOther})});
  EXPECT_EQ(words_of(first), "own:compare 1:compare 2:compare");
  EXPECT_THAT(sent<PeerCompare>(first).classes, ElementsAre(1));
  (void)hashes(0, 0, {kSame});
  (void)hashes(2, 0, {kSame});
  EXPECT_EQ(words_of(hashes(1, 1, {kOther})), "") << "the first site of node 1 is waited for";
  EXPECT_EQ(words_of(hashes(1, 0, {kSame})), "own:compare 1:compare 2:compare");
  (void)rows(0, 0, {row_of(1, 0, 0, 4)});
  (void)rows(1, 0, {row_of(1, 0, 1, 4)});
  (void)rows(1, 1, {row_of(1, 0, 3, 9)});
  const CoordinatorActions last = rows(2, 0, {row_of(1, 0, 2, 4)});
  ASSERT_EQ(words_of(last), kDecided);
  const auto& decision = sent<PeerDecision>(last);
  ASSERT_THAT(decision.findings.divergence, SizeIs(1));
  EXPECT_THAT(decision.findings.divergence[0].suspects, ElementsAre(3));
}

TEST_F(CoordinatorSites, rows_of_sites_that_do_not_exist_or_were_not_asked_are_no_answers) {
  (void)ask_with({sums_of(1), sums_of(1, {kOther, kSame})});
  EXPECT_EQ(words_of(hashes(1, 2, {kSame})), "") << "the node has two";
  EXPECT_EQ(words_of(hashes(1, 4096, {kSame})), "");
  EXPECT_EQ(words_of(hashes(0, 0, {kSame})), "") << "site 0 has no part of it";
  EXPECT_EQ(words_of(hashes(0, 1, {kSame})), "") << "that is no site of node 0, though one of the job";
  EXPECT_EQ(words_of(hashes(2, 0, {kSame})), "");
  EXPECT_EQ(words_of(hashes(1, 1, {kSame, kSame})), "") << "there is one box";
  EXPECT_EQ(words_of(hashes(1, 1, {kOther})), "");
  EXPECT_EQ(words_of(hashes(1, 1, {kSame})), "") << "it comes twice";
  EXPECT_EQ(words_of(hashes(1, 0, {kSame})), "1:compare") << "the first that it said counts";
  EXPECT_EQ(words_of(rows(1, 0, {row_of(0, 0, 3, 9)})), "") << "a rank of its other site";
  EXPECT_EQ(words_of(rows(1, 1, {row_of(0, 0, 3, 9)})), "");
  EXPECT_EQ(words_of(rows(1, 0, {row_of(0, 0, 1, 4)})), kDecided);
}

TEST_F(CoordinatorSites, rows_before_anything_is_compared_are_no_answers) {
  EXPECT_EQ(words_of(hashes(1, 1, {kSame})), "");
  EXPECT_EQ(words_of(ask_with({sums_of(1), sums_of(1)})), kDecided);
  EXPECT_EQ(words_of(hashes(1, 0, {kSame})), "");
}

TEST_F(CoordinatorSites, a_tensor_without_a_gradient_on_one_site_of_a_node_is_missing_there) {
  std::vector<SiteSums> sites(2, sums_of(1));
  sites[1].findings.absent = {{0, 1}};
  sites[1].findings.nonfinite = {{1, 7, {{3, 7}}}};
  sites[1].findings.nonfinite_total = 7;
  sites[0].findings.nonfinite = {{1, 2, {{1, 2}}}};
  sites[0].findings.nonfinite_total = 2;
  const auto decision = sent<PeerDecision>(ask_with(sites));
  EXPECT_THAT(decision.findings.absent, IsEmpty());
  ASSERT_THAT(decision.findings.missing, SizeIs(1));
  EXPECT_EQ(decision.findings.missing[0].tensor, 0U);
  EXPECT_THAT(decision.findings.missing[0].ranks, ElementsAre(3));
  ASSERT_THAT(decision.findings.nonfinite, SizeIs(1));
  EXPECT_EQ(decision.findings.nonfinite[0].count, 9U);
  EXPECT_THAT(decision.findings.nonfinite[0].inputs, UnorderedElementsAre(Pair(1, 2), Pair(3, 7)));
  EXPECT_EQ(decision.findings.nonfinite_total, 9U);
}

TEST_F(CoordinatorSites, a_tensor_is_absent_where_all_sites_that_bring_something_say_so) {
  std::vector<SiteSums> sites(2, sums_of(1));
  sites[0].findings.absent = sites[1].findings.absent = {{0, 2}};
  const auto some = sent<PeerDecision>(ask_with(sites));
  EXPECT_THAT(some.findings.absent, ElementsAre(Pair(0, 1))) << "nodes 0 and 2 have gradients of tensor 1";
  ASSERT_THAT(some.findings.missing, SizeIs(1));
  EXPECT_THAT(some.findings.missing[0].ranks, ElementsAre(1, 3));
}

TEST_F(CoordinatorSites, the_second_half_of_a_step_and_an_import_are_asked_without_sites) {
  (void)by(0, asking(0, {}, Ask::Kind::NormOnly));
  (void)by(1, asking(1, {}, Ask::Kind::NormOnly));
  EXPECT_EQ(words_of(by(2, asking(2, {}, Ask::Kind::NormOnly))), kDecided);
  const CoordinatorActions clip = all(ask_of(kWord, Ask::Kind::Clip));
  EXPECT_EQ(words_of(clip), kDecided);
  EXPECT_FALSE(sent<PeerDecision>(clip).cells);
  EXPECT_EQ(words_of(all(PeerVote{kWord, "result"})), "StoreDone 1:done 2:done own:done");
  const CoordinatorActions import = all(ask_of(kWord + 1, Ask::Kind::Import));
  EXPECT_EQ(words_of(import), kDecided);
  EXPECT_FALSE(sent<PeerDecision>(import).cells);
}

TEST_F(CoordinatorSites, sums_that_come_with_an_import_are_refused) {
  PeerAsk import = asking(1);
  import.terms.kind = Ask::Kind::Import;
  EXPECT_EQ(sent<PeerEnd>(by(1, import)).error.message, "what node 'n1' asks has sums that nothing asks for");
}

TEST_F(CoordinatorSites, who_is_late_is_asked_and_named_by_node) {
  (void)by(1, asking(1));
  EXPECT_EQ(words_of(by(1, PeerOverdue{kWord, false, 12, 60})), "own:who 2:who");
  (void)by(0, PeerMissing{kWord, {0}, {}, ""});
  const Error error = sent<PeerEnd>(by(2, PeerMissing{kWord, {2}, {}, "in backward"})).error;
  EXPECT_EQ(
      error.message, "step 12 was not finished within 60.0 s: rank 0 on node 'n0'; rank 2 on node 'n2', in backward"
  );
}

TEST_F(CoordinatorSites, a_node_that_does_not_say_its_rows_is_late_whichever_of_its_sites_it_is) {
  (void)ask_with({sums_of(1), sums_of(1, {kOther, kSame})});
  (void)hashes(1, 0, {kSame});
  EXPECT_EQ(words_of(by(0, PeerOverdue{kWord, false, 12, 60})), "1:who");
}

TEST(CoordinatorSitesOffers, two_members_of_one_node_make_it_get_the_id_once) {
  SitesOfNodes led;
  device::NcclUniqueId id;
  id.bytes[0] = 'a';
  const auto ready = [](std::vector<device::CommunicatorOffer> offers) {
    return PeerReady{kEpoch, "plan", "policies", false, device::LoadedCommunicators{22'809, std::move(offers)}};
  };
  (void)led.by(0, ready({{"all", 4, 0, {}, id}}));
  (void)led.by(1, ready({{"all", 4, 1, {}, {}}, {"own", 2, 0, {}, id}, {"all", 4, 3, {}, {}}, {"own", 2, 1, {}, {}}}));
  const CoordinatorActions actions = led.by(2, ready({{"all", 4, 2, {}, {}}}));
  EXPECT_EQ(words_of(actions), "1:connect 2:connect own:connect");
  const auto& to_first = std::get<PeerConnect>(std::get<SendToMember>(actions[0]).message);
  ASSERT_THAT(to_first.communicators, SizeIs(2));
  EXPECT_EQ(to_first.communicators[0].name, "all");
  EXPECT_EQ(to_first.communicators[1].name, "own");
  const auto& to_second = std::get<PeerConnect>(std::get<SendToMember>(actions[1]).message);
  ASSERT_THAT(to_second.communicators, SizeIs(1)) << "what sites of one node share is no secret of others";
}

}  // namespace
}  // namespace gradsync::engine
