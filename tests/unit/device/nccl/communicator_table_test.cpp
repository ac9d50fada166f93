// What the table of communicators decides, event by event, without NCCL.

#include "device/nccl/communicator_table.hpp"

#include "device/device_error.hpp"
#include "plan/transfer/communicator_name.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;

using Table = CommunicatorTable;

constexpr JobNumber kTableJob = 3;

NcclUniqueId id_of(char content) {
  NcclUniqueId id;
  id.bytes.fill(content);
  return id;
}

CommunicatorSpec spec_of(const std::string& axis, std::vector<std::int64_t> ranks, std::uint32_t own = 1) {
  return {{axis}, std::move(ranks), own};
}

std::string name_of(const CommunicatorSpec& spec) { return plan::communicator_name(spec.axes, spec.ranks); }

CommunicatorId given(const CommunicatorSpec& spec, char content) {
  const NcclUniqueId id = id_of(content);
  return {name_of(spec), instance_of(id), id};
}

template <typename Action>
std::vector<Action> actions_of(const Table::Actions& actions) {
  std::vector<Action> found;
  for (const Table::Action& action : actions) {
    if (const auto* one = std::get_if<Action>(&action)) {
      found.push_back(*one);
    }
  }
  return found;
}

template <typename Action>
Action the_only(const Table::Actions& actions) {
  const std::vector<Action> found = actions_of<Action>(actions);
  EXPECT_THAT(found, SizeIs(1));
  return found.empty() ? Action() : found.front();
}

class CommunicatorTableTest : public testing::Test {
 protected:
  /// Builds what the actions say, and all that follows; the slots in their order.
  std::vector<CommunicatorSlot> build_all(Table::Actions actions, Table::Actions* last = nullptr) {
    std::vector<CommunicatorSlot> built;
    while (true) {
      const std::vector<Table::Build> builds = actions_of<Table::Build>(actions);
      if (builds.empty()) {
        if (last != nullptr) {
          *last = std::move(actions);
        }
        return built;
      }
      EXPECT_THAT(builds, SizeIs(1)) << "one at a time";
      built.push_back(builds[0].slot);
      EXPECT_EQ(the_only<Table::WarmUp>(table_.on_built(builds[0].slot)).slot, builds[0].slot);
      actions = table_.on_warm(builds[0].slot, now_);
    }
  }

  std::vector<CommunicatorSlot> connect(
      PlanId plan, const CommunicatorSpec& spec, char content, JobNumber job = kTableJob
  ) {
    (void)table_.want(plan, job, {spec}, now_);
    return build_all(table_.connect(plan, {given(spec, content)}, now_));
  }

  TimePoint now_{std::chrono::hours(1)};
  Table table_{{Milliseconds(1000), Milliseconds(100)}};
  const CommunicatorSpec dp_ = spec_of("dp", {0, 2});
  const CommunicatorSpec tp_ = spec_of("tp", {2, 3}, 1);
};

TEST_F(CommunicatorTableTest, refuses_what_is_no_communicator) {
  const auto refusal = [&](const CommunicatorSpec& spec) {
    return [&] { (void)table_.want(1, kTableJob, {spec}, now_); };
  };
  EXPECT_THAT(refusal(spec_of("dp", {4}, 0)), ThrowsMessage<DeviceError>(HasSubstr("has one member: that is a copy")));
  EXPECT_THAT(refusal(spec_of("dp", {4, 5}, 2)), ThrowsMessage<DeviceError>(HasSubstr("is member 2 of 2")));
  EXPECT_THAT(refusal(spec_of("dp", {4, 5, 4})), ThrowsMessage<DeviceError>(HasSubstr("a rank is twice in [4, 5, 4]")));
  (void)table_.want(1, kTableJob, {dp_}, now_);
  CommunicatorSpec other = dp_;
  other.own = 0;
  EXPECT_THAT(
      [&] { (void)table_.want(2, kTableJob, {other}, now_); },
      ThrowsMessage<DeviceError>(HasSubstr("of ranks [0, 2] as member 1, and of ranks [0, 2] as member 0"))
  );
  EXPECT_THAT([&] { (void)table_.want(1, kTableJob, {dp_}, now_); }, ThrowsMessage<DeviceError>(HasSubstr("already")));
  EXPECT_THAT(table_.facts(), SizeIs(1)) << "what was refused left nothing";
}

