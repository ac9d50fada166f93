#pragma once
// The work of the planner threads, and these threads.

#include "engine/plan/planner_port.hpp"

#include <functional>
#include <memory>

namespace gradsync::engine {

/// Admits a declaration to the pool of its job, or compares those of all ranks, makes the plan and prepares it.
[[nodiscard]] PlanOutcome run_planner(const PlanRequest& request);

/// Executes the requests of each job in order, on a few threads: one job has at most one of them, so that its long plan
/// does not hold up those of others. The jobs of one uid have all threads but one at most. Between requests they free
/// the values that are left to them. `sink` is called on one of the threads and must only hand the outcome over.
/// Destruction interrupts what is executed and drops the rest.
class ThreadPlanner : public PlannerPort {
 public:
  static constexpr std::size_t kThreads = 4;

  explicit ThreadPlanner(std::function<void(PlanOutcome)> sink);
  ~ThreadPlanner() override;
  void submit(PlanRequest request) override;
  void withdraw(std::uint64_t ticket) override;

 private:
  [[nodiscard]] Disposal disposal() const override;

  struct State;
  std::shared_ptr<State> state_;  ///< shared with values that are yet to be freed
};

}  // namespace gradsync::engine
