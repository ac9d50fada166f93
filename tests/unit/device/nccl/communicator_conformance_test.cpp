// Communicators of 2 to 8 GPUs, each with a lane's thread, over a library that has NCCL's interface, real sums and
// faults on demand: what they add up, and what becomes of them when a member fails.

#include "device/device_error.hpp"
#include "fakes/libnccl/nccl_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

using fakes::NcclMember;
using fakes::NcclWorld;
using fakes::TestGroup;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr PlanId kPlan = 7;
constexpr JobNumber kJob = 1;
constexpr std::size_t kElements = 20'000;
constexpr int kWarmUps = 2;  ///< operations of NcclWorld::small

TestGroup everyone(int size, const std::string& axis = "dp") {
  TestGroup group{axis, std::vector<int>(static_cast<std::size_t>(size))};
  std::iota(group.members.begin(), group.members.end(), 0);
  return group;
}

PlannedCollective all_reduce_of(const TestGroup& group, std::size_t elements = kElements, std::uint32_t bucket = 0) {
  return {group.name(), CollectiveKind::AllReduce, NcclType::Float32, elements, bucket, 0};
}

const std::byte* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

std::byte* bytes_of(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

/// Small integers, whose sums are exact in any order.
std::vector<float> input_of(int member, std::size_t elements = kElements) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(member) * 13) % 101);
  }
  return values;
}

std::vector<float> sum_of(const std::vector<int>& members, std::size_t elements = kElements) {
  std::vector<float> sum(elements, 0.0F);
  for (const int member : members) {
    const std::vector<float> values = input_of(member, elements);
    for (std::size_t i = 0; i < elements; ++i) {
      sum[i] += values[i];
    }
  }
  return sum;
}

class CommunicatorConformance : public testing::TestWithParam<int> {
 protected:
  CommunicatorConformance() : outputs_(static_cast<std::size_t>(GetParam())) {}

  [[nodiscard]] static int size() { return GetParam(); }

  [[nodiscard]] int last() const { return size() - 1; }

  void connect(const std::vector<TestGroup>& groups, const NcclWorld::Step& step, PlanId plan = kPlan) {
    world.connect(plan, groups, world.load(plan, kJob, groups, step));
  }

  std::vector<float>& output(const NcclMember& member) { return outputs_[static_cast<std::size_t>(member.number())]; }

  /// On a member's thread: launches an operation in place of its output.
  void launch(NcclMember& member, const PlannedCollective& planned, std::uint64_t number = 1, PlanId plan = kPlan) {
    output(member) = input_of(member.number(), planned.elements);
    member.communicators().launch(plan, planned, bytes_of(output(member)), bytes_of(output(member)), number, world.now);
  }

  void begin_and_launch(NcclMember& member, const PlannedCollective& planned) {
    member.communicators().begin_step(kPlan);
    launch(member, planned);
  }

  /// Fails the step on every member, as a daemon does when one of them says that it failed.
  void abort_all(PlanId plan = kPlan) {
    world.each([&](NcclMember& member) {
      member.communicators().abort(plan, world.now);
      (void)member.await<Communicators::Aborted>("the end of an abort");
      member.communicators().unload(plan, world.now);
      member.events.clear();
    });
  }

  /// A step of a later epoch, with new communicators.
  void expect_a_step_works(PlanId plan) {
    const TestGroup all = everyone(size());
    connect({all}, {all_reduce_of(all)}, plan);
    world.each([&](NcclMember& member) {
      member.communicators().begin_step(plan);
      launch(member, all_reduce_of(all), 99, plan);
      EXPECT_TRUE(member.await<Communicators::Operated>("its sum").done);
    });
    EXPECT_THAT(outputs_, Each(sum_of(all.members)));
  }

  NcclWorld world{GetParam()};

 private:
  std::vector<std::vector<float>> outputs_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorConformance, testing::Values(2, 3, 4, 5, 8));