TEST_F(CommunicatorTableTest, equal_axes_and_ranks_are_one_and_other_orders_are_others) {
  (void)table_.want(1, kTableJob, {dp_, dp_, tp_, spec_of("dp", {2, 0})}, now_);
  EXPECT_THAT(table_.facts(), SizeIs(3));
  (void)table_.want(2, kTableJob, {dp_}, now_);
  EXPECT_THAT(table_.facts(), SizeIs(3)) << "a plan of the same job";
  (void)table_.want(3, kTableJob + 1, {dp_}, now_);
  EXPECT_THAT(table_.facts(), SizeIs(4)) << "another job has its own";
}

TEST_F(CommunicatorTableTest, builds_in_the_order_of_names_whatever_the_order_of_the_ids) {
  const CommunicatorSpec a = spec_of("a", {0, 1});
  const CommunicatorSpec b = spec_of("b", {0, 1});
  const CommunicatorSpec c = spec_of("c", {0, 1});
  (void)table_.want(9, kTableJob, {c}, now_);  // it is known first
  (void)table_.want(1, kTableJob, {c, a, b}, now_);
  Table::Actions last;
  std::vector<std::string> names;
  for (const CommunicatorSlot slot :
       build_all(table_.connect(1, {given(b, 'b'), given(c, 'c'), given(a, 'a')}, now_), &last)) {
    names.push_back(table_.facts()[slot - 1].name);
  }
  EXPECT_THAT(names, ElementsAre(name_of(a), name_of(b), name_of(c)));
  EXPECT_EQ(the_only<Table::Connected>(last).plan, 1U);
}

TEST_F(CommunicatorTableTest, tells_nccl_who_it_is) {
  (void)table_.want(1, kTableJob, {spec_of("dp", {4, 9, 6}, 2)}, now_);
  const auto build = the_only<Table::Build>(table_.connect(1, {given(spec_of("dp", {4, 9, 6}), 'x')}, now_));
  EXPECT_EQ(build.ranks, 3);
  EXPECT_EQ(build.own, 2);
  EXPECT_EQ(build.id, id_of('x'));
  EXPECT_EQ(build.name, name_of(spec_of("dp", {4, 9, 6})));
}

TEST_F(CommunicatorTableTest, refuses_ids_that_are_not_those_of_the_plan_and_changes_nothing) {
  (void)table_.want(1, kTableJob, {dp_, tp_}, now_);
  const auto refusal = [&](std::vector<CommunicatorId> ids) {
    return [this, ids = std::move(ids)] { (void)table_.connect(1, ids, now_); };
  };
  EXPECT_THAT(refusal({given(dp_, 'd')}), ThrowsMessage<DeviceError>(HasSubstr(name_of(tp_) + " has no id")));
  EXPECT_THAT(refusal({given(dp_, 'd'), given(tp_, 'd')}), ThrowsMessage<DeviceError>(HasSubstr("there twice")));
  EXPECT_THAT(
      refusal({given(dp_, 'd'), given(tp_, 't'), given(spec_of("x", {0, 2}), 'x')}),
      ThrowsMessage<DeviceError>(HasSubstr("is not one of this plan"))
  );
  CommunicatorId without = given(tp_, 't');
  without.id.reset();
  EXPECT_THAT(refusal({given(dp_, 'd'), without}), ThrowsMessage<DeviceError>(HasSubstr("is not here any more")));
  CommunicatorId other = given(tp_, 't');
  other.instance = 1;
  EXPECT_THAT(refusal({given(dp_, 'd'), other}), ThrowsMessage<DeviceError>(HasSubstr("is another one")));
  EXPECT_THAT(actions_of<Table::Build>(table_.connect(1, {given(dp_, 'd'), given(tp_, 't')}, now_)), SizeIs(1));
  EXPECT_THAT(refusal({given(dp_, 'd'), given(tp_, 't')}), ThrowsMessage<DeviceError>(HasSubstr("connected already")));
}

