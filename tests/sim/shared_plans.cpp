#include "sim/shared_plans.hpp"

#include "engine/peers/declarations/content_hash.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "engine/plan/lane_plan.hpp"
#include "engine/plan/planner.hpp"

#include <map>
#include <utility>
#include <variant>

namespace gradsync::sim {

std::vector<SharedPlans::Run> SharedPlans::runs_of(const engine::PlanRequest& request) {
  std::map<const plan::RankDeclaration*, std::string> known;
  std::vector<Run> runs;
  const plan::RankDeclaration* last = nullptr;
  for (const auto& declaration : request.by_rank) {
    if (std::exchange(last, declaration.get()) != declaration.get()) {
      std::string& content = known[last];
      if (content.empty()) {
        content = engine::content_hash_of(*last);
      }
      if (runs.empty() || runs.back().content != content) {
        runs.push_back({content, 0});
      }
    }
    ++runs.back().ranks;
  }
  return runs;
}

engine::PlanOutcome SharedPlans::plan(const engine::PlanRequest& request) {
  if (request.pool != nullptr || request.node_of_rank.empty()) {
    return engine::run_planner(request);
  }
  std::vector<Run> contents = runs_of(request);
  if (made_ == nullptr || made_->node_of_rank != request.node_of_rank || made_->contents != contents) {
    engine::PlanOutcome first = engine::run_planner(request);
    if (!first.plan) {
      return first;
    }
    auto whole = std::get<device::StatsPlan>(engine::lane_layout_of(*(*first.plan)->plan));
    made_ = std::make_unique<Made>(Made{std::move(contents), request.node_of_rank, **first.plan, std::move(whole)});
    return first;
  }
  auto prepared = std::make_unique<engine::PreparedPlan>(made_->prepared);
  prepared->layout = engine::stats_plan_of_node(made_->whole, *prepared->comparison, request.node);
  prepared->shares.front().site = request.node;
  return {request.ticket, std::move(prepared)};
}

}  // namespace gradsync::sim
