// The coordinator's table of an attempt in docs/peer-protocol.md.

#include "unit/engine/peers/machine_states.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using CoordinatorPhase = CoordinatorMachine::Phase;
constexpr auto kBegun = CoordinatorMachine::State::Begun;

TEST(CoordinatorAttempt, is_decided_when_every_node_has_asked_once) {
  LedCoordinator led(kBegun);
  EXPECT_EQ(words_of(led.by(1, ask_of(kWord))), "");
  EXPECT_EQ(words_of(led.by(1, ask_of(kWord))), "");
  EXPECT_EQ(words_of(led.by(2, ask_of(kWord))), "") << "two nodes have asked, one of them twice";
  EXPECT_EQ(words_of(led.own(ask_of(kWord))), "1:decision 2:decision own:decision");
  EXPECT_EQ(words_of(led.own(ask_of(kWord))), "");
}

TEST(CoordinatorAttempt, asks_of_other_attempts_do_not_count) {
  LedCoordinator led(kBegun);
  EXPECT_EQ(words_of(led.all(ask_of(kWord + 1))), "");
  EXPECT_EQ(words_of(led.all(ask_of(kWord - (std::uint64_t{1} << 32)))), "");
  EXPECT_EQ(words_of(led.all(ask_of(kWord))), "1:decision 2:decision own:decision");
}

TEST(CoordinatorAttempt, adds_the_sums_of_all_nodes) {
  LedCoordinator led(kBegun);
  PeerAsk ask = ask_of(kWord);
  ask.sites[0].cells.whole.power_sum = {2, 0};
  ask.sites[0].cells.counted_elements = 5;
  const auto decision = sent<PeerDecision>(led.all(ask));
  EXPECT_EQ(decision.cells->whole.power_sum.high, 6);
  EXPECT_EQ(decision.cells->counted_elements, 15U);
  EXPECT_FALSE(decision.sums_differ);
}

TEST(CoordinatorAttempt, terms_that_differ_abort_it_and_name_ranks_and_nodes) {
  LedCoordinator led(kBegun);
  (void)led.by(0, ask_of(kWord));
  PeerAsk other = ask_of(kWord);
  other.terms.step = 3;
  const CoordinatorActions actions = led.by(2, other);
  EXPECT_EQ(words_of(actions), "1:abort 2:abort own:abort");
  const Error& error = sent<PeerAbort>(actions).error;
  EXPECT_EQ(error.code, ErrorCode::StepMismatch);
  EXPECT_EQ(error.message, "rank 0 finishes step 0 and rank 2 step 3 (nodes 'n0' and 'n2')");
  EXPECT_EQ(error.attempt, 1U);
  EXPECT_EQ(words_of(led.all(ask_of(kWord))), "") << "the attempt is over";
  EXPECT_EQ(words_of(led.all(ask_of(kWord + 1))), "1:decision 2:decision own:decision");
}

TEST(CoordinatorAttempt, ends_the_epoch_when_it_fails_where_gradients_travel) {
  LedCoordinator led(CoordinatorMachine::State::Preparing);
  auto comparison = std::make_shared<Comparison>();
  comparison->of_node.resize(3);
  led.machine.on_comparison(kEpoch, std::make_shared<const plan::Plan>(), std::move(comparison));
  led.all(PeerReady{kEpoch, "plan", "policies", false});
  led.all(PeerConnected{kEpoch});
  (void)led.by(2, ask_of(kWord));
  const CoordinatorActions actions = led.by(1, PeerFail{kWord, make_error(ErrorCode::StepFailed, "the lane failed")});
  EXPECT_EQ(words_of(actions), "1:end 2:end own:end");
  const auto& end = sent<PeerEnd>(actions);
  EXPECT_EQ(end.failed_word, kWord);
  EXPECT_EQ(end.error.node, "n1");
  EXPECT_EQ(end.error.epoch, kEpoch + 1);
  EXPECT_EQ(led.machine.state(), CoordinatorMachine::State::Gathering);
  EXPECT_EQ(words_of(led.all(ask_of(kWord + 1))), "") << "no other attempt is of that epoch";
}

TEST(CoordinatorAttempt, policies_that_differ_abort_it) {
  LedCoordinator led(kBegun);
  (void)led.by(0, ask_of(kWord));
  PeerAsk other = ask_of(kWord);
  other.policy_digest = "others";
  EXPECT_EQ(sent<PeerAbort>(led.by(1, other)).error.code, ErrorCode::StepMismatch);
}

