// Ranks that take the seats of other ranks of a node, in a job that goes on.

#include "unit/engine/peers/steps/steps_over_nodes.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace gradsync::engine {
namespace {

class OtherSeats : public StepsOverNodes {
 protected:
  /// Two nodes with ranks 0, 1 and 2, 3, of which 1 and 3 are lost.
  void SetUp() override {
    start(all);
    write(all);
    expect_done(finish(all, 0), norm_of(4));
    all.lose(1);
    all.lose(3);
    all.pump();
    for (const std::int64_t survivor : {0, 2}) {
      ASSERT_TRUE(all.finish(survivor, 1)->error) << "it has to hear the number of the epoch";
    }
  }

  /// 1 is on the node of 2 from now on, and 3 on that of 0.
  void swap() {
    all.move(1, 1);
    all.move(3, 0);
    for (const std::int64_t rank : {1, 3}) {
      all.attach(rank);
    }
    all.pump();
  }

  void declare_swapped() {
    for (const std::int64_t rank : {1, 3}) {
      all.declare(rank, declaration(4));
    }
    all.pass(Milliseconds(1'000));
    for (const std::int64_t rank : {1, 3}) {
      ASSERT_TRUE(all.declared(rank)) << (all.refusal(rank) ? all.refusal(rank)->message : "still waits");
    }
  }

  [[nodiscard]] std::vector<std::int64_t> ranks_on_node_of(std::int64_t rank) {
    std::vector<std::int64_t> ranks;
    const std::vector<JobStatus> jobs = all.engine_of(rank).status(1000);
    for (const RankStatus& each : jobs.front().ranks) {
      ranks.push_back(each.rank);
    }
    return ranks;
  }

  LinkedEngines all{2, 2};
};

TEST_F(OtherSeats, count_from_the_next_plan_on) {
  swap();
  declare_swapped();
  for (std::int64_t step = 1; step < 4; ++step) {
    write(all);
    expect_done(finish(all, step), norm_of(4));
  }
}

TEST_F(OtherSeats, leave_the_calls_of_survivors_to_those) {
  const Calls early{all.finish(0, 1), all.finish(2, 1)};
  swap();
  for (const std::int64_t rank : {0, 2}) {
    all.write(rank, 0, row_of(static_cast<double>(rank + 1)));
    all.write(rank, 1, row_of(0.5));
  }
  declare_swapped();
  for (const std::int64_t rank : {1, 3}) {
    all.write(rank, 0, row_of(static_cast<double>(rank + 1)));
    all.write(rank, 1, row_of(0.5));
  }
  EXPECT_EQ(early[0]->calls + early[1]->calls, 0);
  Calls calls{early[0], all.finish(1, 1), early[1], all.finish(3, 1)};
  all.pump();
  expect_done(calls, norm_of(4));
  write(all);
  expect_done(finish(all, 2), norm_of(4));
}

TEST_F(OtherSeats, are_seen_before_the_next_plan) {
  const auto waiting = all.finish(2, 1);
  swap();
  EXPECT_EQ(ranks_on_node_of(2), std::vector<std::int64_t>({1, 2}));
  all.pause(1, true);
  all.pass(Milliseconds(3'600'000));
  EXPECT_EQ(waiting->calls, 0) << "the rank in the other seat is paused";
  all.pause(1, false);
  expect_failed({all.finish(1, 1)}, ErrorCode::NotDeclared, "rank 1");
  all.lose(1);
  EXPECT_EQ(ranks_on_node_of(2), std::vector<std::int64_t>({2}));
}

TEST_F(OtherSeats, have_no_calls_that_wait_for_the_end_of_an_epoch) {
  swap();
  declare_swapped();
  write(all);
  all.hold_lane(1, true);
  const Calls calls = finish(all, 1);
  all.lose(2);  // the lane of its node has not stopped
  all.lose(0);
  all.move(0, 1);
  all.attach(0);
  expect_failed({all.finish(0, 1)}, ErrorCode::NotDeclared, "rank 0");
  all.hold_lane(1, false);
  all.pump();
  EXPECT_TRUE(std::ranges::all_of(calls, [](const auto& call) { return call->calls == 1 && call->error; }));
}

}  // namespace
}  // namespace gradsync::engine
