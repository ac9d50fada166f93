#include "engine/step_report.hpp"

#include "engine/lane_plan.hpp"
#include "plan/words.hpp"

#include <algorithm>
#include <span>

namespace gradsync::engine {

ReportConstants report_constants(const plan::Plan& plan) {
  ReportConstants constants;
  constants.layers = layer_names(plan);
  constants.data_path = plan::name_of(plan.options.data_path);
  for (const plan::ClipGroup& group : plan.clip_groups) {
    std::vector<std::string>& watching = constants.watching.emplace_back();
    for (const plan::PolicyOptions& policy : group.clip.watch) {
      watching.push_back(plan::words_of(policy));
    }
  }
  for (const plan::ScalarCollective& collective : plan.scalar_collectives) {
    constants.scalar_collectives.push_back({collective.mesh, collective.axes, collective.length});
  }
  return constants;
}

StepReport step_report(const plan::Plan& plan, const ReportConstants& constants, const device::StepMath& math) {
  StepReport report;
  report.norm = math.norm;
  for (std::size_t i = 0; i < plan.clip_groups.size(); ++i) {
    const plan::ClipOutcome& outcome = math.groups[i];
    report.groups.push_back(
        {plan.clip_groups[i].name,
         outcome.norm,
         outcome.threshold,
         outcome.coefficient,
         outcome.clipped,
         outcome.reason,
         outcome.action,
         outcome.spike,
         {}}
    );
    report.action =
        std::max(report.action, outcome.action == plan::StepAction::Zero ? plan::StepAction::Step : outcome.action);
    report.clipped = report.clipped || outcome.clipped;
  }
  report.threshold = report.groups.front().threshold;
  report.coefficient = report.groups.front().coefficient;
  report.skipped = report.action != plan::StepAction::Step;
  report.reason = report.groups.front().reason;
  for (std::size_t i = 0; i < math.layer_norms.size() && i < constants.layers.size(); ++i) {
    report.layers.push_back({constants.layers[i], math.layer_norms[i]});
  }
  for (const device::NonfiniteFinding& finding : math.nonfinite) {
    NonfiniteReport& entry = report.nonfinite.emplace_back();
    entry.tensor = plan.tensors[finding.tensor].declaration.name;
    entry.count = finding.count;
    for (const auto& [rank, count] : finding.inputs) {
      entry.inputs.push_back({rank, count});
    }
  }
  for (const device::DivergenceFinding& finding : math.divergence) {
    report.divergence.push_back({plan.tensors[finding.tensor].declaration.name, finding.ranks});
  }
  for (const device::MissingFinding& finding : math.missing) {
    report.missing.push_back({plan.tensors[finding.tensor].declaration.name, finding.ranks});
  }
  report.found_inf = math.nonfinite_total > 0;
  const bool stats = plan.options.data_path == plan::DataPath::Stats;
  if (stats || !plan.rows_are_tensors) {
    for (const std::uint32_t tensor :
         std::span(math.absent).first(std::min(math.absent.size(), device::kMaxFindings))) {
      report.absent_names.push_back(plan.tensors[tensor].declaration.name);
    }
  }
  if (!stats) {
    report.absent = math.absent;
  }
  report.counted_elements = math.counted_elements;
  report.collectives = static_cast<std::int64_t>(plan.buckets.size());
  report.data_path = constants.data_path;
  report.scalar_collectives = constants.scalar_collectives;
  report.timings.norm_s = math.norm_s;
  report.timings.clip_s = math.clip_s;
  return report;
}

std::shared_ptr<const StepReport> report_for(
    const std::shared_ptr<const StepReport>& report, const plan::Plan& plan, std::int64_t rank
) {
  if (plan.rows_are_tensors || report->absent.empty()) {
    return report;
  }
  std::vector<bool> absent(plan.tensors.size(), false);
  for (const std::uint32_t tensor : report->absent) {
    absent[tensor] = true;
  }
  const auto own = std::make_shared<StepReport>(*report);
  own->absent.clear();
  own->absent_names.clear();
  const std::vector<std::uint32_t>& tensors = plan.layout(rank).tensors;
  for (std::uint32_t row = 0; row < tensors.size(); ++row) {
    if (absent[tensors[row]]) {
      own->absent.push_back(row);
    }
  }
  return own;
}

StepReport measured_report(const plan::Plan& plan, const ReportConstants& constants, const device::StepMath& math) {
  StepReport report = step_report(plan, constants, math);
  for (GroupReport& group : report.groups) {
    group.coefficient = 1;
    group.clipped = false;
    group.action = plan::StepAction::Step;
    group.spike = false;
    group.reason = "measured: clip.apply decides";
  }
  report.coefficient = 1;
  report.clipped = false;
  report.skipped = false;
  report.action = plan::StepAction::Step;
  report.reason = "measured: clip.apply decides";
  return report;
}

}  // namespace gradsync::engine
