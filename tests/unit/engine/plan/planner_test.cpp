#include "engine/plan/planner.hpp"

#include "base/text/text.hpp"
#include "engine/plan/plan_collectives.hpp"
#include "plan/interrupt.hpp"
#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

namespace gradsync::engine {
namespace {

PlanRequest request(std::uint64_t ticket) {
  PlanRequest request;
  request.ticket = ticket;
  request.by_rank =
      std::vector{std::make_shared<const plan::RankDeclaration>(Harness::declaration({Harness::tensor("a")}))};
  request.meshes = {{"default", {{"dp", 1}}, {}}};
  return request;
}

TEST(Planner, plans_in_the_order_of_submission_on_its_own_thread) {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::uint64_t> tickets;
  std::thread::id thread;
  ThreadPlanner planner([&](PlanOutcome outcome) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(outcome.plan);
    tickets.push_back(outcome.ticket);
    thread = std::this_thread::get_id();
    arrived.notify_one();
  });
  planner.submit(request(1));
  planner.submit(request(2));
  std::unique_lock lock(mutex);
  ASSERT_TRUE(arrived.wait_for(lock, std::chrono::seconds(60), [&] { return tickets.size() == 2; }));
  EXPECT_EQ(tickets, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_NE(thread, std::this_thread::get_id());
}

/// Outcomes in the order of arrival; those of tickets up to `held` hold their threads until the gate opens.
struct GatedSink {
  void put(const PlanOutcome& outcome) {
    {
      const std::lock_guard lock(mutex);
      tickets.push_back(outcome.ticket);
      arrived.notify_all();
    }
    if (outcome.ticket <= held) {
      (void)open.wait_for(std::chrono::seconds(60));
    }
  }

  [[nodiscard]] bool has(std::uint64_t ticket) {
    std::unique_lock lock(mutex);
    return arrived.wait_for(lock, std::chrono::seconds(60), [&] {
      return std::find(tickets.begin(), tickets.end(), ticket) != tickets.end();
    });
  }

  std::promise<void> gate;
  std::shared_future<void> open = gate.get_future().share();
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::uint64_t> tickets;
  std::uint64_t held = 1;
};

PlanRequest request_of(const std::string& job, std::uint64_t ticket) {
  PlanRequest asked = request(ticket);
  asked.job = {1000, job};
  return asked;
}

TEST(Planner, what_one_job_asks_for_does_not_hold_up_another) {
  GatedSink sink;
  ThreadPlanner planner([&sink](const PlanOutcome& outcome) { sink.put(outcome); });
  planner.submit(request_of("long", 1));
  ASSERT_TRUE(sink.has(1));
  for (std::uint64_t ticket = 2; ticket < 20; ++ticket) {
    planner.submit(request_of("long", ticket));
  }
  planner.submit(request_of("short", 20));
  EXPECT_TRUE(sink.has(20));
  EXPECT_EQ(sink.tickets, (std::vector<std::uint64_t>{1, 20})) << "a job has one thread at a time";
  sink.gate.set_value();
  EXPECT_TRUE(sink.has(19));
}

TEST(Planner, one_uid_leaves_a_thread_to_others) {
  GatedSink sink;
  sink.held = ThreadPlanner::kThreads;
  ThreadPlanner planner([&sink](const PlanOutcome& outcome) { sink.put(outcome); });
  std::uint64_t ticket = 0;
  for (const char* job : {"a", "b", "c", "d"}) {
    planner.submit(request_of(job, ++ticket));
  }
  EXPECT_TRUE(sink.has(1));
  EXPECT_TRUE(sink.has(2));
  EXPECT_TRUE(sink.has(3));
  PlanRequest other = request_of("a", ++ticket);
  other.job.first = 4711;
  planner.submit(std::move(other));
  EXPECT_TRUE(sink.has(5));
  EXPECT_EQ(sink.tickets.size(), 4u) << "the fourth job of the first uid waits";
  sink.gate.set_value();
  EXPECT_TRUE(sink.has(4));
}

TEST(Planner, what_is_withdrawn_is_not_planned) {
  GatedSink sink;
  ThreadPlanner planner([&sink](const PlanOutcome& outcome) { sink.put(outcome); });
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    planner.submit(request_of("job", ticket));
  }
  ASSERT_TRUE(sink.has(1));
  planner.withdraw(2);
  sink.gate.set_value();
  ASSERT_TRUE(sink.has(3));
  EXPECT_EQ(sink.tickets, (std::vector<std::uint64_t>{1, 3}));
}

TEST(Planner, a_check_and_a_plan_stop_when_they_are_interrupted) {
  const std::atomic<bool> raised{true};
  const plan::Interruptible interruptible(raised);
  PlanRequest check = request(1);
  check.pool = std::make_shared<plan::DeclarationPool>(check.meshes);
  EXPECT_THROW((void)run_planner(check), plan::Interrupted);
  EXPECT_THROW((void)run_planner(request(2)), plan::Interrupted);
}

TEST(Planner, a_rank_that_leaves_or_declares_anew_withdraws_what_was_asked_for_it) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.declare(0, Harness::declaration({Harness::tensor("a")}));
  EXPECT_EQ(h.planner.withdrawn.size(), 1u) << "the check of the first declaration";
  h.declare(1, Harness::declaration({Harness::tensor("a")}));
  while (h.planner.requests.front().pool != nullptr) {
    h.engine.on_plan(h.planner.plan_next());
  }
  const std::uint64_t plan = h.planner.requests.front().ticket;
  ASSERT_TRUE(h.engine.detach(h.sessions.at(1)));
  EXPECT_EQ(h.planner.withdrawn.back(), plan);
  h.pump();
}

