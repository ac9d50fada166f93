#include "engine/planner.hpp"

#include "harness.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
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

TEST(Planner, validate_only_makes_no_plan) {
  PlanRequest only = request(3);
  only.validate_only = true;
  const PlanOutcome outcome = run_planner(only);
  ASSERT_TRUE(outcome.plan);
  EXPECT_EQ(*outcome.plan, nullptr);
}

}  // namespace
}  // namespace gradsync::engine
