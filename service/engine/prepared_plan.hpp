#pragma once
// A plan with all that is worked out from it once: it may have 100,000 tensors, so that is done where it was made and
// the io thread only hands it on.

#include "engine/lane_plan.hpp"
#include "engine/step_report.hpp"

#include <memory>
#include <utility>

namespace gradsync::engine {

struct PreparedPlan {
  explicit PreparedPlan(plan::Plan made)
      : plan(std::make_shared<const plan::Plan>(std::move(made))),
        layout(lane_layout_of(*plan)),
        constants(report_constants(*plan)) {}

  std::shared_ptr<const plan::Plan> plan;
  LaneLayout layout;
  ReportConstants constants;
};

}  // namespace gradsync::engine
