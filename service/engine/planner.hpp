#pragma once
// What the planner thread runs, and that thread.

#include "engine/engine.hpp"

#include <functional>
#include <memory>

namespace gradsync::engine {

/// Validates every declaration, compares them, makes the plan and prepares it. Pure.
[[nodiscard]] PlanOutcome run_planner(const PlanRequest& request);

/// One thread, requests in order; between them it frees what is left to it. `sink` is called on that thread and must
/// only hand the outcome over. Requests still queued at destruction are dropped.
class ThreadPlanner : public PlannerPort {
 public:
  explicit ThreadPlanner(std::function<void(PlanOutcome)> sink);
  ~ThreadPlanner() override;
  void submit(PlanRequest request) override;

 private:
  [[nodiscard]] Disposal disposal() const override;

  struct State;
  std::shared_ptr<State> state_;  ///< also of what is yet to be freed
};

}  // namespace gradsync::engine
