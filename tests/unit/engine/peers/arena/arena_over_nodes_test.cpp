// Steps of data path arena over several engines: the sums are those of all ranks, to the bit, on all of them, and what
// fails on one node ends the epoch of all.

#include "unit/engine/peers/arena/arena_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ArenaOverNodes : public testing::Test {
 protected:
  using Calls = std::vector<std::shared_ptr<LinkedEngines::Call>>;

  static constexpr double kNoClip = 1e9;

  void make(std::int64_t nodes, std::int64_t per_node) {
    world_.emplace(nodes, per_node);
    all_ = std::make_unique<LinkedEngines>(static_cast<std::size_t>(nodes), per_node, small_buckets());
  }

  LinkedEngines& all() { return *all_; }

  void start(std::optional<double> max_norm = kNoClip) {
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      all().declare(rank, world_->declaration(rank, max_norm));
    }
    all().pump();
    expect_declared();
  }

  void expect_declared() {
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      ASSERT_TRUE(all().declared(rank)) << rank << ": "
                                        << (all().refusal(rank) ? all().refusal(rank)->message : "still waits");
    }
  }

  /// Each rank gives other numbers in each step.
  void write(std::int64_t seed) {
    given_.clear();
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      given_[rank] = {seed, {}};
      world_->write(all(), rank, seed);
    }
  }

  std::shared_ptr<LinkedEngines::Call> finish(std::int64_t rank, std::int64_t step, FinishRequest request = {}) {
    request.unused = world_->rows_unused(rank, given_[rank].unused);
    return all().finish(rank, step, request);
  }

  Calls finish_all(std::int64_t step, const FinishRequest& request = {}) {
    Calls calls;
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      calls.push_back(finish(rank, step, request));
    }
    all().pump();
    return calls;
  }

  void expect_done(const Calls& calls, float multiplier = 1) {
    for (const auto& call : calls) {
      ASSERT_TRUE(call->report) << (call->error ? call->error->message : "still waits");
      EXPECT_EQ(call->calls, 1);
      EXPECT_EQ(call->report->norm, static_cast<double>(static_cast<float>(world_->norm_of(given_))));
      EXPECT_EQ(call->report->policy_digest, calls.front()->report->policy_digest);
    }
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      EXPECT_EQ(world_->difference(all(), rank, given_, multiplier), "");
    }
  }

  static void expect_failed(const Calls& calls, ErrorCode code, const std::string& said) {
    for (const auto& call : calls) {
      ASSERT_TRUE(call->error) << "still waits, or done";
      EXPECT_EQ(call->calls, 1);
      EXPECT_EQ(call->error->code, code) << call->error->message;
      EXPECT_THAT(call->error->message, HasSubstr(said));
    }
  }

  /// The epoch forms again by itself, with new connections, and a step is done in it.
  void expect_goes_on(std::int64_t seed) {
    all().pass(Milliseconds(2'000));
    hear_of_the_epoch();
    write(seed);
    expect_done(finish_all(seed));
  }

  /// Ranks that no call has told of the end of the epoch hear of it in the next one.
  void hear_of_the_epoch() {
    std::uint64_t last = 0;
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      last = std::max(last, all().key(rank).epoch);
    }
    for (std::int64_t rank = 0; rank < world_->world(); ++rank) {
      if (all().key(rank).epoch < last) {
        const auto call = all().finish(rank, 0);
        all().pump();
        ASSERT_TRUE(call->error) << "rank " << rank;
      }
      EXPECT_EQ(attempt_word(all().key(rank)), attempt_word(all().key(0))) << "rank " << rank;
    }
  }

  NodeLane& lane(std::size_t node) { return all().lane(node); }

  std::optional<ArenaWorld> world_;
  ArenaWorld::Given given_;

 private:
  std::unique_ptr<LinkedEngines> all_;
};