TEST_F(CommunicatorTableTest, an_id_that_was_used_is_never_used_again) {
  ASSERT_THAT(connect(1, dp_, 'd'), SizeIs(1));
  const auto group = the_only<Table::AbortGroup>(table_.abort(1, now_));
  (void)table_.on_aborted(group.slots);
  (void)table_.release(1, now_);
  (void)table_.want(2, kTableJob, {dp_}, now_);
  EXPECT_THAT(
      [&] { (void)table_.connect(2, {given(dp_, 'd')}, now_); },
      ThrowsMessage<DeviceError>(HasSubstr("was used before"))
  );
  EXPECT_THAT(actions_of<Table::Build>(table_.connect(2, {given(dp_, 'e')}, now_)), SizeIs(1));
}

TEST_F(CommunicatorTableTest, the_first_member_takes_the_id_that_it_made_for_this_plan_alone) {
  const CommunicatorSpec first = spec_of("dp", {0, 2}, 0);
  (void)table_.want(1, kTableJob, {first}, now_);
  ASSERT_EQ(table_.held(1)[0].own, 0U);
  table_.note_offered(1, name_of(first), id_of('o'));
  (void)table_.release(1, now_);
  EXPECT_EQ(table_.unused_ids(), 1U);
  (void)table_.want(2, kTableJob, {first}, now_);
  table_.note_offered(2, name_of(first), id_of('n'));
  EXPECT_THAT(
      [&] { (void)table_.connect(2, {given(first, 'o')}, now_); },
      ThrowsMessage<DeviceError>(HasSubstr("not the one that its first member made for this epoch"))
  );
  EXPECT_THAT(actions_of<Table::Build>(table_.connect(2, {given(first, 'n')}, now_)), SizeIs(1));
  EXPECT_EQ(table_.unused_ids(), 1U);
}

TEST_F(CommunicatorTableTest, five_are_the_most_and_idle_ones_make_room) {
  std::vector<CommunicatorSpec> five;
  std::vector<CommunicatorId> ids;
  for (const char axis : std::string("abcde")) {
    five.push_back(spec_of(std::string(1, axis), {0, 1}));
    ids.push_back(given(five.back(), axis));
  }
  std::vector<CommunicatorSpec> six = five;
  six.push_back(spec_of("f", {0, 1}));
  EXPECT_THAT(
      [&] { (void)table_.want(1, kTableJob, six, now_); },
      ThrowsMessage<DeviceError>(AllOf(HasSubstr("needs 6 communicators"), HasSubstr("5 is the limit")))
  );
  (void)table_.want(1, kTableJob, five, now_);
  (void)build_all(table_.connect(1, ids, now_));
  EXPECT_THAT(
      [&] { (void)table_.want(2, kTableJob + 1, {dp_}, now_); },
      ThrowsMessage<DeviceError>(AllOf(HasSubstr("beside 5 that are in use"), HasSubstr(name_of(five[4]))))
  );
  EXPECT_THAT(table_.want(3, kTableJob, {five[0]}, now_), IsEmpty()) << "it is there already";
  (void)table_.release(1, now_);
  const auto group = the_only<Table::AbortGroup>(table_.want(2, kTableJob + 1, {dp_}, now_));
  EXPECT_THAT(group.slots, SizeIs(1)) << "as few as needed";
  EXPECT_EQ(table_.slots_in(CommunicatorState::Ready).size(), 4U);
  EXPECT_EQ(table_.held(3)[0].instance, ids[0].instance) << "one that a plan uses stays";
}

TEST_F(CommunicatorTableTest, a_plan_that_was_refused_is_not_known_and_may_be_unloaded) {
  std::vector<CommunicatorSpec> five;
  for (const char axis : std::string("abcde")) {
    five.push_back(spec_of(std::string(1, axis), {0, 1}));
  }
  const CommunicatorSpec sixth = spec_of("f", {0, 1});
  (void)table_.want(1, kTableJob, five, now_);
  EXPECT_THROW((void)table_.want(2, kTableJob, {sixth}, now_), DeviceError);
  EXPECT_FALSE(table_.knows(2));
  EXPECT_TRUE(table_.release(2, now_).empty());
  EXPECT_THAT(table_.held(1), SizeIs(5)) << "those of the other plan";
  (void)table_.release(1, now_);
  (void)table_.want(2, kTableJob, {sixth}, now_);
  EXPECT_THAT(table_.held(2), SizeIs(1));
}

