// Which reports of a worker are taken for the answer of a command.

#include "device/process/outstanding_commands.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace gradsync::device {
namespace {

constexpr PlanId kPlan = 7;
constexpr Tag kTag = 3;

/// Two tensors, two ranks, one clip group and one layer; all of an attempt is outstanding.
OutstandingCommands an_attempt() {
  OutstandingCommands commands;
  LanePlan layout;
  layout.tensors.resize(2);
  layout.layers = 1;
  layout.rank_buffers = {1, 2};
  const auto add = [&](LaneCommand command) { commands.add(command, TimePoint{}, {}); };
  add(LoadPlan{kPlan, std::move(layout)});
  EXPECT_TRUE(commands.answered_by(Loaded{kPlan}));
  add(ReduceBucket{kPlan, kTag, 0, {}, false, false});
  add(ReduceBucket{kPlan, kTag, 1, {}, false, false});
  add(FinishStep{kPlan, kTag, 1.0, {{}}, true, 0});
  return commands;
}

Reduced reduced(std::uint32_t bucket) { return {kPlan, kTag, bucket, 0.0}; }

Finished finished() {
  Finished report{kPlan, kTag, {}};
  report.math.groups.resize(1);
  report.math.raw_group_norms = {1.0};
  report.math.layer_norms = {1.0};
  report.math.absent = {0, 1};
  report.math.nonfinite = {{1, 1, {{1, 1}}}};
  report.math.divergence = {{1, {0, 1}}};
  report.math.missing = {{0, {0}}};
  return report;
}

TEST(OutstandingCommands, an_attempt_is_answered_in_its_order) {
  OutstandingCommands commands = an_attempt();
  EXPECT_FALSE(commands.answered_by(finished())) << "no bucket is reduced";
  EXPECT_FALSE(commands.answered_by(reduced(1))) << "bucket 0 comes first";
  EXPECT_TRUE(commands.answered_by(reduced(0)));
  EXPECT_FALSE(commands.answered_by(reduced(0)));
  EXPECT_FALSE(commands.answered_by(reduced(99)));
  EXPECT_TRUE(commands.answered_by(reduced(1)));
  EXPECT_TRUE(commands.answered_by(finished()));
  EXPECT_TRUE(commands.empty());
}

TEST(OutstandingCommands, an_abort_is_answered_behind_what_it_ends) {
  OutstandingCommands commands = an_attempt();
  commands.add(Abort{kPlan, kTag}, TimePoint{}, {});
  Failed aborted;
  aborted.plan = kPlan;
  aborted.tag = kTag;
  aborted.aborted = true;
  EXPECT_FALSE(commands.answered_by(Aborted{kPlan, kTag}));
  for (int command = 0; command < 3; ++command) {
    EXPECT_FALSE(commands.answered_by(Aborted{kPlan, kTag}));
    EXPECT_TRUE(commands.answered_by(aborted));
  }
  EXPECT_TRUE(commands.answered_by(Aborted{kPlan, kTag}));
}

TEST(OutstandingCommands, connections_are_answered_within_their_time) {
  OutstandingCommands commands;
  OutstandingCommands::Patience patience;
  patience.other = Milliseconds(7);
  commands.add(ConnectNodes{kPlan, {}}, TimePoint{}, patience);
  ASSERT_TRUE(commands.next_deadline().has_value());
  EXPECT_EQ(commands.next_deadline()->when, TimePoint{} + Milliseconds(7));
  EXPECT_FALSE(commands.answered_by(Connected{kPlan + 1}));
  EXPECT_FALSE(commands.answered_by(Loaded{kPlan}));
  EXPECT_TRUE(commands.answered_by(Connected{kPlan}));
  EXPECT_TRUE(commands.empty());
}

TEST(OutstandingCommands, communicators_have_a_time_of_their_own) {
  OutstandingCommands commands;
  OutstandingCommands::Patience patience;
  patience.other = Milliseconds(7);
  patience.connect = Milliseconds(9);
  commands.add(ConnectNodes{kPlan, {}, {{"dp:0", 1, {}}}}, TimePoint{}, patience);
  ASSERT_TRUE(commands.next_deadline().has_value());
  EXPECT_EQ(commands.next_deadline()->when, TimePoint{} + Milliseconds(9));
}

TEST(OutstandingCommands, an_abort_waits_longer_only_where_communicators_are_aborted) {
  OutstandingCommands::Patience patience;
  patience.abort = Milliseconds(5);
  patience.other = patience.connect = Milliseconds(100);
  patience.abort_of_communicators = Milliseconds(9);
  const auto due_with = [&](std::vector<CommunicatorId> communicators) {
    OutstandingCommands commands = an_attempt();
    commands.add(ConnectNodes{kPlan, {}, std::move(communicators)}, TimePoint{}, patience);
    commands.add(Abort{kPlan, kTag}, TimePoint{}, patience);
    return commands.next_deadline()->when - TimePoint{};
  };
  EXPECT_EQ(due_with({}), Milliseconds(5));
  EXPECT_EQ(due_with({{"dp:0", 1, {}}}), Milliseconds(9));
}

TEST(OutstandingCommands, what_a_norm_names_exists) {
  const std::vector<std::function<void(StepMath&)>> lies = {
      [](StepMath& math) { math.groups.clear(); },
      [](StepMath& math) { math.raw_group_norms.clear(); },
      [](StepMath& math) { math.layer_norms.resize(2); },
      [](StepMath& math) { math.absent = {2}; },
      [](StepMath& math) {
        math.absent = {0, 0, 0};
      },
      [](StepMath& math) { math.nonfinite[0].tensor = 2; },
      [](StepMath& math) { math.nonfinite[0].inputs[0].first = 2; },
      [](StepMath& math) { math.divergence[0].tensor = 2; },
      [](StepMath& math) { math.divergence[0].ranks[0] = -1; },
      [](StepMath& math) { math.divergence[0].majority = {-1}; },
      [](StepMath& math) { math.divergence[0].suspects = {2}; },
      [](StepMath& math) { math.missing[0].tensor = 2; },
      [](StepMath& math) { math.missing[0].ranks[0] = 2; },
  };
  OutstandingCommands commands = an_attempt();
  EXPECT_TRUE(commands.answered_by(reduced(0)) && commands.answered_by(reduced(1)));
  for (std::size_t lie = 0; lie < lies.size(); ++lie) {
    Finished report = finished();
    lies[lie](report.math);
    EXPECT_FALSE(commands.answered_by(report)) << lie;
  }
  EXPECT_TRUE(commands.answered_by(finished()));
}

/// Two tensors on ranks 0 and 1 of three, two clip groups, one layer, and two classes with three boxes.
OutstandingCommands a_node() {
  OutstandingCommands commands;
  StatsPlan layout;
  layout.tensors.resize(2);
  layout.tensors[0].holders = {{0, 0, 0, 1}, {1, 0, 0, 1}};
  layout.clip_groups = 2;
  layout.layers = 1;
  layout.rank_buffers = {1, 2, 0};
  layout.classes = {{{0, 0}}, {{0, 1}, {1, 0}}};
  commands.add(LoadStats{kPlan, std::move(layout)}, TimePoint{}, {});
  EXPECT_TRUE(commands.answered_by(Loaded{kPlan}));
  return commands;
}

Finished finished_raw(const std::function<void(RawStep&)>& change = [](RawStep&) {}) {
  RawStep raw;
  raw.cells.groups.resize(2);
  raw.cells.layers.resize(1);
  raw.class_hashes = {1, 2};
  change(raw);
  Finished report{kPlan, kTag, {}, std::make_shared<const RawStep>(std::move(raw))};
  report.math.absent = {1};
  return report;
}

TEST(OutstandingCommands, a_raw_finish_brings_what_the_plan_has_and_decides_nothing) {
  const std::vector<std::function<void(Finished&)>> lies = {
      [](Finished& report) { report.raw.reset(); },
      [](Finished& report) { report = finished_raw([](RawStep& raw) { raw.cells.groups.resize(1); }); },
      [](Finished& report) { report = finished_raw([](RawStep& raw) { raw.cells.layers.clear(); }); },
      [](Finished& report) { report = finished_raw([](RawStep& raw) { raw.class_hashes.push_back(3); }); },
      [](Finished& report) { report.math.groups.resize(2); },
      [](Finished& report) { report.math.layer_norms = {1.0}; },
      [](Finished& report) { report.math.absent = {2}; },
  };
  OutstandingCommands commands = a_node();
  commands.add(FinishStep{kPlan, kTag, 1.0, {}, false, 1, true, HashSums::In}, TimePoint{}, {});
  for (std::size_t lie = 0; lie < lies.size(); ++lie) {
    Finished report = finished_raw();
    lies[lie](report);
    EXPECT_FALSE(commands.answered_by(report)) << lie;
  }
  EXPECT_TRUE(commands.answered_by(finished_raw()));
  commands.add(FinishStep{kPlan, kTag, 1.0, {{}, {}}, false, 1, false, HashSums::In}, TimePoint{}, {});
  Finished decided = finished_raw();
  decided.math.groups.resize(2);
  decided.math.raw_group_norms.resize(2);
  decided.math.layer_norms.resize(1);
  EXPECT_FALSE(commands.answered_by(decided)) << "nobody asked for cells";
  decided.raw.reset();
  EXPECT_TRUE(commands.answered_by(decided));
}

TEST(OutstandingCommands, as_many_hashes_come_as_the_classes_have_boxes) {
  OutstandingCommands commands = a_node();
  commands.add(ReadRows{kPlan, kTag, {1, 0, 1}, {}}, TimePoint{}, {});
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {1, 2, 3, 4}, {}}));
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {1, 2, 3, 4, 5, 6}, {}}));
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {1, 2, 3, 4, 5}, {{0, 0, 0, {}}}})) << "rows are not wanted";
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag + 1, {1, 2, 3, 4, 5}, {}}));
  EXPECT_TRUE(commands.answered_by(RowsRead{kPlan, kTag, {1, 2, 3, 4, 5}, {}}));
}