TEST_F(ArenaOverNodes, give_all_ranks_the_sums_of_all) {
  for (const auto& [nodes, per_node] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {3, 1}, {2, 3}, {4, 2}}) {
    SCOPED_TRACE(testing::Message() << nodes << " nodes with " << per_node);
    make(nodes, per_node);
    start();
    EXPECT_GT(all().plan_of(0).buckets.size(), 4u);
    for (std::int64_t step = 0; step < 4; ++step) {
      write(step);
      const Calls calls = finish_all(step);
      expect_done(calls);
      EXPECT_FALSE(calls.front()->report->clipped);
      EXPECT_THAT(calls.front()->report->absent, IsEmpty());
      std::uint64_t elements = 0;
      for (const ArenaWorld::Tensor& tensor : world_->tensors()) {
        elements += static_cast<std::uint64_t>(tensor.elements);
      }
      EXPECT_EQ(calls.back()->report->counted_elements, elements) << "each is counted once";
    }
  }
}

TEST_F(ArenaOverNodes, partial_sums_travel_in_bfloat16_where_all_ranks_declare_it) {
  make(2, 2);
  const auto declare = [&](std::int64_t rank, plan::PartialSums sums) {
    plan::RankDeclaration declared = world_->declaration(rank, kNoClip);
    declared.options.partial_sums = sums;
    all().declare(rank, declared);
  };
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    declare(rank, rank < 3 ? plan::PartialSums::BFloat16 : plan::PartialSums::Exact);
  }
  all().pump();
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(all().refusal(rank)) << rank;
    EXPECT_EQ(all().refusal(rank)->code, ErrorCode::PlanMismatch);
    EXPECT_EQ(all().refusal(rank)->path, "options.partial_sums");
    declare(rank, plan::PartialSums::BFloat16);
  }
  all().pump();
  ASSERT_NO_FATAL_FAILURE(expect_declared());
  EXPECT_EQ(all().engine_of(0).status(std::nullopt).front().partial_sums, "bfloat16");
  write(1);
  const Calls calls = finish_all(0);
  expect_done(calls);  // small integers are what they were
  EXPECT_EQ(calls.back()->report->partial_sums, "bfloat16");
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    world_->write(all(), rank, 2);
  }
  const float between = 1 + 0x1p-7F + 0x1p-8F;  // two that bfloat16 has
  std::fill_n(all().input(2, world_->row_of(2, "all")), 130, between);
  std::fill_n(all().input(3, world_->row_of(3, "all")), 130, 0.0F);
  ASSERT_TRUE(finish_all(1).front()->report);
  std::set<float> partials;
  for (std::int64_t i = 0; i < 130; ++i) {
    const float sum = all().output(0, world_->row_of(0, "all"))[i];
    EXPECT_EQ(all().output(3, world_->row_of(3, "all"))[i], sum);
    partials.insert(sum - ArenaWorld::value(2, 0, i) - ArenaWorld::value(2, 1, i));
  }
  EXPECT_THAT(partials, ElementsAre(between, 1 + 0x1p-6F)) << "a node does not round what it adds up itself";
}

TEST_F(ArenaOverNodes, multiply_alike_on_all_ranks) {
  make(2, 2);
  start(1.0);
  for (std::int64_t step = 0; step < 4; ++step) {
    write(step);
    const Calls calls = finish_all(step);
    ASSERT_TRUE(calls.front()->report) << (calls.front()->error ? calls.front()->error->message : "still waits");
    EXPECT_TRUE(calls.front()->report->clipped);
    expect_done(calls, static_cast<float>(calls.front()->report->coefficient));
  }
}

TEST_F(ArenaOverNodes, may_be_made_in_halves) {
  make(2, 2);
  start(1.0);
  write(5);
  FinishRequest norm;
  norm.kind = FinishKind::NormOnly;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    given_[rank].unused = {"mean"};
  }
  given_[1].unused.insert("small");
  given_[2].unused.insert("small");
  expect_done(finish_all(0, norm));
  Calls clips;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    clips.push_back(all().clip(rank, 0));
  }
  all().pump();
  ASSERT_TRUE(clips.front()->report) << (clips.front()->error ? clips.front()->error->message : "still waits");
  expect_done(clips, static_cast<float>(clips.front()->report->coefficient));
  EXPECT_EQ(all().output(3, world_->row_of(3, "mean"))[1], ArenaWorld::value(5, 3, 1)) << "absent on every node";
  write(6);
  const Calls whole = finish_all(1);
  ASSERT_TRUE(whole.front()->report);
  expect_done(whole, static_cast<float>(whole.front()->report->coefficient));
}

