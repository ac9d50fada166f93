// A trainer that writes its row after it asked: between the sum of a node and what other nodes ask for.

#include "unit/engine/peers/steps/steps_over_nodes.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

/// 'b' is on all ranks, and counted on the node of ranks 0 and 1.
class LateRows : public StepsOverNodes {
 protected:
  void SetUp() override {
    start(all);
    write(all);
  }

  /// Every node has summed its rows, and the coordinator has not asked for any.
  Calls ask_all() {
    all.hold_messages(0, true);
    return finish(all, 0);
  }

  void expect_refused(const Calls& calls, std::int64_t rank, const std::string& said) {
    all.hold_messages(0, false);
    all.pump();
    expect_failed(calls, ErrorCode::StepFailed, said);
    for (const auto& call : calls) {
      EXPECT_EQ(call->error->rank, rank);
      EXPECT_EQ(call->error->tensor, "b");
    }
    write(all);
    expect_done(finish(all, 0), norm_of(4));
  }

  LinkedEngines all{2, 2};
};

TEST_F(LateRows, of_the_node_that_counts_the_box_would_be_in_no_sum) {
  for (const std::int64_t rank : {0, 1}) {
    all.unstamp(rank, 1);
  }
  const Calls calls = ask_all();
  all.write(1, 1, row_of(0.5));
  expect_refused(calls, 1, "had no gradient when the step was summed, and has one now");
}

TEST_F(LateRows, that_are_taken_back_would_be_in_two_sums) {
  all.unstamp(1, 1);
  all.write(3, 1, row_of(0.75));  // it differs, so that rows are asked for
  const Calls calls = ask_all();
  all.unstamp(0, 1);
  expect_refused(calls, 0, "had a gradient when the step was summed, and has none now");
}

TEST_F(LateRows, of_a_node_that_only_compares_are_refused_likewise) {
  all.unstamp(3, 1);
  all.write(2, 1, row_of(0.75));
  const Calls calls = ask_all();
  all.write(3, 1, row_of(0.5));
  expect_refused(calls, 3, "the row that rank 3 wrote for 'b' cannot be right");
}

}  // namespace
}  // namespace gradsync::engine
