#pragma once
// Plans when told, on the calling thread, with the real planner.

#include "engine/plan/planner.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace gradsync::fakes {

class InlinePlanner : public engine::PlannerPort {
 public:
  void submit(engine::PlanRequest request) override { requests.push_back(std::move(request)); }

  /// The request stays: the outcome that comes all the same is the harder case for the engine.
  void withdraw(std::uint64_t ticket) override { withdrawn.push_back(ticket); }

  /// The outcome of the oldest request.
  engine::PlanOutcome plan_next() {
    engine::PlanOutcome outcome = engine::run_planner(requests.front());
    requests.pop_front();
    return outcome;
  }

  std::deque<engine::PlanRequest> requests;
  std::vector<std::uint64_t> withdrawn;

 private:
  [[nodiscard]] Disposal disposal() const override {
    return [](std::shared_ptr<const void> value) { value.reset(); };
  }
};

}  // namespace gradsync::fakes
