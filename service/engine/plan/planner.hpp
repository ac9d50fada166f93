#pragma once
// The work of the planner thread, and that thread.

#include "engine/plan/planner_port.hpp"

#include <functional>
#include <memory>

namespace gradsync::engine {

/// Validates every declaration, compares them, makes the plan and prepares it. Pure.
[[nodiscard]] PlanOutcome run_planner(const PlanRequest& request);

/// Executes requests in order on one thread; between them it frees the values that are left to it. `sink` is called on
/// that thread and must only hand the outcome over. Requests still queued at destruction are dropped.
class ThreadPlanner : public PlannerPort {
 public:
  explicit ThreadPlanner(std::function<void(PlanOutcome)> sink);
  ~ThreadPlanner() override;
  void submit(PlanRequest request) override;

 private:
  [[nodiscard]] Disposal disposal() const override;

  struct State;
  std::shared_ptr<State> state_;  ///< shared with values that are yet to be freed
};

}  // namespace gradsync::engine
