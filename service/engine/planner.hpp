#pragma once
// What the planner thread runs, and that thread.

#include "engine/engine.hpp"

#include <functional>
#include <memory>

namespace gradsync::engine {

/// Validates every declaration, compares them, makes the plan and prepares it. Pure.
[[nodiscard]] PlanOutcome run_planner(const PlanRequest& request);

/// One thread, requests in order. `sink` is called on that thread and must only hand the outcome over.
/// Requests still queued at destruction are dropped.
class ThreadPlanner : public PlannerPort {
 public:
  explicit ThreadPlanner(std::function<void(PlanOutcome)> sink);
  ~ThreadPlanner() override;
  void submit(PlanRequest request) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradsync::engine