TEST_F(ArenaOverNodes, leave_out_what_is_unused_and_say_what_is_absent_everywhere) {
  make(2, 2);
  start();
  write(1);
  given_[0].unused = {"all", "mean"};
  given_[1].unused = {"mean", "first", "rows"};
  given_[2].unused = {"mean", "small", "cut"};
  given_[3].unused = {"mean", "all", "rows"};
  const Calls calls = finish_all(0);
  expect_done(calls);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const StepReport& report = *calls[static_cast<std::size_t>(rank)]->report;
    EXPECT_THAT(report.absent, ElementsAre(world_->row_of(rank, "mean")));
    EXPECT_THAT(report.missing, IsEmpty());
  }
  EXPECT_EQ(all().output(0, world_->row_of(0, "mean"))[0], ArenaWorld::value(1, 0, 0)) << "nothing is written";
  write(2);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    given_[rank].unused = {"first", "last"};
  }
  expect_done(finish_all(1));
}

TEST_F(ArenaOverNodes, ranks_without_a_gradient_of_a_copy_that_is_not_summed_over_nodes_are_named) {
  make(2, 2);
  start();
  write(1);
  given_[2].unused = given_[3].unused = {"copies"};
  const Calls calls = finish_all(0);
  expect_done(calls);
  ASSERT_EQ(calls[0]->report->missing.size(), 1u);
  EXPECT_EQ(calls[0]->report->missing[0].tensor, "copies");
  EXPECT_THAT(calls[0]->report->missing[0].ranks, ElementsAre(2, 3));
}

TEST_F(ArenaOverNodes, a_part_whose_first_sum_has_no_gradient_is_counted_from_the_next_one) {
  make(3, 2);
  start();
  write(1);
  given_[0].unused = given_[1].unused = {"copies"};
  const Calls calls = finish_all(0);
  expect_done(calls);
  for (const auto& call : calls) {
    ASSERT_EQ(call->report->missing.size(), 1u);
    EXPECT_EQ(call->report->missing[0].tensor, "copies");
    EXPECT_THAT(call->report->missing[0].ranks, ElementsAre(0, 1));
    ASSERT_EQ(call->report->divergence.size(), 1u) << "zeros are no gradient";
    EXPECT_THAT(call->report->divergence[0].ranks, ElementsAre(0, 1, 4, 5));
  }
  write(2);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    given_[rank].unused = {"copies"};
  }
  expect_done(finish_all(1));
}