TEST_F(CommunicatorTableTest, what_works_stays_for_the_next_plan_and_is_built_anew_where_another_node_lost_it) {
  const std::vector<CommunicatorSlot> first = connect(1, dp_, 'd');
  (void)table_.release(1, now_);
  (void)table_.want(2, kTableJob, {dp_}, now_);
  ASSERT_EQ(table_.held(2)[0].instance, instance_of(id_of('d')));
  CommunicatorId kept = given(dp_, 'd');
  kept.id.reset();
  EXPECT_EQ(the_only<Table::Connected>(table_.connect(2, {kept}, now_)).plan, 2U);
  EXPECT_EQ(table_.ready(2, name_of(dp_)), first[0]);
  (void)table_.release(2, now_);
  (void)table_.want(3, kTableJob, {dp_}, now_);
  const Table::Actions actions = table_.connect(3, {given(dp_, 'e')}, now_);
  EXPECT_THAT(the_only<Table::AbortGroup>(actions).slots, ElementsAre(first[0]));
  EXPECT_NE(the_only<Table::Build>(actions).slot, first[0]);
  EXPECT_EQ(table_.ready(3, name_of(dp_)), std::nullopt);
}

TEST_F(CommunicatorTableTest, idle_ones_of_a_job_whose_epoch_failed_are_ended_and_no_others) {
  const auto idle = connect(1, dp_, 'd');
  const auto other = connect(2, dp_, 'o', kTableJob + 1);
  (void)table_.release(1, now_);
  (void)table_.release(2, now_);
  EXPECT_THAT(the_only<Table::AbortGroup>(table_.end_idle(kTableJob, now_)).slots, ElementsAre(idle[0]));
  EXPECT_TRUE(table_.counts(other[0]));
  EXPECT_THAT(table_.end_idle(kTableJob, now_), IsEmpty());
}

TEST_F(CommunicatorTableTest, an_idle_one_ends_after_a_minute) {
  (void)connect(1, dp_, 'd');
  EXPECT_EQ(table_.next_deadline(), std::nullopt);
  (void)table_.release(1, now_);
  EXPECT_EQ(table_.next_deadline(), now_ + Table::kIdle);
  EXPECT_THAT(table_.on_time(now_ + Table::kIdle - Milliseconds(1)), IsEmpty());
  EXPECT_THAT(the_only<Table::AbortGroup>(table_.on_time(now_ + Table::kIdle)).slots, SizeIs(1));
}

TEST_F(CommunicatorTableTest, the_deadline_names_the_one_that_is_being_built) {
  (void)table_.want(1, kTableJob, {dp_, tp_}, now_);
  const auto build = the_only<Table::Build>(table_.connect(1, {given(dp_, 'd'), given(tp_, 't')}, now_));
  (void)table_.on_built(build.slot);
  EXPECT_EQ(table_.next_deadline(), now_ + Milliseconds(1000));
  EXPECT_THAT(table_.on_time(now_ + Milliseconds(999)), IsEmpty());
  const auto broken = the_only<Table::Broken>(table_.on_time(now_ + Milliseconds(1000)));
  EXPECT_EQ(broken.plan, 1U);
  EXPECT_THAT(broken.message, AllOf(HasSubstr(name_of(dp_)), HasSubstr("[0, 2]"), HasSubstr("not warm after 1 s")));
  EXPECT_THAT(table_.on_time(now_ + Milliseconds(2000)), IsEmpty()) << "once";
  EXPECT_THAT(table_.on_warm(build.slot, now_), IsEmpty()) << "it came too late";
  EXPECT_THAT(the_only<Table::AbortGroup>(table_.release(1, now_)).slots, ElementsAre(build.slot))
      << "of the other one nothing was made";
}