struct Freed {
  std::promise<std::thread::id>* by = nullptr;

  explicit Freed(std::promise<std::thread::id>* given) : by(given) {}

  Freed(const Freed&) = delete;
  Freed& operator=(const Freed&) = delete;

  ~Freed() { by->set_value(std::this_thread::get_id()); }
};

TEST(Planner, frees_on_its_own_thread_what_its_last_owner_lets_go) {
  std::promise<std::thread::id> freed;
  std::future<std::thread::id> by = freed.get_future();
  ThreadPlanner planner([](const PlanOutcome&) {});
  auto value = planner.freed_elsewhere(std::make_shared<const Freed>(&freed));
  auto other = value;
  value.reset();
  EXPECT_EQ(by.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "somebody holds it still";
  other.reset();
  ASSERT_EQ(by.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_NE(by.get(), std::this_thread::get_id());
}

TEST(Planner, frees_what_outlives_it) {
  std::promise<std::thread::id> freed;
  std::future<std::thread::id> by = freed.get_future();
  auto planner = std::make_unique<ThreadPlanner>([](const PlanOutcome&) {});
  auto value = planner->freed_elsewhere(std::make_shared<const Freed>(&freed));
  planner.reset();
  EXPECT_EQ(by.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  value.reset();
  EXPECT_EQ(by.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST(Planner, admits_a_declaration_without_a_plan_and_says_with_whom_it_shares_its_tensors) {
  const PlanRequest plain = request(3);
  const auto pool = std::make_shared<plan::DeclarationPool>(plain.meshes);
  const auto admitted = [&pool](const PlanRequest& of) {
    PlanRequest only = of;
    only.pool = pool;
    PlanOutcome outcome = run_planner(only);
    EXPECT_TRUE(outcome.plan);
    EXPECT_EQ(*outcome.plan, nullptr);
    return outcome;
  };
  EXPECT_FALSE(admitted(plain).sharing);
  EXPECT_FALSE(admitted(plain).sharing) << "its own";
  plan::RankDeclaration alike = Harness::declaration({Harness::tensor("a")});
  alike.weight_fingerprints = {"0123456789abcdef"};
  PlanRequest other = request(4);
  other.by_rank = std::vector{std::make_shared<const plan::RankDeclaration>(alike)};
  const PlanOutcome outcome = admitted(other);
  ASSERT_TRUE(outcome.sharing);
  EXPECT_EQ(outcome.sharing->declaration->tensors.identity(), plain.by_rank[0]->tensors.identity());
  EXPECT_EQ(outcome.sharing->declaration->weight_fingerprints, alike.weight_fingerprints);
  EXPECT_GT(outcome.sharing->memory_bytes, 16U) << "the fingerprints are its own";
}

TEST(Planner, prepares_for_the_lane_and_for_reports_what_the_io_thread_only_hands_on) {
  PlanRequest arena = request(4);
  const PlanOutcome reduced = run_planner(arena);
  ASSERT_TRUE(reduced.plan);
  EXPECT_EQ(std::get<device::LanePlan>((*reduced.plan)->layout).buckets.size(), 1u);
  EXPECT_EQ((*reduced.plan)->constants.data_path, "arena");

  plan::RankDeclaration measured = Harness::declaration({Harness::tensor("a")});
  measured.options.data_path = plan::DataPath::Stats;
  measured.tensors.own()[0].placements.clear();
  PlanRequest stats = request(5);
  stats.by_rank = std::vector{std::make_shared<const plan::RankDeclaration>(measured)};
  const PlanOutcome outcome = run_planner(stats);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  const auto& layout = std::get<device::StatsPlan>((*outcome.plan)->layout);
  ASSERT_EQ(layout.tensors.size(), 1u);
  EXPECT_EQ(layout.tensors[0].holders.size(), 1u);
  EXPECT_TRUE(layout.rank_buffers.empty()) << "known when it is loaded";
}

PlanRequest request_of_nodes();

TEST(Planner, gives_a_plan_communicators_where_nccl_carries_what_travels) {
  PlanRequest asked = request_of_nodes();
  asked.cpu_collectives = true;
  const PlanOutcome outcome = run_planner(asked);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  const PreparedPlan& prepared = **outcome.plan;
  EXPECT_TRUE(prepared.cpu_collectives);
  EXPECT_TRUE(prepared.linked.empty()) << "there is nothing for sockets";
  const device::LaneNodes& nodes = std::get<device::LanePlan>(prepared.layout).nodes;
  ASSERT_TRUE(nodes.communicators);
  EXPECT_EQ(nodes.communicators->needed.size(), 1u);
}

TEST(Planner, refuses_what_collectives_cannot_add_up) {
  PlanRequest asked = request_of_nodes();
  asked.cpu_collectives = true;
  plan::RankDeclaration rounded = *asked.by_rank[0];
  rounded.options.partial_sums = plan::PartialSums::BFloat16;
  asked.by_rank.own().assign(2, std::make_shared<const plan::RankDeclaration>(rounded));
  const PlanOutcome outcome = run_planner(asked);
  ASSERT_FALSE(outcome.plan);
  EXPECT_EQ(outcome.plan.error().code, ErrorCode::UnsupportedPlacement);
  EXPECT_EQ(outcome.plan.error().path, "partial_sums");
  asked.cpu_collectives = false;
  EXPECT_TRUE(run_planner(asked).plan);
}

TEST(Planner, leaves_a_job_of_one_node_on_the_lane_of_the_host) {
  PlanRequest asked = request(1);
  asked.cpu_collectives = true;
  const PlanOutcome outcome = run_planner(asked);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  EXPECT_FALSE((*outcome.plan)->cpu_collectives);
}

/// Two ranks, of which the second is on another node.
PlanRequest request_of_nodes() {
  PlanRequest asked = request(1);
  asked.by_rank.own().push_back(asked.by_rank[0]);
  asked.meshes = {{"default", {{"dp", 2}}, {}}};
  asked.world_size = 2;
  asked.weights = std::vector<std::shared_ptr<const WeightFingerprints>>(2);
  asked.node_of_rank = {0, 1};
  asked.lane_of_rank = {device::kHostLane, device::kHostLane};
  return asked;
}

TEST(Planner, says_what_travels_and_to_which_nodes) {
  PlanRequest asked = request_of_nodes();
  asked.node = 1;
  const PlanOutcome outcome = run_planner(asked);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  const PreparedPlan& prepared = **outcome.plan;
  const device::LaneNodes& nodes = std::get<device::LanePlan>(prepared.layout).nodes;
  EXPECT_EQ(nodes.node, 1u);
  EXPECT_EQ(nodes.node_of_rank, asked.node_of_rank);
  ASSERT_EQ(nodes.transfers.size(), prepared.plan->buckets.size());
  EXPECT_EQ(nodes.transfers[0].streams.size(), 1u);
  EXPECT_EQ(prepared.linked, (std::vector<NodeNumber>{0}));
  EXPECT_EQ(prepared.shares[0].site, 1u);
  ASSERT_TRUE(prepared.comparison);
  EXPECT_TRUE(prepared.comparison->classes.empty()) << "there is one sum, which both get";
  EXPECT_EQ(prepared.comparison->of_node.size(), 2u);
}

TEST(Planner, what_travels_counts_as_memory_of_the_plan) {
  const auto memory = [](std::int64_t elements, const std::vector<NodeNumber>& node_of_rank) {
    PlanRequest asked = request_of_nodes();
    plan::RankDeclaration declared = Harness::declaration({Harness::tensor("a", elements)});
    const auto shared =
        std::make_shared<const plan::RankDeclaration>(Harness::declaration({Harness::tensor("a", elements)}));
    asked.by_rank = std::vector<std::shared_ptr<const plan::RankDeclaration>>(2, shared);
    asked.node_of_rank = node_of_rank;
    const PlanOutcome outcome = run_planner(asked);
    EXPECT_TRUE(outcome.plan) << outcome.plan.error().message;
    return (*outcome.plan)->memory_bytes;
  };
  const std::int64_t elements = 1 << 18;
  const std::uint64_t alone = memory(elements, {});
  const std::uint64_t small = memory(elements, {0, 1});
  EXPECT_GT(small, alone + 10 * elements) << "12 bytes of what the node owns are staged, and 8 of the rest";
  EXPECT_LT(small, alone + 12 * elements);
  EXPECT_LT(memory(64 * elements, {0, 1}), memory(64 * elements, {}) + (68u << 20)) << "which has a limit";
  EXPECT_GT(memory(64 * elements, {0, 1}), memory(64 * elements, {}) + (64u << 20));
}

TEST(Planner, gradients_of_several_nodes_that_lie_on_gpus_travel_by_communicators_of_their_lane) {
  PlanRequest asked = request_of_nodes();
  asked.lane_of_rank = {3, 3};
  const PlanOutcome outcome = run_planner(asked);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  const PreparedPlan& prepared = **outcome.plan;
  EXPECT_FALSE(prepared.cpu_collectives);
  EXPECT_TRUE(prepared.linked.empty());
  ASSERT_EQ(prepared.shares.size(), 1u);
  EXPECT_EQ(prepared.shares[0].lane, 3u);
  const device::LaneNodes& nodes = std::get<device::LanePlan>(prepared.layout).nodes;
  ASSERT_TRUE(nodes.communicators);
  EXPECT_EQ(nodes.communicators->needed.size(), 1u);
}

/// Ranks 0 and 1 are on the other node, 2 and 3 on GPUs of this one.
PlanRequest request_of_sites() {
  PlanRequest asked = request_of_nodes();
  for (std::size_t rank = 2; rank < 4; ++rank) {
    asked.by_rank.own().push_back(asked.by_rank[0]);
  }
  asked.meshes = {{"default", {{"dp", 4}}, {}}};
  asked.world_size = 4;
  asked.weights = std::vector<std::shared_ptr<const WeightFingerprints>>(4);
  asked.node_of_rank = {0, 0, 1, 1};
  asked.site_of_rank = {0, 0, 1, 2};
  asked.node = 1;
  asked.lane_of_rank = {3, 3, 3, 4};  // a node knows its own ranks' lanes
  return asked;
}

TEST(Planner, each_gpu_of_a_node_has_every_bucket_and_its_own_part_of_what_travels) {
  const PlanOutcome outcome = run_planner(request_of_sites());
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  const PreparedPlan& prepared = **outcome.plan;
  ASSERT_EQ(prepared.shares.size(), 2u);
  EXPECT_EQ(prepared.shares[0], (LaneShare{3, {0}, 1}));
  EXPECT_EQ(prepared.shares[1], (LaneShare{4, {0}, 2}));
  EXPECT_FALSE(prepared.join) << "cells go to the coordinator";
  ASSERT_EQ(prepared.other_sites.size(), 1u);
  const device::LaneNodes& first = std::get<device::LanePlan>(prepared.layout).nodes;
  const device::LaneNodes& second = prepared.other_sites[0];
  EXPECT_EQ(first.node, 1u);
  EXPECT_EQ(second.node, 2u);
  EXPECT_EQ(second.transfers.identity(), first.transfers.identity()) << "they are large";
  EXPECT_EQ(second.node_of_rank, (std::vector<NodeNumber>{0, 0, 1, 2}));
  EXPECT_EQ(prepared.comparison->node_of_rank, second.node_of_rank);
  ASSERT_TRUE(first.communicators && second.communicators);
  ASSERT_EQ(second.communicators->needed.size(), 1u);
  EXPECT_EQ(second.communicators->needed[0].spec.ranks, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(first.communicators->needed[0].spec.own, 1u);
  EXPECT_EQ(second.communicators->needed[0].spec.own, 2u);
}

TEST(Planner, what_a_node_says_of_a_step_has_to_fit_a_message) {
  PlanRequest asked = request_of_sites();
  plan::RankDeclaration declared = Harness::declaration({Harness::tensor("a"), Harness::tensor("b")});
  for (plan::TensorDeclaration& tensor : declared.tensors.own()) {
    tensor.layer = "layer of " + tensor.name;
  }
  const auto layered = std::make_shared<const plan::RankDeclaration>(declared);
  asked.by_rank = std::vector<std::shared_ptr<const plan::RankDeclaration>>(4, layered);
  const PlanOutcome taken = run_planner(asked);
  ASSERT_TRUE(taken.plan) << taken.plan.error().message;
  const PreparedPlan& prepared = **taken.plan;
  const AskSize largest = largest_ask(*prepared.plan, *prepared.comparison, asked.node_of_rank);
  EXPECT_EQ(largest.sites, 2u);
  asked.peer_bytes = largest.bytes;
  EXPECT_TRUE(run_planner(asked).plan);
  asked.peer_bytes = largest.bytes - 1;
  for (const NodeNumber node : {0u, 1u}) {
    asked.node = node;
    const PlanOutcome refused = run_planner(asked);
    ASSERT_FALSE(refused.plan) << "on all nodes alike";
    EXPECT_EQ(refused.plan.error().code, ErrorCode::LimitExceeded);
    EXPECT_THAT(
        refused.plan.error().message,
        testing::AllOf(
            testing::HasSubstr("for each of its 2 GPUs"),
            testing::HasSubstr(human_bytes(largest.bytes)),
            testing::HasSubstr("2 layers, 1 clip groups and 2 tensors")
        )
    );
    EXPECT_THAT(refused.plan.error().hint, testing::HasSubstr("declare fewer layers"));
  }
}

TEST(Planner, twenty_thousand_layers_of_a_node_with_eight_gpus_do_not_fit_a_message) {
  plan::Plan plan;
  plan.tensors.resize(20'000);
  Comparison comparison;
  comparison.layers = 20'000;
  comparison.of_node.resize(9);
  std::vector<NodeNumber> node_of_rank{0};
  comparison.node_of_rank = {0};
  for (SiteNumber site = 1; site < 9; ++site) {
    node_of_rank.push_back(1);
    comparison.node_of_rank.push_back(site);
  }
  EXPECT_GT(largest_ask(plan, comparison, node_of_rank).bytes, kPeerTextBytes);
  plan.tensors.resize(10'000);
  comparison.layers = 10'000;
  EXPECT_LT(largest_ask(plan, comparison, node_of_rank).bytes, kPeerTextBytes);
  EXPECT_EQ(largest_ask(plan, comparison, std::vector<NodeNumber>(9)).bytes, 0u) << "nothing is sent on one node";
}

TEST(Planner, more_communicators_than_a_node_may_offer_are_refused_with_their_number) {
  const PlanOutcome outcome = run_planner(request_of_sites());
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  EXPECT_FALSE(refuse_offers(**outcome.plan));
  EXPECT_FALSE(refuse_offers(**outcome.plan, 2));
  const std::optional<Error> refused = refuse_offers(**outcome.plan, 1);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, ErrorCode::LimitExceeded);
  EXPECT_THAT(refused->message, testing::HasSubstr("2 GPUs of this node are members of 2 communicators together"));
  EXPECT_NE(refused->hint, "");
}

TEST(Planner, tables_of_a_node_behind_one_with_several_gpus_are_of_its_site) {
  PlanRequest asked = request_of_sites();
  plan::RankDeclaration declared = Harness::declaration({Harness::tensor("a")});
  declared.options.data_path = plan::DataPath::Stats;
  declared.tensors.own()[0].placements = {{{"dp"}, plan::Replicate{}}};
  const auto measured = std::make_shared<const plan::RankDeclaration>(declared);
  asked.by_rank = std::vector<std::shared_ptr<const plan::RankDeclaration>>(4, measured);
  asked.site_of_rank = {0, 1, 2, 2};
  asked.lane_of_rank.clear();
  const PlanOutcome outcome = run_planner(asked);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  EXPECT_EQ((*outcome.plan)->shares[0].site, 2u);
  const auto& layout = std::get<device::StatsPlan>((*outcome.plan)->layout);
  ASSERT_EQ(layout.tensors.size(), 1u);
  EXPECT_EQ(layout.tensors[0].holders.size(), 2u) << "those of ranks 2 and 3";
}

TEST(Planner, sums_that_stay_on_their_gpus_may_be_rounded_where_others_travel) {
  PlanRequest asked = request_of_sites();
  plan::RankDeclaration declared = *asked.by_rank[0];
  declared.options.partial_sums = plan::PartialSums::BFloat16;
  const auto rounded = std::make_shared<const plan::RankDeclaration>(declared);
  asked.by_rank = std::vector<std::shared_ptr<const plan::RankDeclaration>>(4, rounded);
  EXPECT_FALSE(run_planner(asked).plan);
  asked.node_of_rank = asked.site_of_rank = {0, 0, 0, 0};
  asked.node = 0;
  asked.lane_of_rank = {3, 3, 3, 3};
  EXPECT_TRUE(run_planner(asked).plan) << "one GPU has all ranks";
}

TEST(Planner, memory_of_a_cpu_beside_several_gpus_of_a_node_is_refused_with_the_ranks) {
  PlanRequest asked = request_of_sites();
  asked.lane_of_rank = {3, 3, 3, device::kHostLane};
  const auto expect_refused = [&](std::vector<std::int64_t> ranks) {
    const PlanOutcome outcome = run_planner(asked);
    ASSERT_FALSE(outcome.plan);
    EXPECT_EQ(outcome.plan.error().code, ErrorCode::UnsupportedPlacement);
    EXPECT_EQ(outcome.plan.error().ranks, ranks);
    EXPECT_NE(
        outcome.plan.error().message.find("memory of a CPU and of a GPU is not summed together"), std::string::npos
    );
  };
  expect_refused({3, 2});
  asked.site_of_rank = {0, 1, 2, 2};  // the other node has two GPUs
  asked.lane_of_rank = std::vector<device::LaneId>(4, device::kHostLane);
  expect_refused({2, 1});
}

}  // namespace
}  // namespace gradsync::engine
