// Calls that come again: after a lost connection, beside one that waits, or with a key of the past.

#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Outcome> clip(Harness& h, std::int64_t rank, std::int64_t step, std::optional<double> max_norm = {}) {
  auto outcome = std::make_shared<Outcome>();
  ClipRequest request;
  request.key = h.keys.at(rank);
  request.step = step;
  request.override_max_norm = max_norm.has_value();
  request.max_norm = max_norm;
  h.engine.clip(h.sessions.at(rank), request, h.listener(rank, outcome));
  return outcome;
}

TEST(Repeat, a_done_step_is_still_known_after_the_next_one_failed) {
  Harness h;
  h.start(3);
  const StepKey key = h.keys.at(0);
  const auto done = h.finish(0, 0);
  h.finish(1, 0);
  h.finish(2, 0);
  h.pump();
  ASSERT_TRUE(done->report);
  h.finish(1, 1);
  h.engine.process_exited(h.sessions.at(2));
  h.keys[0] = key;  // the answer was lost with the connection
  const auto again = h.finish(0, 0);
  ASSERT_TRUE(again->report) << again->error->message;
  EXPECT_EQ(*again->report, *done->report);
}

TEST(Repeat, a_new_process_never_gets_the_report_of_the_one_before) {
  Harness h;
  h.start(2);
  const StepKey key = h.keys.at(1);
  h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.generation = 1;
  h.attach(1, 2);
  h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  h.keys[1] = key;
  EXPECT_EQ(h.finish(1, 0)->error->code, ErrorCode::RankLost);
}

TEST(Repeat, a_recorded_failure_tells_the_epoch_of_now) {
  Harness h;
  h.start(3);
  h.finish(0, 0);
  const StepKey key = h.keys.at(1);
  h.engine.process_exited(h.sessions.at(2));
  h.engine.process_exited(h.sessions.at(0));
  h.keys[1] = key;
  const auto late = h.finish(1, 0);
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->epoch, 3u);
}

TEST(Repeat, a_clip_is_not_answered_with_a_norm_that_still_waits) {
  Harness h;
  h.start(2);
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  const auto measured = h.finish(0, 0, norm);
  const auto early = clip(h, 0, 0);
  ASSERT_TRUE(early->error);
  EXPECT_EQ(early->error->code, ErrorCode::InvalidRequest);
  EXPECT_THAT(early->error->message, HasSubstr("norm.compute"));
  h.finish(1, 0, norm);
  h.pump();
  EXPECT_TRUE(measured->report);
}

TEST(Repeat, a_clip_of_another_step_than_the_norm_is_refused_and_the_step_stays_open) {
  Harness h;
  h.start(1);
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  h.finish(0, 5, norm);
  h.pump();
  const auto other = clip(h, 0, 6);
  ASSERT_TRUE(other->error);
  EXPECT_EQ(other->error->code, ErrorCode::StepMismatch);
  EXPECT_FALSE(other->error->epoch);
  const auto right = clip(h, 0, 5);
  h.pump();
  EXPECT_TRUE(right->report);
}

TEST(Repeat, a_second_call_with_other_arguments_is_refused_and_the_first_goes_on) {
  Harness h;
  h.start(2);
  const auto first = h.finish(0, 0);
  FinishRequest scaled = Harness::ready_all();
  scaled.scale = 2;
  EXPECT_EQ(h.finish(0, 0, scaled)->error->code, ErrorCode::InvalidRequest);
  EXPECT_EQ(h.finish(0, 1)->error->code, ErrorCode::InvalidRequest);
  h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(first->report);
}

TEST(Repeat, a_call_of_another_attempt_leaves_the_one_that_waits) {
  Harness h;
  h.start(2);
  const auto first = h.finish(0, 0);
  const StepKey key = h.keys.at(0);
  h.keys[0].attempt = 7;
  EXPECT_EQ(h.finish(0, 0)->error->code, ErrorCode::StaleAttempt);
  h.keys[0] = key;
  h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(first->report);
}

TEST(Repeat, a_declaration_under_way_is_taken_over_by_the_next) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto lost = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.engine.connection_lost(h.sessions.at(0));
  h.attach(0, 2);
  const auto again = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  ASSERT_TRUE(lost->error);
  EXPECT_EQ(lost->error->code, ErrorCode::Superseded);
  EXPECT_TRUE(again->result);
}

TEST(Repeat, a_declaration_whose_answer_was_lost_is_answered_again_without_the_others) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const std::uint64_t buffer = h.allocate(0);
  h.declare(0, Harness::declaration({Harness::tensor("a")}), buffer);
  h.engine.connection_lost(h.sessions.at(0));
  h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  const auto waiting = h.finish(1, 0);
  EXPECT_TRUE(h.attach(0, 2).resumed);
  const auto again = h.declare(0, Harness::declaration({Harness::tensor("a")}), buffer);
  ASSERT_TRUE(again->result);
  EXPECT_EQ(again->result->epoch, 1u);
  h.finish(0, 0);
  h.pump();
  EXPECT_TRUE(waiting->report);
}

TEST(Repeat, max_norm_zero_for_the_first_clip_group_does_not_ask_the_others) {
  Harness h;
  plan::RankDeclaration declaration = Harness::declaration({Harness::tensor("a"), Harness::tensor("b")});
  declaration.tensors.own()[1].clip_group = "b";
  declaration.options.clip = {{"all", {1.0, plan::ZeroRule::Off}}, {"b", {2.0, plan::ZeroRule::Refuse}}};
  h.attach(0, 1);
  h.declare(0, declaration);
  h.pump();
  FinishRequest request = Harness::ready_all();
  request.override_max_norm = true;
  request.max_norm = 0.0;
  const auto outcome = h.finish(0, 0, request);
  h.pump();
  ASSERT_TRUE(outcome->report);
  EXPECT_EQ(h.lane.finished.at(0).rules.at(0).max_norm, 0.0);
  EXPECT_EQ(h.lane.finished.at(0).rules.at(1).max_norm, 2.0);
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  h.finish(0, 1, norm);
  h.pump();
  EXPECT_EQ(clip(h, 0, 1, 0.0)->error->path, "max_norm") << "clip.apply asks every group";
  const auto clipped = clip(h, 0, 1, 3.0);
  h.pump();
  ASSERT_TRUE(clipped->report);
  EXPECT_EQ(clipped->report->groups.at(0).threshold, 3.0);
  EXPECT_EQ(clipped->report->groups.at(1).threshold, 3.0);
}

}  // namespace
}  // namespace gradsync::engine
