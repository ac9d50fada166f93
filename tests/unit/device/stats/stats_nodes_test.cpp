// A plan whose ranks are on several nodes, on the lane of one of them: what it counts, what it says of its copies, and
// what is refused.

#include "device/stats/box_hash.hpp"
#include "fakes/not_finite.hpp"
#include "unit/device/stats/stats_fixture.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <utility>
#include <vector>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Ranks 0 and 1 of four. Tensor `own` is counted here and on other nodes, too; of `shared` another node has the lowest
/// rank; `alone` is here only; `copy` is tied to `own`.
class StatsNodes : public StatsFixture {
 protected:
  void SetUp() override {
    begin(4);
    own = tensor({{0, 0, 2}}, 0, 0);
    shared = tensor({{0, 0, 2}, {1, 0, 2}}, 1, 0);
    alone = tensor({{1, 0, 2}}, 1);
    copy = tensor({{1, 0, 2}});
    plan_.tensors[copy].counted = false;
    plan_.ties = {{copy, own, {0}}};
    plan_.rank_buffers[2] = plan_.rank_buffers[3] = 0;
    plan_.elsewhere = {{shared, 0}};
    plan_.classes = {{{own, 0}}, {{shared, 0}}};
    load_stats();
    fill(own, 0, {3, 0});
    fill(copy, 1, {3, 0});
    fill(shared, 0, {8, 1});
    fill(shared, 1, {8, 1});
    fill(alone, 1, {0, 4});
  }

  [[nodiscard]] static FinishStep raw_command(Tag tag = 0, HashSums sums = HashSums::In) {
    return {kPlan, tag, 1.0, {}, false, kStamp, true, sums};
  }

  Finished raw(Tag tag = 0, HashSums sums = HashSums::In) {
    lane_->submit(raw_command(tag, sums));
    return expect<Finished>();
  }

  RowsRead read(std::vector<std::uint32_t> classes, std::vector<StatsBox> boxes, Tag tag = 0) {
    lane_->submit(ReadRows{kPlan, tag, std::move(classes), std::move(boxes)});
    return expect<RowsRead>();
  }

  std::string refused(LaneCommand command) {
    lane_->submit(std::move(command));
    return expect<Failed>().message;
  }

  static std::uint64_t hash_of(std::vector<StatsRow> rows, HashSums sums = HashSums::In) {
    return hash_of_box(rows, 0, sums);
  }

  std::uint32_t own = 0;
  std::uint32_t shared = 0;
  std::uint32_t alone = 0;
  std::uint32_t copy = 0;
};

TEST_F(StatsNodes, a_raw_finish_counts_what_the_node_owns_and_decides_nothing) {
  const Finished finished = raw();
  ASSERT_NE(finished.raw, nullptr);
  const NodeCells& cells = finished.raw->cells;
  EXPECT_EQ(cells.whole.power_sum.high, 25);
  ASSERT_EQ(cells.groups.size(), 2U);
  EXPECT_EQ(cells.groups[0].power_sum.high, 9);
  EXPECT_EQ(cells.groups[1].power_sum.high, 16) << "and nothing of what another node counts";
  ASSERT_EQ(cells.layers.size(), 1U);
  EXPECT_EQ(cells.layers[0].power_sum.high, 9);
  EXPECT_EQ(cells.counted_elements, 4U);
  EXPECT_THAT(finished.math.groups, IsEmpty());
  EXPECT_THAT(finished.math.raw_group_norms, IsEmpty());
  EXPECT_THAT(finished.math.layer_norms, IsEmpty());
  EXPECT_THAT(finished.math.divergence, IsEmpty());
}

TEST_F(StatsNodes, what_is_not_finite_spoils_the_sums_also_where_another_node_counts) {
  fill(shared, 1, {kNaN, 1});
  const Finished finished = raw();
  EXPECT_EQ(finished.raw->cells.whole.nan, 1U);
  EXPECT_EQ(finished.raw->cells.groups[0].nan, 0U);
  EXPECT_EQ(finished.raw->cells.groups[1].nan, 1U);
  EXPECT_EQ(finished.math.nonfinite_total, 0U) << "the node that counts the box says how many";
  ASSERT_EQ(finished.math.nonfinite.size(), 1U);
  EXPECT_EQ(finished.math.nonfinite[0].count, 0U);
  EXPECT_THAT(finished.math.nonfinite[0].inputs, ElementsAre(testing::Pair(1, 1)));
}

