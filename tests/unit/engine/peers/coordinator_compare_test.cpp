// Copies on several nodes: which rounds the coordinator asks for, and what it makes of the answers.

#include "device/stats/box_hash.hpp"
#include "unit/engine/peers/machine_states.hpp"
#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

/// As many replicated tensors as are given, on three nodes with a rank each.
plan::Plan replicated(std::uint32_t tensors) {
  plan::Plan plan;
  plan.options.data_path = plan::DataPath::Stats;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    plan.tensors.push_back(tensor_held_by(tensor, {{0, 0}, {1, 0}, {2, 0}}));
  }
  return plan;
}

/// In Begun, with the plan, and all but node 2 have asked.
struct ComparingNodes : LedCoordinator {
  explicit ComparingNodes(std::uint32_t tensors) : ComparingNodes(replicated(tensors)) {}

  explicit ComparingNodes(plan::Plan of_nodes) : LedCoordinator(State::Preparing) {
    auto plan = std::make_shared<const plan::Plan>(std::move(of_nodes));
    auto comparison = std::make_shared<const Comparison>(comparison_of(*plan, {0, 1, 2}));
    machine.on_comparison(kEpoch, std::move(plan), std::move(comparison));
    all(PeerReady{kEpoch, "plan", "policies", false});
    all(PeerConnected{kEpoch});
  }

  CoordinatorActions ask(NodeNumber node, std::uint64_t hash, std::uint64_t word = kWord) {
    PeerAsk ask = ask_of(word);
    ask.sites[0].row_hashes = {hash};
    ask.sites[0].cells.whole = cells_of(node == 0 ? 9 : 0, 0).whole;
    ask.sites[0].cells.counted_elements = node == 0 ? 4 : 0;
    return by(node, ask);
  }

  CoordinatorActions ask_with(const std::vector<std::uint64_t>& hashes, std::uint64_t word = kWord) {
    (void)ask(0, hashes[0], word);
    (void)ask(1, hashes[1], word);
    return ask(2, hashes[2], word);
  }

  CoordinatorActions hashes(NodeNumber node, std::vector<std::uint64_t> boxes) {
    return by(node, PeerRows{kWord, std::move(boxes), {}});
  }

  CoordinatorActions rows(NodeNumber node, std::vector<PeerRows::Row> rows) {
    return by(node, PeerRows{kWord, {}, std::move(rows)});
  }
};

TEST(CoordinatorCompare, equal_hashes_need_no_second_round) {
  ComparingNodes led(1);
  const CoordinatorActions actions = led.ask_with({5, 5, 5});
  EXPECT_EQ(words_of(actions), "1:decision 2:decision own:decision");
  EXPECT_EQ(sent<PeerDecision>(actions).cells->whole.power_sum.high, 9);
}

TEST(CoordinatorCompare, an_ask_that_does_not_fit_the_plan_aborts_the_attempt) {
  ComparingNodes led(1);
  PeerAsk ask = ask_of(kWord);
  const CoordinatorActions actions = led.by(1, ask);
  EXPECT_EQ(sent<PeerAbort>(actions).error.message, "what node 'n1' asks has 0 hashes for 1 classes");
}

TEST(CoordinatorCompare, hashes_that_differ_lead_to_boxes_and_these_to_rows_and_a_finding) {
  ComparingNodes led(2);
  const CoordinatorActions first = led.ask_with({5, 5, 6});
  EXPECT_EQ(words_of(first), "own:compare 1:compare 2:compare");
  EXPECT_EQ(sent<PeerCompare>(first).classes, std::vector<std::uint32_t>{0});
  (void)led.hashes(0, {1, 2});
  (void)led.hashes(1, {1, 2});
  EXPECT_EQ(words_of(led.hashes(1, {1, 2})), "") << "it comes twice";
  EXPECT_EQ(words_of(led.hashes(2, {1})), "") << "a hash is missing";
  const CoordinatorActions second = led.hashes(2, {1, 3});
  EXPECT_EQ(words_of(second), "own:compare 1:compare 2:compare");
  EXPECT_EQ(sent<PeerCompare>(second).boxes, (std::vector<Comparison::Box>{{1, 0}}));
  (void)led.rows(0, {row_of(1, 0, 0, 4)});
  (void)led.rows(1, {row_of(1, 0, 1, 4)});
  EXPECT_EQ(words_of(led.rows(2, {row_of(0, 0, 2, 9)})), "") << "a box that was not asked for";
  EXPECT_EQ(words_of(led.hashes(2, {1, 3})), "") << "of the round before";
  const CoordinatorActions last = led.rows(2, {row_of(1, 0, 2, 9)});
  EXPECT_EQ(words_of(last), "1:decision 2:decision own:decision");
  const auto& decision = sent<PeerDecision>(last);
  ASSERT_EQ(decision.findings.divergence.size(), 1U);
  EXPECT_EQ(decision.findings.divergence[0].tensor, 1U);
  EXPECT_EQ(decision.findings.divergence[0].suspects, std::vector<std::int64_t>{2});
  EXPECT_FALSE(decision.sums_differ);
}

