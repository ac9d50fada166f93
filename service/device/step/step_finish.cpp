#include "device/step/step_finish.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/math/norm_totals.hpp"
#include "device/step/contributions.hpp"
#include "device/step/tensor_findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace gradsync::device {

namespace {

void check_bucket(const LoadedPlan& plan, std::size_t bucket, Tag tag) {
  if (bucket >= plan.attempt().buckets.size() || plan.attempt().buckets[bucket].reduced != tag) {
    throw DeviceError(
        fmt::format("bucket {} does not hold the sums of attempt {}: a norm of it would be wrong", bucket, tag)
    );
  }
}

/// Whether it was reduced here in this attempt: another lane has the other buckets of a plan that is shared.
bool is_here(const LoadedPlan& plan, std::uint32_t tensor, Tag tag) {
  return plan.attempt().buckets[plan.layout().tensors[tensor].bucket].reduced == tag;
}

/// Whether anything is to be said of single tensors.
bool combine_norms(LoadedPlan& plan, const FinishStep& command, StepMath& math) {
  const LanePlan& layout = plan.layout();
  std::uint64_t nonfinite = 0;
  plan.attempt().totals.clear();
  for (std::size_t index = 0; index < plan.attempt().tensors.size(); ++index) {
    const LaneTensor& tensor = layout.tensors[index];
    const TensorState& state = plan.attempt().tensors[index];
    if (!state.absent && tensor.parts != 0) {
      plan.attempt().totals.add(state.sum, tensor.clip_group, tensor.layer);
      math.counted_elements += state.counted_elements;
      nonfinite += state.sum.nonfinite;
    }
  }
  plan.attempt().totals.write(command.rules, command.scale, math);
  return nonfinite != 0 ||
         std::any_of(plan.attempt().buckets.begin(), plan.attempt().buckets.end(), [](const BucketState& bucket) {
           return bucket.has_findings();
         });
}

void report_findings(const LoadedPlan& plan, Tag tag, StepMath& math) {
  for (std::uint32_t index = 0; index < plan.attempt().tensors.size(); ++index) {
    if (!is_here(plan, index, tag)) {
      continue;
    }
    if (plan.attempt().tensors[index].absent) {
      math.absent.push_back(index);
      continue;
    }
    const std::uint64_t count = plan.attempt().tensors[index].sum.nonfinite;
    math.nonfinite_total += count;
    if (count != 0 || plan.attempt().flagged[index].load(std::memory_order_relaxed) != 0) {
      report_ranks(plan, index, math);
    }
    if (plan.attempt().tensors[index].incomplete && math.missing.size() < kMaxFindings) {
      report_missing(plan, index, math);
    }
  }
}

}  // namespace

void check_reduced(const LoadedPlan& plan, Tag tag, const std::vector<std::uint32_t>& buckets) {
  for (std::size_t bucket = 0; buckets.empty() && bucket < plan.attempt().buckets.size(); ++bucket) {
    check_bucket(plan, bucket, tag);
  }
  for (const std::uint32_t bucket : buckets) {
    check_bucket(plan, bucket, tag);
  }
  check_unapplied(plan.attempt().applied, tag);
}

StepMath finish_step(LoadedPlan& plan, const FinishStep& command, const StepPasses& passes) {
  check_reduced(plan, command.tag);
  if (command.raw) {
    throw DeviceError("a raw finish is of plans over several nodes, and all ranks of this one are here");
  }
  check_rules(command, plan.layout().clip_groups);
  const auto start = std::chrono::steady_clock::now();
  StepMath math;
  if (combine_norms(plan, command, math)) {
    report_findings(plan, command.tag, math);
  }
  math.norm_s = seconds(std::chrono::steady_clock::now() - start);
  if (command.apply) {
    plan.attempt().applied = command.tag;  // before the pass: an aborted one must not be repeated either
    math.clip_s = passes.multiply(plan, math.groups, Copies::Equal);
  } else {
    math.clip_s = passes.write_deferred(plan);  // trainers see the sums before they are multiplied
    plan.attempt().measured = command.tag;
  }
  return math;
}

Measured measure_buckets(LoadedPlan& plan, const MeasureBuckets& command, const StepPasses& passes) {
  if (command.buckets.empty()) {
    throw DeviceError("no bucket is to be measured: a lane without one takes no part in the step");
  }
  check_reduced(plan, command.tag, command.buckets);
  const auto start = std::chrono::steady_clock::now();
  Measured measured{command.plan, command.tag, {}, {}};
  bool finite = true;
  for (std::uint32_t index = 0; index < plan.attempt().tensors.size(); ++index) {
    const TensorState& state = plan.attempt().tensors[index];
    if (is_here(plan, index, command.tag) && !state.absent && plan.layout().tensors[index].parts != 0) {
      measured.cells.push_back({index, state.sum, state.counted_elements});
      finite = finite && state.sum.nonfinite == 0;
    }
  }
  const bool found = std::any_of(command.buckets.begin(), command.buckets.end(), [&](std::uint32_t bucket) {
    return plan.attempt().buckets[bucket].has_findings();
  });
  if (!finite || found) {
    report_findings(plan, command.tag, measured.findings);
  }
  measured.findings.norm_s = seconds(std::chrono::steady_clock::now() - start);
  measured.findings.clip_s = passes.write_deferred(plan);
  plan.attempt().measured = command.tag;
  return measured;
}

void begin_scaling(LoadedPlan& plan, const ScaleGradients& command) {
  check_reduced(plan, command.tag, command.buckets);
  check_measured(plan.attempt().measured, command.tag);
  check_outcomes(command, plan.layout().clip_groups);
  if (!std::is_sorted(command.absent.begin(), command.absent.end())) {
    throw DeviceError("the tensors that are absent on every node have to ascend");
  }
  plan.attempt().applied = command.tag;
}

double scale_gradients(LoadedPlan& plan, const ScaleGradients& command, const StepPasses& passes) {
  begin_scaling(plan, command);
  return passes.multiply(plan, command.outcomes, Copies::OwnedByRanks);
}

}  // namespace gradsync::device