TEST_F(StatsNodes, says_of_each_class_what_its_rows_are) {
  const std::vector<std::uint64_t> before = raw().raw->class_hashes;
  ASSERT_EQ(before.size(), 2U);
  EXPECT_EQ(before[0], hash_of_class(std::vector{hash_of({row(own, 0)})})) << "an equal copy adds nothing";
  EXPECT_EQ(before[1], hash_of_class(std::vector{hash_of({row(shared, 0)})}));
  fill(copy, 1, {3, 1});
  const std::vector<std::uint64_t> after = raw().raw->class_hashes;
  EXPECT_EQ(after[0], hash_of_class(std::vector{hash_of({row(own, 0), row(copy, 1)})}));
  EXPECT_EQ(after[1], before[1]);
  const std::uint64_t without = hash_of({row(shared, 0)}, HashSums::Out);
  EXPECT_EQ(raw(0, HashSums::Out).raw->class_hashes[1], hash_of_class(std::vector{without}));
  EXPECT_THAT(read({1}, {}).box_hashes, ElementsAre(without)) << "as in the finish before";
}

TEST_F(StatsNodes, a_copy_whose_weight_has_no_gradient_here_is_left_to_all_nodes) {
  row(own, 0) = {};
  const Finished finished = raw();
  EXPECT_THAT(finished.math.divergence, IsEmpty()) << "another node may have the gradient that it is equal to";
  EXPECT_THAT(finished.math.absent, ElementsAre(own));
  EXPECT_EQ(finished.raw->class_hashes[0], hash_of_class(std::vector{hash_of_copies_alone(1)}));
  EXPECT_TRUE(is_uncounted(read({0}, {}).box_hashes.at(0)));
  row(copy, 1) = {};
  EXPECT_EQ(raw().raw->class_hashes[0], hash_of_class(std::vector<std::uint64_t>{0}));
}

TEST_F(StatsNodes, a_row_that_was_written_since_its_box_was_counted_is_refused_by_name) {
  const StatsRow written = row(shared, 1);
  for (const bool late : {true, false}) {
    SCOPED_TRACE(late);
    row(shared, 1) = late ? StatsRow{} : written;
    (void)raw();
    row(shared, 1) = late ? written : StatsRow{};
    for (const ReadRows& command : {ReadRows{kPlan, 0, {1}, {}}, ReadRows{kPlan, 0, {}, {{shared, 0}}}}) {
      lane_->submit(command);
      const Failed failed = expect<Failed>();
      EXPECT_THAT(failed.message, HasSubstr(late ? "had no gradient when the step was summed" : "has none now"));
      ASSERT_TRUE(failed.row);
      EXPECT_EQ(failed.row->tensor, shared);
      EXPECT_EQ(failed.row->rank, 1);
      EXPECT_EQ(failed.row->field, "stamp");
    }
    EXPECT_EQ(read({0}, {}).box_hashes.size(), 1U) << "no other box is touched by it";
  }
}

TEST_F(StatsNodes, rows_of_a_box_are_those_of_all_ranks_here_and_of_tied_copies) {
  (void)raw();
  const RowsRead found = read({}, {{own, 0}, {shared, 0}});
  EXPECT_THAT(found.box_hashes, IsEmpty());
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>> places;
  for (const HeldRow& held : found.rows) {
    places.emplace_back(held.tensor, held.box, held.rank);
    EXPECT_EQ(held.row, row(held.tensor, static_cast<std::uint32_t>(held.rank)));
  }
  using Place = std::tuple<std::uint32_t, std::uint32_t, std::int64_t>;
  EXPECT_THAT(places, ElementsAre(Place(own, 0, 0), Place(copy, 0, 1), Place(shared, 0, 0), Place(shared, 0, 1)));
  EXPECT_THAT(read({1, 0}, {}).box_hashes, ElementsAre(hash_of({row(shared, 0)}), hash_of({row(own, 0)})));
}

TEST_F(StatsNodes, rows_that_are_stale_by_now_are_not_told) {
  (void)raw();
  row(shared, 1).stamp = kStamp - 1;
  lane_->submit(ReadRows{kPlan, 0, {}, {{shared, 0}}});
  const Failed failed = expect<Failed>();
  ASSERT_TRUE(failed.row.has_value());
  EXPECT_EQ(failed.row->tensor, shared);
  EXPECT_EQ(failed.row->rank, 1);
  EXPECT_EQ(failed.row->field, "stamp");
}