TEST_P(CommunicatorConformance, all_members_get_the_sum_with_equal_bits) {
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  world.each([&](NcclMember& member) {
    for (std::uint64_t step = 1; step <= 3; ++step) {
      member.communicators().begin_step(kPlan);
      launch(member, all_reduce_of(all), step);
      const auto operated = member.await<Communicators::Operated>("its sum");
      EXPECT_TRUE(operated.done);
      EXPECT_EQ(operated.number, step);
    }
  });
  for (int number = 0; number < size(); ++number) {
    EXPECT_EQ(output(world.member(number)), sum_of(all.members));
    const std::vector<CommunicatorFacts> facts = world.member(number).communicators().table().facts();
    ASSERT_EQ(facts.size(), 1U);
    EXPECT_EQ(facts[0].name, all.name());
    EXPECT_EQ(facts[0].operations, 3U) << "warming up is none of the job's";
    EXPECT_EQ(facts[0].bytes, 3 * kElements * sizeof(float));
    EXPECT_EQ(facts[0].used, world.now);
  }
  EXPECT_EQ(world.fake.open(), size());
  EXPECT_EQ(world.fake.open_ids(), 0);
}

TEST_P(CommunicatorConformance, scatters_and_gathers) {
  const TestGroup all = everyone(size());
  const auto part = static_cast<std::size_t>(1'111);
  const std::size_t whole = part * static_cast<std::size_t>(size());
  const PlannedCollective scatter{all.name(), CollectiveKind::ReduceScatter, NcclType::Float32, part, 0, 0};
  const PlannedCollective gather{all.name(), CollectiveKind::AllGather, NcclType::Float32, part, 0, 1};
  connect({all}, {scatter, gather});
  world.each([&](NcclMember& member) {
    const std::vector<float> input = input_of(member.number(), whole);
    std::vector<float> own(part);
    output(member).resize(whole);
    member.communicators().begin_step(kPlan);
    member.communicators().launch(kPlan, scatter, bytes_of(input), bytes_of(own), 1, world.now);
    member.communicators().launch(kPlan, gather, bytes_of(own), bytes_of(output(member)), 2, world.now);
    EXPECT_EQ(member.await<Communicators::Operated>("its part").number, 1U);
    EXPECT_TRUE(member.await<Communicators::Operated>("the whole").done);
  });
  for (int number = 0; number < size(); ++number) {
    EXPECT_EQ(output(world.member(number)), sum_of(all.members, whole));
  }
}

/// Each member is in two or three; names are sorted by axis, and ranks, so the orders of building are not those of the
/// groups.
TEST_P(CommunicatorConformance, several_communicators_are_built_in_one_order_and_used_at_once) {
  std::vector<TestGroup> groups = {everyone(size(), "z"), everyone(size(), "a")};
  for (int first = 0; first + 1 < size(); first += 2) {
    groups.push_back({"m", {first, first + 1}});
  }
  NcclWorld::Step step;
  for (std::uint32_t bucket = 0; bucket < groups.size(); ++bucket) {
    step.push_back(all_reduce_of(groups[bucket], 500 + bucket, bucket));
  }
  connect(groups, step);
  world.each([&](NcclMember& member) {
    member.communicators().begin_step(kPlan);
    std::vector<std::vector<float>> outputs;
    std::vector<std::vector<float>> expected;
    outputs.reserve(groups.size());  // they stay where they are
    for (std::uint32_t bucket = 0; bucket < groups.size(); ++bucket) {
      const std::vector<int>& in = groups[bucket].members;
      if (std::ranges::find(in, member.number()) != in.end()) {
        std::vector<float>& values = outputs.emplace_back(input_of(member.number(), 500 + bucket));
        expected.push_back(sum_of(in, 500 + bucket));
        member.communicators().launch(kPlan, step[bucket], bytes_of(values), bytes_of(values), bucket, world.now);
      }
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(member.await<Communicators::Operated>("a sum").done);
    }
    EXPECT_EQ(outputs, expected);
  });
}

TEST_P(CommunicatorConformance, plans_of_a_job_share_communicators_and_a_later_plan_builds_none) {
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  connect({all}, {all_reduce_of(all)}, 8);
  EXPECT_EQ(world.fake.open(), size());
  world.each([&](NcclMember& member) {
    member.communicators().unload(kPlan, world.now);
    member.communicators().unload(8, world.now);
  });
  const auto ids = world.load(9, kJob, {all}, {all_reduce_of(all)});
  ASSERT_EQ(ids.size(), 1U);
  EXPECT_FALSE(ids[0].id.has_value()) << "what works stays";
  world.connect(9, {all}, ids);
  EXPECT_EQ(world.fake.open(), size());
  world.each([&](NcclMember& member) {
    member.communicators().begin_step(9);
    launch(member, all_reduce_of(all), 1, 9);
    EXPECT_TRUE(member.await<Communicators::Operated>("its sum").done);
  });
  EXPECT_EQ(output(world.member(0)), sum_of(all.members));
}

TEST_P(CommunicatorConformance, a_plan_may_go_while_another_of_its_job_has_an_operation_under_way) {
  world.fake.script(("slow_launch operation=" + std::to_string(kWarmUps) + " polls=20").c_str());
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  connect({all}, {all_reduce_of(all)}, 8);
  world.each([&](NcclMember& member) {
    member.communicators().begin_step(8);
    launch(member, all_reduce_of(all), 1, 8);
    EXPECT_TRUE(member.communicators().advance(world.now)) << "it is under way";
    member.communicators().unload(kPlan, world.now);
    const auto operated = member.await<Communicators::Operated>("its sum");
    EXPECT_EQ(operated.plan, 8U);
    EXPECT_TRUE(operated.done);
  });
  EXPECT_EQ(output(world.member(0)), sum_of(all.members));
  EXPECT_EQ(world.fake.open(), size()) << "it is the other plan's as well";
}

TEST_P(CommunicatorConformance, a_launch_that_takes_its_time_is_waited_for_before_anything_counts) {
  world.fake.script(("slow_launch operation=" + std::to_string(kWarmUps) + " polls=20").c_str());
  expect_a_step_works(kPlan);
}

TEST_P(CommunicatorConformance, a_member_that_never_joins_is_a_deadline_with_the_name_and_ranks) {
  world.fake.script(("never_joins rank=" + std::to_string(last())).c_str());
  const TestGroup all = everyone(size());
  const auto ids = world.load(kPlan, kJob, {all}, {});
  world.each([&](NcclMember& member) {
    member.communicators().connect(kPlan, NcclWorld::ids_of(ids, {all}, member.number()), world.now);
    EXPECT_TRUE(member.communicators().advance(world.now));
  });
  world.now += Milliseconds(120'000);
  world.each([&](NcclMember& member) {
    const auto broken = member.await<Communicators::Broken>("the deadline");
    EXPECT_THAT(broken.message, AllOf(HasSubstr(all.name()), HasSubstr("of ranks [0, 1"), HasSubstr("after 120 s")));
    EXPECT_EQ(member.find<Communicators::Connected>(), nullptr);
  });
  abort_all();
  EXPECT_EQ(world.fake.open(), 0);
  world.fake.script("");
  expect_a_step_works(8);
}

TEST_P(CommunicatorConformance, a_refusal_of_nccl_is_said_in_its_words) {
  world.fake.script("fails_to_join rank=1 code=3");
  const TestGroup all = everyone(size());
  const auto ids = world.load(kPlan, kJob, {all}, {});
  (void)world.member(1)
      .on_thread([&] {
        NcclMember& member = world.member(1);
        member.communicators().connect(kPlan, NcclWorld::ids_of(ids, {all}, 1), world.now);
        EXPECT_THAT(
            member.await<Communicators::Broken>("the error").message,
            AllOf(HasSubstr(all.name()), HasSubstr("internal error"), HasSubstr("told to fail"))
        );
      })
      .get();
}

TEST_P(CommunicatorConformance, a_member_that_never_comes_fails_the_step_of_all_and_the_next_epoch_works) {
  world.fake.script(("never_comes rank=" + std::to_string(last()) + " operation=" + std::to_string(kWarmUps)).c_str());
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  world.each([&](NcclMember& member) {
    begin_and_launch(member, all_reduce_of(all));
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(member.communicators().advance(world.now)) << "nothing is done";
    }
    EXPECT_TRUE(member.communicators().take_events().empty());
  });
  world.each([&](NcclMember& member) {
    member.communicators().abort(kPlan, world.now);
    EXPECT_FALSE(member.await<Communicators::Operated>("its failure").done);
    (void)member.await<Communicators::Aborted>("the end of its abort");
    member.communicators().unload(kPlan, world.now);
  });
  EXPECT_EQ(world.fake.open(), 0);
  world.fake.script("");
  expect_a_step_works(8);
}

#ifndef __SANITIZE_THREAD__  // it looks at an output that is being written

/// The kernels of an aborted operation end normally: the streams have passed, and half of the output is there.
TEST_P(CommunicatorConformance, a_half_written_output_never_counts) {
  world.fake.script(("stops operation=" + std::to_string(kWarmUps)).c_str());
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  world.each([&](NcclMember& member) { begin_and_launch(member, all_reduce_of(all)); });
  const std::vector<float> whole = sum_of(all.members);
  // An abort takes from the others what they have not read yet.
  world.each([&](NcclMember& member) {
    member.advance_until([&] { return output(member)[1] == whole[1]; }, "half of its sum");
  });
  world.each([&](NcclMember& member) {
    member.communicators().abort(kPlan, world.now);
    EXPECT_FALSE(member.await<Communicators::Operated>("its failure").done);
    (void)member.await<Communicators::Aborted>("the end of its abort");
    EXPECT_EQ(output(member)[1], whole[1]);
    EXPECT_NE(output(member).back(), whole.back());
    EXPECT_EQ(member.find<Communicators::Operated>(), nullptr) << "there is one outcome";
  });
}

#endif

TEST_P(CommunicatorConformance, an_error_that_nccl_says_later_fails_the_operation_whose_event_says_success) {
  world.fake.script(("error operation=" + std::to_string(kWarmUps) + " polls=5").c_str());
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  world.each([&](NcclMember& member) {
    begin_and_launch(member, all_reduce_of(all));
    const auto broken = member.await<Communicators::Broken>("the error");
    EXPECT_THAT(
        broken.message,
        AllOf(
            HasSubstr(all.name()),
            HasSubstr("all-reduce of 20000 elements"),
            HasSubstr("remote process exited or there was a network error")
        )
    );
    EXPECT_FALSE(member.await<Communicators::Operated>("its failure").done);
    EXPECT_THAT(
        [&] { launch(member, all_reduce_of(all)); },
        ThrowsMessage<DeviceError>(HasSubstr("cannot be used by plan 7 now"))
    );
  });
  abort_all();
  world.fake.script("");
  expect_a_step_works(8);
}

TEST_P(CommunicatorConformance, an_error_that_comes_with_the_end_of_the_kernel_fails_the_operation) {
  const TestGroup all = everyone(size());
  for (PlanId plan = 1; plan <= 3; ++plan) {
    world.fake.script(("error polls=0 operation=" + std::to_string(kWarmUps)).c_str());
    connect({all}, {all_reduce_of(all)}, plan);
    world.each([&](NcclMember& member) {
      member.communicators().begin_step(plan);
      launch(member, all_reduce_of(all), 1, plan);
      EXPECT_FALSE(member.await<Communicators::Operated>("its failure").done);
    });
    abort_all(plan);
  }
}

TEST_P(CommunicatorConformance, members_that_do_not_do_the_same_are_an_error_and_no_sum) {
  const TestGroup all = everyone(size());
  const std::vector<CommunicatorId> ids = world.load(kPlan, kJob, {all}, {});
  world.each([&](NcclMember& member) { member.communicators().unload(kPlan, world.now); });
  for (PlanId plan = 8; plan < 10; ++plan) {
    const auto of_plan = world.load(plan, kJob, {all}, {all_reduce_of(all, plan)});
    world.connect(plan, {all}, of_plan);
  }
  world.each([&](NcclMember& member) {
    const PlanId plan = member.number() == 0 ? 8 : 9;
    member.communicators().begin_step(plan);
    launch(member, all_reduce_of(all, plan), 1, plan);
    EXPECT_THAT(member.await<Communicators::Broken>("the error").message, HasSubstr("invalid usage"));
    EXPECT_FALSE(member.await<Communicators::Operated>("its failure").done);
  });
  EXPECT_EQ(world.fake.open_ids(), 1) << "that of the plan that was never connected";
  EXPECT_EQ(world.member(0).communicators().table().unused_ids(), 1U);
}

TEST_P(CommunicatorConformance, what_is_out_of_turn_is_refused_and_not_launched) {
  const TestGroup all = everyone(size());
  const NcclWorld::Step step = {all_reduce_of(all, 10, 0), all_reduce_of(all, 20, 1)};
  connect({all}, step);
  world.each([&](NcclMember& member) {
    member.communicators().begin_step(kPlan);
    if (member.number() == 0) {
      EXPECT_THAT(
          [&] { launch(member, step[1]); },
          ThrowsMessage<DeviceError>(AllOf(HasSubstr("out of turn"), HasSubstr("stage 0 of bucket 0")))
      );
    }
    for (std::uint32_t bucket = 0; bucket < 2; ++bucket) {
      launch(member, step[bucket], bucket);
      EXPECT_TRUE(member.await<Communicators::Operated>("a sum").done);
    }
  });
  EXPECT_EQ(output(world.member(0)), sum_of(all.members, 20));
}

TEST_P(CommunicatorConformance, all_communicators_of_a_job_are_aborted_in_one_group) {
  world.fake.script(("never_comes operation=" + std::to_string(kWarmUps)).c_str());
  const std::vector<TestGroup> groups = {everyone(size(), "a"), everyone(size(), "b"), everyone(size(), "c")};
  NcclWorld::Step step;
  for (std::uint32_t bucket = 0; bucket < groups.size(); ++bucket) {
    step.push_back(all_reduce_of(groups[bucket], kElements, bucket));
  }
  connect(groups, step);
  world.each([&](NcclMember& member) {
    member.communicators().begin_step(kPlan);
    for (const PlannedCollective& one : step) {
      launch(member, one, one.bucket);
    }
    (void)member.communicators().advance(world.now);
    member.communicators().abort(kPlan, world.now);
    (void)member.await<Communicators::Aborted>("the end of its abort");
  });
  EXPECT_EQ(world.fake.open(), 0);
}

TEST_P(CommunicatorConformance, the_next_epoch_does_not_wait_for_the_end_of_an_abort) {
  world.fake.script(("never_comes of=old operation=" + std::to_string(kWarmUps) + "; abort_hangs of=old").c_str());
  const TestGroup old = everyone(size(), "old");
  connect({old}, {all_reduce_of(old)});
  world.each([&](NcclMember& member) {
    begin_and_launch(member, all_reduce_of(old));
    (void)member.communicators().advance(world.now);
    member.communicators().abort(kPlan, world.now);
    member.communicators().unload(kPlan, world.now);
    (void)member.await<Communicators::Operated>("its failure");
  });
  expect_a_step_works(8);
}

TEST_P(CommunicatorConformance, an_abort_that_hangs_loses_the_process_and_says_why) {
  world.fake.script(
      ("never_comes operation=" + std::to_string(kWarmUps) + "; abort_hangs rank=" + std::to_string(last())).c_str()
  );
  const TestGroup all = everyone(size());
  connect({all}, {all_reduce_of(all)});
  world.each([&](NcclMember& member) {
    begin_and_launch(member, all_reduce_of(all));
    member.communicators().abort(kPlan, world.now);
    EXPECT_FALSE(member.await<Communicators::Operated>("its failure").done) << "the abort is not waited for";
    if (member.number() != last()) {
      (void)member.await<Communicators::Aborted>("the end of its abort");
    }
    EXPECT_EQ(member.communicators().advance(world.now), member.number() == last());
  });
  world.now += Milliseconds(10'000);
  (void)world.member(last())
      .on_thread([&] {
        const auto lost = world.member(last()).await<Communicators::Lost>("the deadline");
        EXPECT_THAT(lost.message, AllOf(HasSubstr(all.name()), HasSubstr("did not abort it within 10 s")));
        EXPECT_EQ(world.member(last()).find<Communicators::Aborted>(), nullptr);
      })
      .get();
}

TEST_P(CommunicatorConformance, a_job_whose_peer_never_comes_holds_up_no_other_job) {
  world.fake.script(("never_comes of=stuck rank=0 operation=" + std::to_string(kWarmUps)).c_str());
  const TestGroup stuck = everyone(size(), "stuck");
  const TestGroup all = everyone(size());
  connect({stuck}, {all_reduce_of(stuck)});
  const auto ids = world.load(8, 2, {all}, {all_reduce_of(all)});
  std::vector<std::vector<float>> others(static_cast<std::size_t>(size()));
  world.each([&](NcclMember& member) {
    begin_and_launch(member, all_reduce_of(stuck));
    (void)member.communicators().advance(world.now);
    member.communicators().connect(8, NcclWorld::ids_of(ids, {all}, member.number()), world.now);
    (void)member.await<Communicators::Connected>("its communicators");
    std::vector<float>& values = others[static_cast<std::size_t>(member.number())] = input_of(member.number());
    member.communicators().begin_step(8);
    member.communicators().launch(8, all_reduce_of(all), bytes_of(values), bytes_of(values), 5, world.now);
    const auto operated = member.await<Communicators::Operated>("its sum");
    EXPECT_EQ(operated.plan, 8U);
    EXPECT_TRUE(operated.done);
  });
  EXPECT_THAT(others, Each(sum_of(all.members)));
  abort_all();
  EXPECT_EQ(world.fake.open(), size()) << "those of the other job";
}

TEST_P(CommunicatorConformance, a_job_that_fails_ends_nothing_of_another_job_on_the_same_gpus) {
  world.fake.script(("error of=broken operation=" + std::to_string(kWarmUps) + " polls=5").c_str());
  const TestGroup broken = everyone(size(), "broken");
  const TestGroup all = everyone(size());
  connect({broken}, {all_reduce_of(broken)});
  world.connect(8, {all}, world.load(8, 2, {all}, {all_reduce_of(all)}));
  std::vector<std::vector<float>> others(static_cast<std::size_t>(size()));
  const auto step_of_other = [&](NcclMember& member) {
    std::vector<float>& values = others[static_cast<std::size_t>(member.number())] = input_of(member.number());
    member.communicators().begin_step(8);
    member.communicators().launch(8, all_reduce_of(all), bytes_of(values), bytes_of(values), 5, world.now);
  };
  const auto await_other = [](NcclMember& member) {
    const auto operated = member.await<Communicators::Operated>("its sum");
    EXPECT_EQ(operated.plan, 8U);
    EXPECT_TRUE(operated.done);
  };
  world.each([&](NcclMember& member) {
    begin_and_launch(member, all_reduce_of(broken));
    EXPECT_EQ(member.await<Communicators::Broken>("the error").plan, kPlan);
    const auto failed = member.await<Communicators::Operated>("its failure");
    EXPECT_EQ(failed.plan, kPlan);
    EXPECT_FALSE(failed.done);
    step_of_other(member);
    await_other(member);
  });
  EXPECT_THAT(others, Each(sum_of(all.members)));
  world.each([&](NcclMember& member) {
    step_of_other(member);
    member.communicators().abort(kPlan, world.now);
    await_other(member);
    EXPECT_EQ(member.await<Communicators::Aborted>("the end of the abort").plan, kPlan);
    EXPECT_EQ(member.find<Communicators::Broken>(), nullptr);
  });
  EXPECT_THAT(others, Each(sum_of(all.members))) << "while the first job was aborted";
  EXPECT_EQ(world.fake.open(), size());
}

TEST_P(CommunicatorConformance, an_id_serves_once_and_only_the_one_that_was_made_for_the_epoch) {
  const TestGroup all = everyone(size());
  const std::vector<CommunicatorId> first = world.load(kPlan, kJob, {all}, {});
  world.connect(kPlan, {all}, first);
  abort_all();
  const std::vector<CommunicatorId> second = world.load(8, kJob, {all}, {});
  ASSERT_TRUE(second[0].id.has_value());
  world.each([&](NcclMember& member) {
    EXPECT_THAT(
        [&] { member.communicators().connect(8, first, world.now); },
        ThrowsMessage<DeviceError>(HasSubstr("was used before"))
    );
    if (member.number() == 0) {
      CommunicatorId other = second[0];
      other.id->bytes[100] = 'x';
      other.instance = instance_of(*other.id);
      EXPECT_THAT(
          [&] { member.communicators().connect(8, {other}, world.now); },
          ThrowsMessage<DeviceError>(HasSubstr("not the one that its first member made"))
      );
    }
  });
  world.connect(8, {all}, second);
}

}  // namespace
}  // namespace gradsync::device