TEST(CoordinatorAttempt, is_done_when_all_have_voted_alike_and_stored_before_anybody_hears_it) {
  LedCoordinator led(kBegun, CoordinatorPhase::Voting);
  EXPECT_EQ(words_of(led.own(PeerVote{kWord, "result"})), "");
  EXPECT_EQ(words_of(led.by(2, PeerVote{kWord, "result"})), "");
  EXPECT_EQ(words_of(led.by(2, PeerVote{kWord, "result"})), "") << "a vote that comes twice counts once";
  const CoordinatorActions actions = led.by(1, PeerVote{kWord, "result"});
  ASSERT_EQ(words_of(actions), "StoreDone 1:done 2:done own:done");
  EXPECT_EQ(std::get<StoreDone>(actions.front()).word, kWord);
  EXPECT_EQ(words_of(led.by(1, PeerFail{kWord, {}})), "") << "what is done is never aborted";
  EXPECT_EQ(words_of(led.all(ask_of(kWord + 1))), "1:decision 2:decision own:decision");
}

TEST(CoordinatorAttempt, votes_before_the_decision_do_not_count) {
  LedCoordinator led(kBegun);
  EXPECT_EQ(words_of(led.all(PeerVote{kWord, "result"})), "");
  EXPECT_EQ(words_of(led.all(ask_of(kWord))), "1:decision 2:decision own:decision");
  EXPECT_EQ(words_of(led.by(0, PeerVote{kWord, "result"})), "");
}

TEST(CoordinatorAttempt, votes_failures_and_times_of_other_attempts_do_not_count) {
  for (const std::uint64_t other : {kWord - 1, kWord + 1, kWord - (std::uint64_t{1} << 32)}) {
    LedCoordinator led(kBegun, CoordinatorPhase::Voting);
    EXPECT_EQ(words_of(led.all(PeerVote{other, "result"})), "");
    EXPECT_EQ(words_of(led.by(1, PeerFail{other, {}})), "");
    EXPECT_EQ(words_of(led.by(1, PeerOverdue{other, false, 12, 60})), "");
    EXPECT_EQ(words_of(led.all(PeerVote{kWord, "result"})), "StoreDone 1:done 2:done own:done");
  }
}

TEST(CoordinatorAttempt, results_that_differ_abort_it_in_whatever_order_they_come) {
  for (const NodeNumber first : {0U, 2U}) {
    LedCoordinator led(kBegun, CoordinatorPhase::Voting);
    (void)led.by(first, PeerVote{kWord, "result"});
    const CoordinatorActions actions = led.by(2 - first, PeerVote{kWord, "another"});
    EXPECT_EQ(words_of(actions), "1:abort 2:abort own:abort");
    EXPECT_EQ(sent<PeerAbort>(actions).error.node, "n2");
  }
}

TEST(CoordinatorAttempt, a_node_that_fails_aborts_it_for_all_in_each_phase) {
  for (const CoordinatorPhase phase : {CoordinatorPhase::Asking, CoordinatorPhase::Voting}) {
    LedCoordinator led(kBegun, phase);
    const CoordinatorActions actions = led.by(1, PeerFail{kWord, make_error(ErrorCode::StepFailed, "the lane")});
    EXPECT_EQ(words_of(actions), "1:abort 2:abort own:abort");
    EXPECT_EQ(sent<PeerAbort>(actions).error.message, "the lane");
    EXPECT_EQ(sent<PeerAbort>(actions).error.node, "n1");
  }
}

TEST(CoordinatorAttempt, a_norm_has_no_vote_and_its_clip_is_of_the_same_word) {
  LedCoordinator led(kBegun);
  EXPECT_EQ(words_of(led.all(ask_of(kWord, Ask::Kind::NormOnly))), "1:decision 2:decision own:decision");
  EXPECT_EQ(words_of(led.all(ask_of(kWord, Ask::Kind::NormOnly))), "") << "asks for the norm that come late";
  EXPECT_EQ(words_of(led.all(PeerVote{kWord, "result"})), "");
  const CoordinatorActions actions = led.all(ask_of(kWord, Ask::Kind::Clip));
  EXPECT_EQ(words_of(actions), "1:decision 2:decision own:decision");
  EXPECT_FALSE(sent<PeerDecision>(actions).cells);
  EXPECT_EQ(words_of(led.all(PeerVote{kWord, "result"})), "StoreDone 1:done 2:done own:done");
}

