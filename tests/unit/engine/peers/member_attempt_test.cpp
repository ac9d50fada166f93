// The member's table of an attempt, and what becomes of an attempt in doubt.

#include "unit/engine/peers/machine_states.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace gradsync::engine {
namespace {

using MemberState = MemberMachine::State;
using MemberPhase = MemberMachine::Phase;

constexpr std::array kPhases{MemberPhase::Idle, MemberPhase::Asked, MemberPhase::Decided, MemberPhase::Voted};

const char* name_of_phase(MemberPhase phase) {
  return std::array{"Idle", "Asked", "Decided", "Voted", "Doubt"}[static_cast<std::size_t>(phase)];
}

/// What follows, and the phase then: "ask → Asked"; an empty column: nothing, and the phase stays.
struct AttemptRow {
  const char* event;
  std::function<MemberActions(LedMember&)> happen;
  std::array<const char*, 4> follows;
};

const Error kAborted = make_error(ErrorCode::StepMismatch, "ranks disagree");

const std::vector<AttemptRow>& attempt_rows() {
  static const std::vector<AttemptRow> rows{
      {"all local ranks asked",
       [](LedMember& led) { return led.local(LocalsAsked{ask_of(kWord)}); },
       {"ask → Asked", "", "", ""}},
      {"ranks ask for another attempt",
       [](LedMember& led) { return led.local(LocalsAsked{ask_of(kWord + 1)}); },
       {"", "", "", ""}},
      {"compare",
       [](LedMember& led) {
         return led.told_by(PeerCompare{kWord, {0}, {}});
       },
       {"", "WantRows → Asked", "", ""}},
      {"rows",
       [](LedMember& led) {
         return led.local(LocalRows{{kWord, {1}, {}}});
       },
       {"", "rows → Asked", "", ""}},
      {"decision", [](LedMember& led) { return led.told_by(decision_of(kWord)); }, {"", "SumsKnown → Decided", "", ""}},
      {"decision without the sums that were asked for",
       [](LedMember& led) {
         return led.told_by(PeerDecision{kWord, std::nullopt, {}, false});
       },
       {"", "", "", ""}},
      {"prepared",
       [](LedMember& led) {
         return led.local(Voted{kWord, "result", std::nullopt});
       },
       {"", "", "vote → Voted", ""}},
      {"local failure",
       [](LedMember& led) {
         return led.local(LocalsFailed{kWord, kAborted});
       },
       {"fail → Idle", "fail → Asked", "fail → Decided", ""}},
      {"a data connection is lost",
       [](LedMember& led) {
         return led.local(LocalsFailed{kWord, make_error(ErrorCode::NodeLost, "the connection to node 'n2' was lost")});
       },
       {"", "", "", ""}},
      {"done",
       [](LedMember& led) { return led.told_by(PeerDone{kWord}); },
       {"leave EpochEnded join → Idle",
        "leave EpochEnded join → Idle",
        "leave EpochEnded join → Idle",
        "VerdictReached → Idle"}},
      {"abort",
       [](LedMember& led) {
         return led.told_by(PeerAbort{kWord, kAborted});
       },
       {"AttemptRefused → Idle", "AttemptRefused → Idle", "AttemptRefused → Idle", "VerdictReached → Idle"}},
      {"who",
       [](LedMember& led) { return led.told_by(PeerWho{kWord}); },
       {"WhoIsMissing → Idle", "WhoIsMissing → Asked", "WhoIsMissing → Decided", "WhoIsMissing → Voted"}},
      {"missing",
       [](LedMember& led) {
         return led.local(LocalsMissing{{kWord, {1}, {}, ""}});
       },
       {"missing → Idle", "missing → Asked", "missing → Decided", "missing → Voted"}},
      {"a rank's time is over",
       [](LedMember& led) {
         return led.local(LocalsOverdue{{kWord, false, 1, 60}});
       },
       {"overdue → Idle", "overdue → Asked", "overdue → Decided", "overdue → Voted"}},
      {"end, this attempt failed",
       [](LedMember& led) {
         return led.told_by(PeerEnd{kEpoch, kWord, kAborted});
       },
       {"EpochEnded join → Idle",
        "EpochEnded join → Idle",
        "EpochEnded join → Idle",
        "VerdictReached EpochEnded join → Idle"}},
      {"link ended",
       [](LedMember& led) { return led.machine.on_link_ended(kNow, "reset"); },
       {"EpochEnded → Idle", "EpochEnded → Idle", "EpochEnded → Idle", "EpochEnded → Doubt"}},
      {"a rank is lost",
       [](LedMember& led) { return led.local(LocalsLeft{make_error(ErrorCode::RankLost, "rank 1")}); },
       {"leave EpochEnded join → Idle",
        "leave EpochEnded join → Idle",
        "leave EpochEnded join → Idle",
        "leave EpochEnded join → Doubt"}},
  };
  return rows;
}

TEST(MemberAttempt, does_in_every_phase_what_the_table_says) {
  for (const AttemptRow& row : attempt_rows()) {
    for (const MemberPhase phase : kPhases) {
      LedMember led(MemberState::Begun, phase);
      ASSERT_EQ(led.machine.phase(), phase);
      const MemberActions actions = row.happen(led);
      const std::string expected = row.follows[static_cast<std::size_t>(phase)];
      const std::string follows = words_of(actions) + " → " + name_of_phase(led.machine.phase());
      EXPECT_EQ(follows, expected.empty() ? std::string(" → ") + name_of_phase(phase) : expected)
          << row.event << " in " << name_of_phase(phase);
    }
  }
}

TEST(MemberAttempt, a_lost_data_connection_is_told_when_nobody_has_said_why) {
  const Error lost = make_error(ErrorCode::NodeLost, "the connection to node 'n2' was lost");
  LedMember led(MemberState::Begun, MemberPhase::Idle);
  EXPECT_EQ(words_of(led.local(LocalsFailed{kWord, lost})), "");
  EXPECT_EQ(led.machine.next_deadline(), kNow + MemberMachine::kCause);
  EXPECT_EQ(words_of(led.machine.on_time(kNow + MemberMachine::kCause)), "fail");
  LedMember told(MemberState::Begun, MemberPhase::Idle);
  EXPECT_EQ(words_of(told.local(LocalsFailed{kWord, lost})), "");
  EXPECT_EQ(words_of(told.told_by(PeerEnd{kEpoch, kWord, kAborted})), "EpochEnded join");
  EXPECT_EQ(words_of(told.machine.on_time(kNow + MemberMachine::kCause)), "") << "it was told";
}

TEST(MemberAttempt, the_next_attempt_follows_each_verdict_and_each_abort) {
  LedMember led(MemberState::Begun, MemberPhase::Voted);
  EXPECT_EQ(told<VerdictReached>(led.told_by(PeerDone{kWord})).verdict, Verdict::Done);
  EXPECT_EQ(words_of(led.told_by(PeerDone{kWord})), "") << "it comes once";
  EXPECT_EQ(words_of(led.local(LocalsAsked{ask_of(kWord + 1)})), "ask");
  EXPECT_EQ(told<AttemptRefused>(led.told_by(PeerAbort{kWord + 1, kAborted})).error.message, kAborted.message);
  EXPECT_EQ(words_of(led.local(LocalsAsked{ask_of(kWord + 2)})), "ask");
}

TEST(MemberAttempt, an_abort_after_the_vote_is_the_verdict_and_has_the_error) {
  LedMember led(MemberState::Begun, MemberPhase::Voted);
  const MemberActions actions = led.told_by(PeerAbort{kWord, kAborted});
  EXPECT_EQ(told<VerdictReached>(actions).verdict, Verdict::Failed);
  EXPECT_EQ(told<VerdictReached>(actions).error->message, kAborted.message);
}

TEST(MemberAttempt, a_norm_is_decided_without_a_vote_and_clipped_by_the_same_word) {
  LedMember led(MemberState::Begun);
  (void)led.local(LocalsAsked{ask_of(kWord, Ask::Kind::NormOnly)});
  EXPECT_EQ(words_of(led.told_by(decision_of(kWord))), "SumsKnown");
  EXPECT_EQ(led.machine.phase(), MemberPhase::Idle);
  EXPECT_EQ(words_of(led.local(LocalsAsked{ask_of(kWord, Ask::Kind::Clip)})), "ask");
  EXPECT_EQ(words_of(led.told_by(decision_of(kWord))), "") << "the sums were of norm.compute";
  EXPECT_EQ(words_of(led.told_by(PeerDecision{kWord, std::nullopt, {}, false})), "SumsKnown");
  EXPECT_EQ(led.machine.phase(), MemberPhase::Decided);
}

TEST(MemberAttempt, a_coordinator_that_does_not_answer_within_two_seconds_loses_its_link) {
  for (const MemberPhase phase : kPhases) {
    LedMember led(MemberState::Begun, phase);
    const TimePoint over = kNow + std::chrono::seconds(60);
    (void)led.machine.on_message(over, PeerBeat{});
    (void)led.machine.on_local(over, LocalsOverdue{{kWord, false, 1, 60}});
    EXPECT_EQ(words_of(led.machine.on_time(over + MemberMachine::kOverdue - Milliseconds(1))), "beat");
    const MemberActions actions = led.machine.on_time(over + MemberMachine::kOverdue);
    EXPECT_EQ(words_of(actions), phase == MemberPhase::Voted ? "drop EpochEnded VerdictReached" : "drop EpochEnded");
    if (phase == MemberPhase::Voted) {
      EXPECT_EQ(told<VerdictReached>(actions).verdict, Verdict::Unknown);
      EXPECT_EQ(told<VerdictReached>(actions).error->code, ErrorCode::StepInDoubt);
    }
  }
}

TEST(MemberAttempt, half_of_the_time_drops_no_link) {
  LedMember led(MemberState::Begun, MemberPhase::Asked);
  (void)led.local(LocalsOverdue{{kWord, true, 1, 30}});
  EXPECT_EQ(words_of(led.machine.on_time(kNow + std::chrono::seconds(3))), "beat");
}

/// What tells a member in doubt what came of its attempt, and what the job is told.
struct RulingRow {
  const char* event;
  ToMember message;
  Verdict verdict;
  ErrorCode code;  ///< unless it is done
};

TEST(MemberDoubt, ends_with_a_ruling_or_with_a_fact_that_names_the_attempt) {
  const std::vector<RulingRow> rows{
      {"ruling", PeerRuling{kWord, Verdict::Done}, Verdict::Done, {}},
      {"ruling", PeerRuling{kWord, Verdict::Failed}, Verdict::Failed, ErrorCode::NodeLost},
      {"ruling", PeerRuling{kWord, Verdict::Unknown}, Verdict::Unknown, ErrorCode::StepInDoubt},
      {"end", PeerEnd{kEpoch, kWord, kAborted}, Verdict::Failed, ErrorCode::StepMismatch},
      {"done", PeerDone{kWord}, Verdict::Done, {}},
      {"abort", PeerAbort{kWord, kAborted}, Verdict::Failed, ErrorCode::StepMismatch},
  };
  for (const RulingRow& row : rows) {
    LedMember led(MemberState::Begun, MemberPhase::Doubt);
    ASSERT_EQ(led.machine.doubt(), kWord);
    const MemberActions actions = led.told_by(row.message);
    ASSERT_EQ(words_of(actions), "VerdictReached") << row.event;
    const auto& verdict = told<VerdictReached>(actions);
    EXPECT_EQ(verdict.word, kWord);
    EXPECT_EQ(verdict.verdict, row.verdict);
    EXPECT_EQ(verdict.error.has_value(), row.verdict != Verdict::Done);
    EXPECT_EQ(verdict.error.value_or(make_error(row.code, "")).code, row.code) << row.event;
    EXPECT_EQ(led.machine.doubt(), 0U);
    EXPECT_EQ(words_of(led.told_by(row.message)), "") << "a verdict comes once";
  }
}

TEST(MemberDoubt, is_not_ended_by_what_names_another_attempt) {
  LedMember led(MemberState::Begun, MemberPhase::Doubt);
  for (const ToMember& message :
       {ToMember(PeerRuling{kWord + 1, Verdict::Done}),
        ToMember(PeerEnd{kEpoch, kWord + 1, kAborted}),
        ToMember(PeerDone{kWord + 1}),
        ToMember(PeerAbort{kWord + 1, kAborted})}) {
    EXPECT_EQ(words_of(led.told_by(message)), "");
  }
  EXPECT_EQ(led.machine.doubt(), kWord);
}

TEST(MemberDoubt, is_said_when_joining_also_before_a_lost_rank_is_replaced) {
  LedMember led(MemberState::Begun, MemberPhase::Voted);
  const MemberActions actions = led.local(LocalsLeft{make_error(ErrorCode::RankLost, "rank 1")});
  const auto& join = sent<PeerJoin>(actions);
  EXPECT_FALSE(join.declared);
  EXPECT_EQ(join.words.doubt, kWord);
  EXPECT_TRUE(join.words.known);
  EXPECT_EQ(words_of(led.told_by(PeerRuling{kWord, Verdict::Done})), "VerdictReached");
  const auto again = sent<PeerJoin>(led.local(LocalsChanged{{1}, {}, declared_of(1)}));
  EXPECT_EQ(again.words.doubt, 0U);
  EXPECT_EQ(again.words.done, kWord);
}

TEST(MemberDoubt, no_epoch_is_prepared_meanwhile) {
  LedMember led(MemberState::Begun, MemberPhase::Doubt);
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 1))), "");
  (void)led.told_by(PeerRuling{kWord, Verdict::Failed});
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 1))), "PrepareEpoch");
}