TEST_F(ArenaOverNodes, copies_on_several_nodes_that_differ_are_named_with_their_ranks_in_steps_that_compare) {
  make(3, 2);
  start();
  const auto step = [&](std::int64_t number, std::set<std::int64_t> other_nodes) {
    write(1);
    for (std::int64_t rank = 2; rank < 6; ++rank) {
      const std::int64_t like = other_nodes.contains(rank / 2) ? rank : rank % 2;
      for (std::int64_t i = 0; i < 11; ++i) {
        all().input(rank, world_->row_of(rank, "copies"))[i] = ArenaWorld::value(1, like, i);
      }
    }
    return finish_all(number);
  };
  for (const auto& call : step(0, {1, 2})) {
    ASSERT_TRUE(call->report) << (call->error ? call->error->message : "still waits");
    ASSERT_EQ(call->report->divergence.size(), 1u);
    EXPECT_EQ(call->report->divergence[0].tensor, "copies");
    EXPECT_THAT(call->report->divergence[0].ranks, ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(call->report->divergence[0].majority, IsEmpty());
    EXPECT_THAT(call->report->divergence[0].suspects, ElementsAre(0, 1, 2, 3, 4, 5));
  }
  EXPECT_THAT(all().alerts(2), ElementsAre("divergence"));
  for (const auto& call : step(1, {2})) {
    ASSERT_TRUE(call->report);
    ASSERT_EQ(call->report->divergence.size(), 1u);
    EXPECT_THAT(call->report->divergence[0].ranks, ElementsAre(4, 5));
    EXPECT_THAT(call->report->divergence[0].majority, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(call->report->divergence[0].suspects, ElementsAre(4, 5));
  }
  EXPECT_THAT(step(2, {}).front()->report->divergence, IsEmpty());
  EXPECT_THAT(step(3, {1}).front()->report->divergence, IsEmpty()) << "only some steps compare";
}

TEST_F(ArenaOverNodes, name_a_value_that_is_not_finite_on_all_ranks_with_the_rank_that_brought_it) {
  make(2, 2);
  start();
  write(1);
  all().input(3, world_->row_of(3, "all"))[100] = std::numeric_limits<float>::quiet_NaN();
  FinishRequest request;
  request.micro_batch = 2;
  for (std::int64_t rank = 0; const auto& call : finish_all(0, request)) {
    ASSERT_TRUE(call->report) << (call->error ? call->error->message : "still waits");
    EXPECT_TRUE(std::isnan(call->report->norm));
    EXPECT_TRUE(call->report->found_inf);
    ASSERT_EQ(call->report->nonfinite.size(), 1u);
    EXPECT_EQ(call->report->nonfinite[0].tensor, "all");
    EXPECT_EQ(call->report->nonfinite[0].count, 1u);
    ASSERT_EQ(call->report->nonfinite[0].inputs.size(), 1u);
    EXPECT_EQ(call->report->nonfinite[0].inputs[0].rank, 3);
    EXPECT_EQ(call->report->nonfinite[0].inputs[0].micro_batch.has_value(), rank >= 2) << "its node knows";
    ++rank;
  }
}

TEST_F(ArenaOverNodes, launch_buckets_in_the_order_of_the_plan_when_the_ranks_of_the_node_are_ready) {
  make(2, 2);
  start();
  write(3);
  const auto buckets = static_cast<std::uint32_t>(all().plan_of(0).buckets.size());
  for (std::uint32_t bucket = buckets; bucket-- > 0;) {
    for (const std::int64_t rank : {2, 3}) {
      if (!all().plan_of(rank).layout(rank).bucket_rows[bucket].empty()) {
        all().bucket_ready(rank, bucket);
      }
    }
  }
  all().pump();  // they wait for the other node
  expect_done(finish_all(0));
}

TEST_F(ArenaOverNodes, policies_take_a_state_alike_before_the_first_bucket) {
  make(2, 1);
  start();
  write(0);
  expect_done(finish_all(0));
  const Result<PolicyExport> state = all().engine_of(1).export_policies(all().session(1));
  ASSERT_TRUE(state);
  const Calls imports{all().import(0, state->state), all().import(1, state->state)};
  all().pump();
  for (const auto& import : imports) {
    ASSERT_TRUE(import->report) << (import->error ? import->error->message : "still waits");
  }
  write(1);
  expect_done(finish_all(1));
}

TEST_F(ArenaOverNodes, what_fails_on_one_node_ends_the_epoch_of_all_and_the_next_one_forms_by_itself) {
  make(3, 2);
  start();
  write(1);
  const std::uint64_t epoch = all().key(0).epoch;
  Calls calls{finish(0, 0), finish(1, 0), finish(4, 0), finish(5, 0)};
  all().pump();
  EXPECT_EQ(calls[0]->calls, 0);
  calls.push_back(finish(2, 0));
  calls.push_back(finish(3, 7));
  all().pump();
  expect_failed(calls, ErrorCode::StepMismatch, "rank 3");
  EXPECT_EQ(calls[0]->error->node, "node1");
  EXPECT_THAT(all().alerts(0), ElementsAre("step_mismatch"));
  EXPECT_GT(all().key(0).epoch, epoch);
  expect_goes_on(2);
}

TEST_F(ArenaOverNodes, nodes_that_ask_for_different_steps_are_named) {
  make(2, 1);
  start();
  write(1);
  const Calls calls{finish(0, 7), finish(1, 8)};
  all().pump();
  expect_failed(calls, ErrorCode::StepMismatch, "node1");
  expect_goes_on(3);
}

TEST_F(ArenaOverNodes, a_lane_that_fails_is_named_and_nothing_of_the_attempt_is_done) {
  make(2, 2);
  start();
  write(1);
  lane(1).fail_next();
  const Calls calls = finish_all(0);
  expect_failed(calls, ErrorCode::StepFailed, "scripted failure");
  EXPECT_EQ(calls[0]->error->node, "node1");
  expect_goes_on(4);
}

TEST_F(ArenaOverNodes, a_connection_that_breaks_names_the_node_at_its_other_end) {
  make(3, 1);
  start();
  write(1);
  all().network().cut(1, 2);
  const Calls calls = finish_all(0);
  EXPECT_EQ(calls[0]->calls, 0) << "the other end may know better why";
  all().pass(Milliseconds(1'000));
  for (const auto& call : calls) {
    ASSERT_TRUE(call->error) << "still waits, or done";
    EXPECT_EQ(call->error->code, ErrorCode::NodeLost) << call->error->message;
    EXPECT_THAT(call->error->message, HasSubstr("to node 'node"));
    EXPECT_THAT(call->error->node, testing::AnyOf("node1", "node2"));
    EXPECT_THAT(call->error->ranks, testing::SizeIs(1));
  }
  expect_goes_on(5);
}

TEST_F(ArenaOverNodes, why_a_node_failed_is_heard_before_that_its_connections_closed) {
  make(2, 2);
  start();
  write(1);
  all().hold_lane(1, true);
  for (const std::int64_t rank : {2, 3}) {
    all().bucket_ready(rank, 0);
  }
  Calls calls{finish(0, 0), finish(1, 0)};
  all().pump();
  all().hold_messages(1, true);
  calls.push_back(finish(2, 0));
  calls.push_back(finish(3, 9));
  all().hold_lane(1, false);
  all().pump();
  EXPECT_EQ(calls[0]->calls, 0) << "it knows only that the connections closed";
  all().hold_messages(1, false);
  all().pump();
  expect_failed(calls, ErrorCode::StepMismatch, "rank 3");
  expect_goes_on(6);
}

TEST_F(ArenaOverNodes, a_rank_that_is_lost_ends_the_epoch_also_while_its_bucket_travels) {
  make(2, 2);
  start();
  write(1);
  const Calls waiting{finish(0, 0), finish(1, 0), finish(2, 0)};
  all().pump();
  all().lose(3);
  all().pump();
  expect_failed(waiting, ErrorCode::RankLost, "rank 3");
  EXPECT_FALSE(lane(0).connected());
  all().attach(3);
  all().declare(3, world_->declaration(3, kNoClip));
  all().pump();
  expect_declared();
  expect_goes_on(7);
}

TEST_F(ArenaOverNodes, a_link_that_ends_while_a_bucket_travels_fails_it_on_both_sides) {
  make(2, 2);
  start();
  write(1);
  const Calls waiting{finish(0, 0), finish(1, 0), finish(2, 0)};
  all().pump();
  all().cut(1);
  all().pump();
  expect_failed(waiting, ErrorCode::NodeLost, "node");
  expect_goes_on(8);
}

TEST_F(ArenaOverNodes, a_rank_that_is_late_elsewhere_is_named_when_the_time_is_over) {
  make(2, 2);
  start();
  write(1);
  FinishRequest quick;
  quick.timeout = Milliseconds(4'000);
  Calls calls{finish(0, 0, quick), finish(1, 0, quick), finish(2, 0, quick)};
  all().pump();
  all().pass(Milliseconds(8'000));
  expect_failed(calls, ErrorCode::StepTimeout, "rank 3");
  EXPECT_THAT(calls[0]->error->ranks, ElementsAre(3));
  EXPECT_EQ(calls[0]->error->node, "node1");
  expect_goes_on(9);
}

TEST_F(ArenaOverNodes, a_transfer_that_hangs_fails_with_the_node_that_it_waits_for) {
  make(3, 1);
  start();
  write(1);
  all().hold_lane(2, true);
  FinishRequest quick;
  quick.timeout = Milliseconds(3'000);
  const Calls calls = finish_all(0, quick);
  all().pass(Milliseconds(5'000));
  for (const std::int64_t rank : {0, 1}) {
    const auto& call = calls[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(call->error) << "rank " << rank << " waits";
    EXPECT_EQ(call->error->code, ErrorCode::StepTimeout) << call->error->message;
    EXPECT_THAT(call->error->message, HasSubstr("node 'node2'"));
    EXPECT_THAT(call->error->message, HasSubstr("buckets reduced with the other nodes"));
  }
  EXPECT_EQ(calls[2]->calls, 0) << "its lane may still write";
  all().hold_lane(2, false);
  all().pump();
  ASSERT_TRUE(calls[2]->error);
  expect_goes_on(10);
}

TEST_F(ArenaOverNodes, a_pause_on_another_node_stops_the_clock) {
  make(2, 2);
  start();
  write(1);
  FinishRequest quick;
  quick.timeout = Milliseconds(4'000);
  all().pause(2, true);
  Calls calls{finish(0, 0, quick), finish(1, 0, quick)};
  all().pump();
  all().pass(Milliseconds(30'000));
  EXPECT_EQ(calls[0]->calls, 0);
  all().pause(2, false);
  all().pump();
  calls.push_back(finish(2, 0, quick));
  calls.push_back(finish(3, 0, quick));
  all().pump();
  expect_done(calls);
}

TEST_F(ArenaOverNodes, connections_that_cannot_be_made_refuse_the_epoch_on_all_nodes) {
  make(2, 1);
  all().fail_data(1);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    all().declare(rank, world_->declaration(rank, kNoClip));
  }
  all().pump();
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(all().refusal(rank)) << rank;
    EXPECT_EQ(all().refusal(rank)->code, ErrorCode::NodeRefused) << all().refusal(rank)->message;
    EXPECT_EQ(all().refusal(rank)->node, "node0");
  }
  start();
  write(1);
  expect_done(finish_all(0));
}

TEST_F(ArenaOverNodes, connections_that_come_when_their_epoch_is_over_are_closed) {
  make(2, 2);
  all().hold_data(0, true);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    all().declare(rank, world_->declaration(rank, kNoClip));
  }
  all().pump();
  EXPECT_FALSE(all().declared(0));
  all().lose(3);
  all().pump();
  all().hold_data(0, false);
  all().pump();
  EXPECT_FALSE(lane(0).connected());
  all().hold_data(0, true);
  all().attach(3);
  all().declare(3, world_->declaration(3, kNoClip));
  all().pump();
  all().tell(0, LinksReady{1, {}});
  all().tell(0, LinksFailed{1, make_error(ErrorCode::NodeRefused, "of the epoch before")});
  all().pump();
  EXPECT_FALSE(lane(0).connected());
  EXPECT_FALSE(all().refusal(0));
  all().hold_data(0, false);
  all().pump();
  ASSERT_NO_FATAL_FAILURE(expect_declared());
  write(1);
  expect_done(finish_all(0));
}

TEST_F(ArenaOverNodes, nothing_is_connected_where_nothing_travels) {
  make(2, 2);
  plan::RankDeclaration declared = world_->declaration(0, kNoClip);
  std::vector<plan::TensorDeclaration> tensors;
  for (const std::int64_t rank : {0, 2}) {
    const plan::RankDeclaration own = world_->declaration(rank, kNoClip);
    tensors.push_back(own.tensors[world_->row_of(rank, rank == 0 ? "first" : "last")]);
  }
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    declared.tensors = std::vector{tensors[static_cast<std::size_t>(rank / 2)]};
    all().declare(rank, declared);
  }
  all().pump();
  expect_declared();
  EXPECT_FALSE(lane(0).connected() || lane(1).connected());
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    all().input(rank, 0)[0] = static_cast<float>(rank + 1);
  }
  Calls calls;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    calls.push_back(all().finish(rank, 0));
  }
  all().pump();
  for (const auto& call : calls) {
    ASSERT_TRUE(call->report) << (call->error ? call->error->message : "still waits");
    EXPECT_EQ(call->report->norm, static_cast<float>(std::sqrt(9.0 + 49.0)));
  }
  EXPECT_EQ(all().output(1, 0)[0], 3.0F);
  EXPECT_EQ(all().output(2, 0)[0], 7.0F);
}

}  // namespace
}  // namespace gradsync::engine