TEST(CoordinatorCompare, sums_that_differ_by_rounding_are_said_for_the_rest_of_the_epoch) {
  ComparingNodes led(1);
  (void)led.ask_with({5, 5, 6});
  (void)led.hashes(0, {1});
  (void)led.hashes(1, {1});
  (void)led.hashes(2, {2});
  (void)led.rows(0, {row_of(0, 0, 0, 4)});
  (void)led.rows(1, {row_of(0, 0, 1, 4)});
  PeerRows::Row rounded = row_of(0, 0, 2, 4);
  rounded.row.power_sum = std::nextafter(4.0, 5.0);
  const auto decision = sent<PeerDecision>(led.rows(2, {rounded}));
  EXPECT_TRUE(decision.findings.divergence.empty());
  EXPECT_TRUE(decision.sums_differ);
  (void)led.all(PeerVote{kWord, "result"});
  EXPECT_TRUE(sent<PeerDecision>(led.ask_with({5, 5, 5}, kWord + 1)).sums_differ);
}

TEST(CoordinatorCompare, a_result_of_one_node_alone_is_counted_where_its_first_sum_has_no_gradient) {
  plan::Plan plan;
  plan.world_size = 3;
  plan::RankSum first = sum_of_ranks({0, 2});
  first.destinations = {{2, 0}};
  plan::RankSum second = sum_of_ranks({1, 2});
  second.destinations = {{2, 1}};
  plan.sums = {{first, second}};
  plan.tensors = {tensor_held_by(0, {{2, 0}})};
  plan.tensors[0].parts = {{0, 0, 4, 0, 4, {}}};
  ComparingNodes led(plan);
  const auto ask = [&](NodeNumber node, std::vector<std::uint64_t> hashes) {
    PeerAsk asking = ask_of(kWord);
    asking.sites[0].row_hashes = std::move(hashes);
    return led.by(node, asking);
  };
  (void)ask(0, {});
  (void)ask(1, {});
  const CoordinatorActions classes = ask(2, {device::hash_of_copies_alone(2)});
  EXPECT_EQ(words_of(classes), "2:compare");
  EXPECT_EQ(sent<PeerCompare>(classes).classes, std::vector<std::uint32_t>{0});
  const CoordinatorActions boxes = led.hashes(2, {device::hash_of_copies_alone(2)});
  EXPECT_EQ(sent<PeerCompare>(boxes).boxes, (std::vector<Comparison::Box>{{0, 0}}));
  const CoordinatorActions decided = led.rows(2, {row_of(0, 0, 2, 0)});
  EXPECT_EQ(words_of(decided), "1:decision 2:decision own:decision");
}

TEST(CoordinatorCompare, every_box_whose_owner_has_no_gradient_is_counted_however_many_they_are) {
  constexpr std::uint32_t kBoxes = 150;
  ComparingNodes led(kBoxes);
  (void)led.ask_with({5, 6, 6});
  std::vector<std::uint64_t> nothing(kBoxes, 0);
  nothing.back() = device::hash_of_copies_alone(0);  // a tied copy has one, which does not count
  (void)led.hashes(0, nothing);
  (void)led.hashes(1, std::vector<std::uint64_t>(kBoxes, 7));
  CoordinatorActions actions = led.hashes(2, std::vector<std::uint64_t>(kBoxes, 7));
  int rounds = 0;
  while (words_of(actions) == "own:compare 1:compare 2:compare") {
    ++rounds;
    const std::vector<Comparison::Box> boxes = sent<PeerCompare>(actions).boxes;
    ASSERT_LE(boxes.size(), CoordinatorMachine::kMostBoxes);
    for (NodeNumber node = 0; node < 3; ++node) {
      std::vector<PeerRows::Row> rows;
      for (const auto& [tensor, box] : boxes) {
        rows.push_back(row_of(tensor, box, node, node == 0 ? 0 : 1));
      }
      actions = led.rows(node, std::move(rows));
    }
  }
  EXPECT_EQ(rounds, 3);
  const auto& decision = sent<PeerDecision>(actions);
  EXPECT_EQ(decision.cells->whole.power_sum.high, 9 + kBoxes);
  EXPECT_EQ(decision.cells->counted_elements, 4 + 4 * kBoxes);
  EXPECT_EQ(decision.findings.missing.size(), device::kMaxFindings);
  EXPECT_EQ(decision.findings.missing[0].ranks, std::vector<std::int64_t>{0});
}

TEST(CoordinatorCompare, of_copies_that_differ_no_more_are_read_than_findings_have_room_for) {
  constexpr std::uint32_t kBoxes = 150;
  ComparingNodes led(kBoxes);
  (void)led.ask_with({5, 6, 6});
  (void)led.hashes(0, std::vector<std::uint64_t>(kBoxes, 80'000));
  (void)led.hashes(1, std::vector<std::uint64_t>(kBoxes, 70'000));
  const CoordinatorActions actions = led.hashes(2, std::vector<std::uint64_t>(kBoxes, 70'000));
  EXPECT_EQ(sent<PeerCompare>(actions).boxes.size(), device::kMaxFindings);
  for (NodeNumber node = 0; node < 2; ++node) {
    (void)led.rows(node, {row_of(0, 0, node, 4)});
  }
  EXPECT_EQ(words_of(led.rows(2, {row_of(0, 0, 2, 4)})), "1:decision 2:decision own:decision") << "no further round";
}

}  // namespace
}  // namespace gradsync::engine
