#include "engine/report/step_report.hpp"

#include "engine/plan/lane_plan.hpp"
#include "plan/check/words.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace gradsync::engine {

ReportConstants report_constants(const plan::Plan& plan) {
  ReportConstants constants;
  for (std::string& name : layer_names(plan)) {
    constants.layers.emplace_back(std::move(name));
  }
  constants.data_path = plan::name_of(plan.options.data_path);
  if (plan.options.partial_sums != plan::PartialSums::Exact) {
    constants.partial_sums = plan::name_of(plan.options.partial_sums);
  }
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

namespace {

// Makes the report new, but keeps the memory of the fields that every step of a plan fills in.

void renew(StepReport& report) {
  StepReport fresh;
  fresh.reason.swap(report.reason);
  fresh.groups.swap(report.groups);
  fresh.layers.swap(report.layers);
  fresh.absent.swap(report.absent);
  fresh.stable_buckets.swap(report.stable_buckets);
  fresh.policy_digest.swap(report.policy_digest);
  fresh.scalar_collectives.swap(report.scalar_collectives);
  fresh.reason.clear();
  fresh.absent.clear();
  fresh.stable_buckets.clear();
  fresh.policy_digest.clear();
  report = std::move(fresh);
}

void renew(GroupReport& group) {
  GroupReport fresh;
  fresh.name.swap(group.name);
  fresh.reason.swap(group.reason);
  fresh.watch.swap(group.watch);
  group = std::move(fresh);
}

void renew(WatchReport& watcher) {
  WatchReport fresh;
  fresh.policy.swap(watcher.policy);
  fresh.reason.swap(watcher.reason);
  fresh.reason.clear();
  watcher = std::move(fresh);
}

void report_group(
    const std::string& name,
    const std::vector<std::string>& watching,
    const plan::ClipOutcome& outcome,
    GroupReport& group
) {
  renew(group);
  group.name = name;
  group.norm = outcome.norm;
  group.threshold = outcome.threshold;
  group.coefficient = outcome.coefficient;
  group.clipped = outcome.clipped;
  group.reason = outcome.reason;
  group.action = outcome.action;
  group.spike = outcome.spike;
  group.watch.resize(watching.size());
  for (std::size_t watcher = 0; watcher < watching.size(); ++watcher) {
    renew(group.watch[watcher]);
    group.watch[watcher].policy = watching[watcher];
  }
}

void report_findings(const plan::Plan& plan, const device::StepMath& math, StepReport& report) {
  for (const device::NonfiniteFinding& finding : math.nonfinite) {
    NonfiniteReport& entry = report.nonfinite.emplace_back();
    entry.tensor = plan.tensors[finding.tensor].declaration.name;
    entry.count = finding.count;
    for (const auto& [rank, count] : finding.inputs) {
      entry.inputs.push_back({rank, count, {}});
    }
  }
  for (const device::DivergenceFinding& finding : math.divergence) {
    report.divergence.push_back(
        {plan.tensors[finding.tensor].declaration.name, finding.ranks, finding.majority, finding.suspects}
    );
  }
  for (const device::MissingFinding& finding : math.missing) {
    report.missing.push_back({plan.tensors[finding.tensor].declaration.name, finding.ranks});
  }
}

/// Tensors are named where ranks number them differently, else numbered.
void report_absent(const plan::Plan& plan, const device::StepMath& math, StepReport& report) {
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
}

}  // namespace

void step_report(
    const plan::Plan& plan, const ReportConstants& constants, const device::StepMath& math, StepReport& report
) {
  renew(report);
  report.norm = math.norm;
  report.groups.resize(plan.clip_groups.size());
  for (std::size_t i = 0; i < plan.clip_groups.size(); ++i) {
    const plan::ClipOutcome& outcome = math.groups[i];
    report_group(plan.clip_groups[i].name, constants.watching[i], outcome, report.groups[i]);
    report.action =
        std::max(report.action, outcome.action == plan::StepAction::Zero ? plan::StepAction::Step : outcome.action);
    report.clipped = report.clipped || outcome.clipped;
    if (outcome.decides) {
      report.decided_by = plan.clip_groups[i].name;
      report.reason = outcome.reason;
    }
  }
  report.threshold = report.groups.front().threshold;
  report.coefficient = report.groups.front().coefficient;
  report.skipped = report.action != plan::StepAction::Step;
  if (report.decided_by.empty()) {
    report.reason = report.groups.front().reason;
  }
  report.layers.resize(std::min(math.layer_norms.size(), constants.layers.size()));
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    report.layers[i].name = constants.layers[i];
    report.layers[i].norm = math.layer_norms[i];
  }
  report_findings(plan, math, report);
  report.found_inf = math.nonfinite_total > 0;
  report_absent(plan, math, report);
  report.counted_elements = math.counted_elements;
  report.collectives = static_cast<std::int64_t>(plan.buckets.size());
  report.data_path = constants.data_path;
  report.partial_sums = constants.partial_sums;
  report.scalar_collectives = constants.scalar_collectives;
  report.timings.norm_s = math.norm_s;
  report.timings.clip_s = math.clip_s;
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

void name_micro_batches(const MicroBatches& micro_batches, StepReport& report) {
  for (std::size_t finding = 0; finding < micro_batches.size(); ++finding) {
    for (std::size_t input = 0; input < micro_batches[finding].size(); ++input) {
      report.nonfinite[finding].inputs[input].micro_batch = micro_batches[finding][input];
    }
  }
}

StepReport measured_report(const plan::Plan& plan, const ReportConstants& constants, const device::StepMath& math) {
  StepReport report;
  step_report(plan, constants, math, report);
  for (GroupReport& group : report.groups) {
    group.coefficient = 1;
    group.clipped = false;
    group.action = plan::StepAction::Step;
    group.spike = false;
    group.reason = "measured: clip.apply decides";
    group.watch.clear();
  }
  report.coefficient = 1;
  report.clipped = false;
  report.skipped = false;
  report.action = plan::StepAction::Step;
  report.decided_by.clear();
  report.reason = "measured: clip.apply decides";
  return report;
}

}  // namespace gradsync::engine
