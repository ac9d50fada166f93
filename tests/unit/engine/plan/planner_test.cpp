#include "engine/plan/planner.hpp"

#include "unit/engine/harness.hpp"

#include <gtest/gtest.h>

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
  request.by_rank = {std::make_shared<const plan::RankDeclaration>(Harness::declaration({Harness::tensor("a")}))};
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

TEST(Planner, validate_only_makes_no_plan) {
  PlanRequest only = request(3);
  only.validate_only = true;
  const PlanOutcome outcome = run_planner(only);
  ASSERT_TRUE(outcome.plan);
  EXPECT_EQ(*outcome.plan, nullptr);
}

TEST(Planner, prepares_for_the_lane_and_for_reports_what_the_io_thread_only_hands_on) {
  PlanRequest arena = request(4);
  const PlanOutcome reduced = run_planner(arena);
  ASSERT_TRUE(reduced.plan);
  EXPECT_EQ(std::get<device::LanePlan>((*reduced.plan)->layout).buckets.size(), 1u);
  EXPECT_EQ((*reduced.plan)->constants.data_path, "arena");

  plan::RankDeclaration measured = Harness::declaration({Harness::tensor("a")});
  measured.options.data_path = plan::DataPath::Stats;
  measured.tensors[0].placements.clear();
  PlanRequest stats = request(5);
  stats.by_rank = {std::make_shared<const plan::RankDeclaration>(measured)};
  const PlanOutcome outcome = run_planner(stats);
  ASSERT_TRUE(outcome.plan) << outcome.plan.error().message;
  const auto& layout = std::get<device::StatsPlan>((*outcome.plan)->layout);
  ASSERT_EQ(layout.tensors.size(), 1u);
  EXPECT_EQ(layout.tensors[0].holders.size(), 1u);
  EXPECT_TRUE(layout.rank_buffers.empty()) << "known when it is loaded";
}

}  // namespace
}  // namespace gradsync::engine
