// The files of policies of several nodes, while a step is voted on and when it fails.

#include "unit/engine/peers/steps/steps_over_nodes.hpp"
#include "unit/engine/policies/state_folder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace gradsync::engine {
namespace {

class PoliciesOverNodes : public StepsOverNodes {
 protected:
  [[nodiscard]] EngineOptions options() const {
    EngineOptions options;
    options.policy_directory = folder.path() + "/node";
    return options;
  }

  static plan::RankDeclaration remembering(std::int64_t world) {
    plan::RankDeclaration declared = declaration(world);
    declared.options.clip[0].clip.max_norm.reset();
    declared.options.clip[0].clip.policy = plan::PercentilePolicy{50, 4, 2};
    return declared;
  }

  /// The state that was stored last on the node.
  [[nodiscard]] StateSlot last_stored(std::size_t node) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/node" + std::to_string(node))) {
      const Result<PolicyFileContents> contents = read_policy_file(bytes_of(entry.path().string()), 1000, "job");
      EXPECT_TRUE(contents);
      return *std::ranges::max_element(contents->slots, {}, &StateSlot::sequence);
    }
    ADD_FAILURE() << "node " << node << " has no file";
    return {};
  }

  StateFolder folder;
};

TEST_F(PoliciesOverNodes, are_pending_in_the_file_until_all_have_voted) {
  LinkedEngines all(2, 1, options());
  start(all, remembering(2));
  std::vector<bool> pending;
  all.on_vote = [&](std::size_t node) { pending.push_back(last_stored(node).pending); };
  write(all);
  const std::uint64_t word = attempt_word(all.key(0));
  expect_done(finish(all, 0), norm_of(2));
  EXPECT_EQ(pending, std::vector<bool>({true, true}));
  for (const std::size_t node : {0, 1}) {
    EXPECT_EQ(last_stored(node).word, word);
    EXPECT_FALSE(last_stored(node).pending);
  }
}

TEST_F(PoliciesOverNodes, of_a_step_that_failed_stay_pending_on_every_node) {
  LinkedEngines all(2, 2, options());
  start(all, remembering(4));
  write(all);
  expect_done(finish(all, 0), norm_of(4));
  write(all);
  all.on_vote = [&](std::size_t node) { all.hold_messages(1, node == 1); };
  const std::uint64_t word = attempt_word(all.key(2));
  const Calls calls = finish(all, 1);
  all.lose(1);
  all.hold_messages(1, false);
  all.pump();
  expect_failed({calls[0], calls[2], calls[3]}, ErrorCode::RankLost, "rank 1");
  for (const std::size_t node : {0, 1}) {
    EXPECT_EQ(last_stored(node).word, word);
    EXPECT_TRUE(last_stored(node).pending) << "the state before is the newest";
  }
}

}  // namespace
}  // namespace gradsync::engine