TEST(OutstandingCommands, rows_are_of_tensors_and_ranks_that_there_are) {
  OutstandingCommands commands = a_node();
  commands.add(ReadRows{kPlan, kTag, {}, {{0, 0}}}, TimePoint{}, {});
  const HeldRow row{0, 0, 1, {}};
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {1}, {row}})) << "hashes are not wanted";
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {}, {row, {2, 0, 0, {}}}}));
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {}, {row, {0, 0, 3, {}}}}));
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {}, {row, {0, 0, -1, {}}}}));
  EXPECT_FALSE(commands.answered_by(RowsRead{kPlan, kTag, {}, {row, row, row}})) << "the plan has two";
  EXPECT_FALSE(commands.answered_by(Scaled{kPlan, kTag, 0})) << "what is of an attempt comes in order";
  EXPECT_TRUE(commands.answered_by(RowsRead{kPlan, kTag, {}, {row, row}}));
}

TEST(OutstandingCommands, a_probe_is_answered_by_as_many_bytes_as_it_asked_for) {
  OutstandingCommands commands;
  commands.add(ProbeMemory{9, 2, {}}, TimePoint{}, {Milliseconds(1), Milliseconds(2), Milliseconds(3)});
  EXPECT_EQ(commands.next_deadline()->patience, Milliseconds(2)) << "that of an import";
  EXPECT_FALSE(commands.answered_by(Probed{8, {4, "ab", 0, 0, 0}})) << "another probe";
  EXPECT_FALSE(commands.answered_by(Probed{9, {4, "abc", 0, 0, 0}}));
  EXPECT_FALSE(commands.answered_by(Mapped{9}));
  EXPECT_TRUE(commands.answered_by(Probed{9, {4, "ab", 0, 0, 0}}));
  EXPECT_TRUE(commands.empty());
}

TEST(OutstandingCommands, a_row_that_fails_a_norm_exists) {
  OutstandingCommands commands = an_attempt();
  Failed failed;
  failed.plan = kPlan;
  failed.tag = kTag;
  failed.row = FailedRow{0, 0, "scale"};
  EXPECT_FALSE(commands.answered_by(failed)) << "a reduction reads no row";
  EXPECT_TRUE(commands.answered_by(reduced(0)) && commands.answered_by(reduced(1)));
  failed.row = FailedRow{2, 0, "scale"};
  EXPECT_FALSE(commands.answered_by(failed));
  failed.row = FailedRow{1, 2, "scale"};
  EXPECT_FALSE(commands.answered_by(failed));
  failed.row = FailedRow{1, 1, "scale"};
  EXPECT_TRUE(commands.answered_by(failed));
}

}  // namespace
}  // namespace gradsync::device
