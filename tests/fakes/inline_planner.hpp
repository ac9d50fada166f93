#pragma once
// Plans when told, on the calling thread, with the real planner.

#include "engine/plan/planner.hpp"

#include <deque>

namespace gradsync::fakes {

class InlinePlanner : public engine::PlannerPort {
 public:
  void submit(engine::PlanRequest request) override { requests.push_back(std::move(request)); }

  /// The outcome of the oldest request.
  engine::PlanOutcome plan_next() {
    engine::PlanOutcome outcome = engine::run_planner(requests.front());
    requests.pop_front();
    return outcome;
  }

  std::deque<engine::PlanRequest> requests;

 private:
  [[nodiscard]] Disposal disposal() const override {
    return [](std::shared_ptr<const void> value) { value.reset(); };
  }
};

}  // namespace gradsync::fakes