TEST(MemberDoubt, ends_with_the_deadline_of_the_rank_that_a_pause_may_have_moved) {
  LedMember led(MemberState::Begun, MemberPhase::Decided);
  (void)led.local(Voted{kWord, "result", kNow + std::chrono::seconds(90)});
  (void)led.machine.on_link_ended(kNow, "reset");
  (void)led.machine.on_time(kNow + MemberMachine::kFirstRetry);
  EXPECT_EQ(words_of(led.machine.on_time(kNow + std::chrono::seconds(60))), "");
  const MemberActions actions = led.machine.on_time(kNow + std::chrono::seconds(90));
  EXPECT_EQ(words_of(actions), "VerdictReached");
  EXPECT_EQ(told<VerdictReached>(actions).error->code, ErrorCode::StepInDoubt);
}

TEST(MemberDoubt, of_the_daemon_before_is_joined_with_and_ruled_on_once) {
  SomeDeclarations declarations;
  MemberMachine machine(LedMember::options(), declarations);
  (void)machine.on_local(kNow, LocalsChanged{{1}, {kWord, kWord - 1, true}, std::nullopt});
  (void)machine.on_link(kNow, "10.0.0.1");
  const auto join = sent<PeerJoin>(machine.on_message(kNow, PeerHello{3, "a", "1", kPeerProtocol, "n0", "10.0.0.1"}));
  EXPECT_EQ(join.words.doubt, kWord);
  EXPECT_EQ(join.words.done, kWord - 1);
  EXPECT_FALSE(join.declared);
  EXPECT_EQ(words_of(machine.on_message(kNow, PeerRuling{kWord, Verdict::Done})), "VerdictReached");
  const auto again =
      sent<PeerJoin>(machine.on_local(kNow, LocalsChanged{{1}, {kWord, kWord - 1, true}, declared_of(1)}));
  EXPECT_EQ(again.words.doubt, 0U) << "a rank that says it again is late";
  EXPECT_EQ(again.words.done, kWord);
}

}  // namespace
}  // namespace gradsync::engine