TEST(CoordinatorOverdue, asks_the_nodes_that_are_waited_for_and_names_ranks_and_tensors) {
  LedCoordinator led(kBegun);
  (void)led.by(0, ask_of(kWord));
  EXPECT_EQ(words_of(led.own(PeerOverdue{kWord, false, 12, 60})), "1:who 2:who");
  EXPECT_EQ(words_of(led.by(1, PeerMissing{kWord, {1}, {"w"}, "in backward"})), "");
  const CoordinatorActions actions = led.by(2, PeerMissing{kWord, {2}, {}, ""});
  EXPECT_EQ(words_of(actions), "1:abort 2:abort own:abort");
  const Error& error = sent<PeerAbort>(actions).error;
  EXPECT_EQ(error.code, ErrorCode::StepTimeout);
  EXPECT_EQ(
      error.message, "step 12 was not finished within 60.0 s: rank 1 on node 'n1', in backward; rank 2 on node 'n2'"
  );
  EXPECT_EQ(error.ranks, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(error.tensors, std::vector<std::string>{"w"});
  EXPECT_EQ(error.node, "n1");
  EXPECT_EQ(error.waited_s, 60);
}

/// The lane of node 1 waits for a bucket that cannot be summed before rank 2 is ready.
TEST(CoordinatorOverdue, a_node_whose_ranks_are_late_is_named_before_one_whose_lane_waits) {
  LedCoordinator led(kBegun);
  (void)led.by(0, ask_of(kWord));
  (void)led.own(PeerOverdue{kWord, false, 12, 60});
  (void)led.by(1, PeerMissing{kWord, {}, {}, "the lane: 0 of 2 buckets reduced with the other nodes"});
  const CoordinatorActions actions = led.by(2, PeerMissing{kWord, {2}, {}, "rank 2"});
  const Error& error = sent<PeerAbort>(actions).error;
  EXPECT_EQ(
      error.message,
      "step 12 was not finished within 60.0 s: node 'n1', the lane: 0 of 2 buckets reduced with the other nodes; rank "
      "2 "
      "on node 'n2'"
  );
  EXPECT_EQ(error.ranks, std::vector<std::int64_t>{2});
  EXPECT_EQ(error.node, "n2");
}

TEST(CoordinatorOverdue, a_node_that_does_not_say_it_within_a_second_is_named_itself) {
  LedCoordinator led(kBegun, CoordinatorPhase::Voting);
  (void)led.by(0, PeerVote{kWord, "result"});
  (void)led.by(1, PeerVote{kWord, "result"});
  EXPECT_EQ(words_of(led.own(PeerOverdue{kWord, false, 12, 60})), "2:who");
  const CoordinatorActions actions = led.machine.on_time(kNow + CoordinatorMachine::kWho);
  EXPECT_EQ(
      sent<PeerAbort>(actions).error.message,
      "step 12 was not finished within 60.0 s: node 'n2' does not say what it waits for"
  );
}

TEST(CoordinatorOverdue, half_of_the_time_is_a_warning_and_the_end_of_it_is_asked_for_again) {
  LedCoordinator led(kBegun);
  (void)led.by(0, ask_of(kWord));
  (void)led.by(1, ask_of(kWord));
  EXPECT_EQ(words_of(led.own(PeerOverdue{kWord, true, 12, 30})), "2:who");
  EXPECT_EQ(words_of(led.by(1, PeerOverdue{kWord, true, 12, 30})), "") << "it is asked already";
  EXPECT_EQ(words_of(led.by(2, PeerMissing{kWord, {2}, {}, ""})), "WarnHalfTime");
  EXPECT_EQ(words_of(led.by(1, PeerOverdue{kWord, false, 12, 60})), "2:who");
  EXPECT_EQ(words_of(led.by(2, PeerMissing{kWord, {2}, {}, ""})), "1:abort 2:abort own:abort");
}

TEST(CoordinatorOverdue, an_attempt_that_is_over_asks_nobody) {
  LedCoordinator led(kBegun);
  EXPECT_EQ(words_of(led.own(PeerOverdue{kWord - 1, false, 12, 60})), "");
  (void)led.own(PeerOverdue{kWord, false, 12, 60});
  (void)led.by(1, PeerFail{kWord, {}});
  const std::string later = words_of(led.machine.on_time(kNow + CoordinatorMachine::kWho));
  EXPECT_EQ(later, "1:beat 2:beat") << "the next attempt is not aborted for the one before";
}

}  // namespace
}  // namespace gradsync::engine