TEST_F(CommunicatorTableTest, the_first_error_fails_all_of_the_job_and_no_other) {
  (void)table_.want(1, kTableJob, {dp_, tp_}, now_);
  const auto slots = build_all(table_.connect(1, {given(dp_, 'd'), given(tp_, 't')}, now_));
  const auto other = connect(2, dp_, 'o', kTableJob + 1);
  const Table::Actions actions = table_.on_error(slots[1], "the first", now_);
  EXPECT_THAT(the_only<Table::Broken>(actions).message, AllOf(HasSubstr(name_of(tp_)), HasSubstr("[2, 3]: the first")));
  EXPECT_THAT(table_.on_error(slots[0], "the second", now_), IsEmpty());
  EXPECT_FALSE(table_.counts(slots[0]));
  EXPECT_FALSE(table_.counts(slots[1]));
  EXPECT_TRUE(table_.counts(other[0]));
  EXPECT_EQ(table_.ready(1, name_of(dp_)), std::nullopt);
  EXPECT_EQ(table_.ready(2, name_of(dp_)), other[0]);
}

TEST_F(CommunicatorTableTest, an_abort_is_one_group_of_the_job_and_gone_is_said_behind_it) {
  (void)table_.want(1, kTableJob, {dp_, tp_}, now_);
  const auto slots = build_all(table_.connect(1, {given(dp_, 'd'), given(tp_, 't')}, now_));
  (void)connect(2, dp_, 'o', kTableJob + 1);
  const Table::Actions actions = table_.abort(1, now_);
  EXPECT_THAT(the_only<Table::AbortGroup>(actions).slots, ElementsAre(slots[0], slots[1]));
  EXPECT_THAT(actions_of<Table::Gone>(actions), IsEmpty());
  EXPECT_THAT(actions_of<Table::Broken>(actions), IsEmpty()) << "the plan hears of its abort";
  EXPECT_FALSE(table_.counts(slots[0])) << "at once";
  EXPECT_EQ(the_only<Table::Gone>(table_.on_aborted(slots)).job, kTableJob);
  EXPECT_EQ(the_only<Table::Gone>(table_.abort(1, now_)).job, kTableJob) << "there is nothing any more";
}

TEST_F(CommunicatorTableTest, another_plan_of_the_job_hears_of_an_abort) {
  (void)connect(1, dp_, 'd');
  (void)table_.want(2, kTableJob, {dp_}, now_);
  EXPECT_EQ(the_only<Table::Connected>(table_.connect(2, {given(dp_, 'd')}, now_)).plan, 2U);
  EXPECT_EQ(the_only<Table::Broken>(table_.abort(1, now_)).plan, 2U);
}

TEST_F(CommunicatorTableTest, an_abort_that_takes_too_long_loses_the_process_once) {
  (void)connect(1, dp_, 'd');
  (void)table_.abort(1, now_);
  EXPECT_EQ(table_.next_deadline(), now_ + Milliseconds(100));
  EXPECT_THAT(actions_of<Table::Lose>(table_.on_time(now_ + Milliseconds(99))), IsEmpty());
  EXPECT_THAT(
      the_only<Table::Lose>(table_.on_time(now_ + Milliseconds(100))).message,
      AllOf(HasSubstr(name_of(dp_)), HasSubstr("[0, 2]"), HasSubstr("0.1 s"))
  );
  EXPECT_THAT(actions_of<Table::Lose>(table_.on_time(now_ + Milliseconds(200))), IsEmpty());
}

TEST_F(CommunicatorTableTest, plans_of_a_job_build_one_communicator_after_the_other) {
  (void)table_.want(1, kTableJob, {dp_}, now_);
  (void)table_.want(2, kTableJob, {tp_}, now_);
  const auto first = the_only<Table::Build>(table_.connect(1, {given(dp_, 'd')}, now_));
  EXPECT_THAT(actions_of<Table::Build>(table_.connect(2, {given(tp_, 't')}, now_)), IsEmpty());
  (void)table_.on_built(first.slot);
  EXPECT_THAT(actions_of<Table::Build>(table_.on_warm(first.slot, now_)), SizeIs(1));
}

TEST_F(CommunicatorTableTest, a_job_that_builds_holds_up_no_other_job) {
  (void)table_.want(1, kTableJob, {dp_}, now_);
  (void)table_.want(2, kTableJob + 1, {dp_}, now_);
  EXPECT_THAT(actions_of<Table::Build>(table_.connect(1, {given(dp_, 'd')}, now_)), SizeIs(1));
  EXPECT_THAT(actions_of<Table::Build>(table_.connect(2, {given(dp_, 'e')}, now_)), SizeIs(1));
}

}  // namespace
}  // namespace gradsync::device
