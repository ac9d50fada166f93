#include "engine/step/join_cells.hpp"

#include "device/math/norm_totals.hpp"

#include <algorithm>

namespace gradsync::engine {

namespace {

/// Those of all parts in the order of tensors; the least that one lane would have given.
template <typename Finding>
void take(std::vector<Finding>& all, const std::vector<Finding>& some) {
  all.insert(all.end(), some.begin(), some.end());
  std::ranges::sort(all, {}, &Finding::tensor);
  all.resize(std::min(all.size(), device::kMaxFindings));
}

}  // namespace

JoinPlan join_plan_of(const device::LanePlan& plan) {
  JoinPlan join{plan.norm_type, plan.clip_groups, plan.layers, {}};
  join.tensors.reserve(plan.tensors.size());
  for (const device::LaneTensor& tensor : plan.tensors) {
    join.tensors.push_back({tensor.clip_group, tensor.layer});
  }
  return join;
}

device::StepMath join_cells(
    const JoinPlan& plan,
    const std::vector<device::Measured>& parts,
    const std::vector<plan::ClipRule>& rules,
    double scale
) {
  std::vector<const device::TensorCell*> cells;
  device::StepMath math;
  for (const device::Measured& part : parts) {
    for (const device::TensorCell& cell : part.cells) {
      cells.push_back(&cell);
    }
    take(math.nonfinite, part.findings.nonfinite);
    take(math.divergence, part.findings.divergence);
    take(math.missing, part.findings.missing);
    math.absent.insert(math.absent.end(), part.findings.absent.begin(), part.findings.absent.end());
    math.nonfinite_total += part.findings.nonfinite_total;
    math.norm_s = std::max(math.norm_s, part.findings.norm_s);
  }
  std::ranges::sort(math.absent);
  std::ranges::sort(cells, {}, &device::TensorCell::tensor);
  device::NormTotals totals(plan.norm_type, plan.clip_groups, plan.layers);
  for (const device::TensorCell* cell : cells) {
    const JoinPlan::Tensor& tensor = plan.tensors[cell->tensor];
    totals.add(cell->sum, tensor.clip_group, tensor.layer);
    math.counted_elements += cell->elements;
  }
  totals.write(rules, scale, math);
  return math;
}

}  // namespace gradsync::engine