TEST_F(StatsNodes, rows_are_read_behind_a_raw_finish_of_that_attempt_alone) {
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {0}, {}}), HasSubstr("attempt 0 had no raw finish"));
  (void)raw();
  EXPECT_THAT(refused(ReadRows{kPlan, 1, {0}, {}}), HasSubstr("attempt 1 had no raw finish"));
  row(alone, 1).stamp = 7;
  lane_->submit(raw_command());
  expect<Failed>();
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {0}, {}}), HasSubstr("no raw finish")) << "the last one failed";
  row(alone, 1).stamp = kStamp;
  (void)raw();
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {2}, {}}), HasSubstr("class 2 is wanted, and the plan has 2"));
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {}, {{alone, 0}}}), HasSubstr("box 0 of tensor 2 is compared with no other"));
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {}, {{9, 0}}}), HasSubstr("box 0 of tensor 9"));
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {}, {}}), HasSubstr("one of the two"));
  EXPECT_THAT(refused(ReadRows{kPlan, 0, {0}, {{own, 0}}}), HasSubstr("one of the two"));
  EXPECT_THAT(refused(ReadRows{kPlan + 1, 0, {0}, {}}), HasSubstr("is not loaded"));
  lane_->submit(Abort{kPlan, 0});
  expect<Aborted>();
  lane_->submit(ReadRows{kPlan, 0, {0}, {}});
  EXPECT_TRUE(expect<Failed>().aborted);
}

TEST_F(StatsNodes, nothing_is_decided_by_a_part_of_the_ranks) {
  EXPECT_THAT(refusal().message, HasSubstr("some ranks of the plan are on other nodes"));
  FinishStep finish = raw_command();
  finish.rules.resize(2);
  EXPECT_THAT(refused(finish), HasSubstr("a raw finish decides nothing"));
  finish = raw_command();
  finish.apply = true;
  EXPECT_THAT(refused(finish), HasSubstr("a raw finish decides nothing"));
  finish = raw_command();
  finish.stamp = 0;
  EXPECT_THAT(refused(finish), HasSubstr("stamp is 0"));
}

TEST_F(StatsNodes, once_all_nodes_have_decided_it_is_applied_once) {
  (void)raw();
  const ScaleGradients scale{kPlan, 0, std::vector<plan::ClipOutcome>(2)};
  lane_->submit(scale);
  expect<Scaled>();
  EXPECT_THAT(refused(scale), HasSubstr("already finished"));
  EXPECT_THAT(refused(raw_command()), HasSubstr("already finished"));
}

TEST_F(StatsNodes, a_layout_that_contradicts_itself_is_refused) {
  const std::vector<std::pair<std::function<void(StatsPlan&)>, const char*>> faults{
      {[](StatsPlan& plan) { plan.rank_buffers[1] = 0; }, "row 0 of tensor 1 ends outside the 0 bytes of rank 1"},
      {[](StatsPlan& plan) {
         plan.elsewhere = {{1, 0}, {0, 0}};
       },
       "boxes of other nodes do not ascend"},
      {[](StatsPlan& plan) {
         plan.elsewhere = {{1, 1}};
       },
       "box 1 of tensor 1 is counted elsewhere, and no rank here holds it"},
      {[](StatsPlan& plan) {
         plan.classes = {{{1, 0}, {0, 0}}};
       },
       "the boxes of class 0 do not ascend"},
      {[](StatsPlan& plan) {
         plan.classes = {{{0, 0}}, {{7, 0}}};
       },
       "box 0 of tensor 7 is compared, and nothing of it is here"},
      {[](StatsPlan& plan) {
         plan.rank_buffers = {1, 2, 3, 4};
       },
       "all ranks are here, and boxes are on other nodes"},
  };
  for (const auto& [change, what] : faults) {
    StatsPlan plan = plan_;
    change(plan);
    EXPECT_THAT(refused(LoadStats{kPlan + 1, plan}), HasSubstr(what));
  }
}

TEST_F(StatsNodes, a_copy_that_is_here_alone_is_part_of_the_box_of_another_node) {
  StatsPlan plan = plan_;
  plan.tensors[own].holders.clear();
  lane_->submit(UnloadPlan{kPlan});
  expect<Unloaded>();
  lane_->submit(LoadStats{kPlan, plan});
  expect<Loaded>();
  const Finished finished = raw();
  EXPECT_EQ(finished.raw->class_hashes[0], hash_of_class(std::vector{hash_of({row(copy, 1)})}));
  EXPECT_EQ(finished.raw->cells.counted_elements, 2U);
  const RowsRead found = read({}, {{own, 0}});
  ASSERT_EQ(found.rows.size(), 1U);
  EXPECT_EQ(found.rows[0].tensor, copy);
}

}  // namespace
}  // namespace gradsync::device
