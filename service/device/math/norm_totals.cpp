#include "device/math/norm_totals.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <iterator>

namespace gradsync::device {

NodeCells NormTotals::cells(std::uint64_t counted_elements) const {
  const auto sum = [](const NormSum& added) { return added.sum(); };
  NodeCells cells{total_.sum(), {}, {}, counted_elements};
  std::ranges::transform(groups_, std::back_inserter(cells.groups), sum);
  std::ranges::transform(layers_, std::back_inserter(cells.layers), sum);
  return cells;
}

void NormTotals::write(const std::vector<plan::ClipRule>& rules, double scale, StepMath& math) const {
  plan::DType dtype = plan::DType::Float32;
  math.groups.resize(rules.size());
  math.raw_group_norms.reserve(rules.size());
  math.layer_norms.reserve(layers_.size());
  for (std::size_t group = 0; group < rules.size(); ++group) {
    const double raw_norm = (groups_.empty() ? total_ : groups_[group]).norm();
    plan::apply_clip_rule(rules[group], raw_norm, scale, math.groups[group]);
    math.raw_group_norms.push_back(raw_norm);
    dtype = rules[group].norm_dtype == plan::DType::Float64 ? plan::DType::Float64 : dtype;
  }
  plan::decide_together(math.groups);
  math.norm = plan::reported_norm(total_.norm(), scale, dtype);
  for (const NormSum& layer : layers_) {
    math.layer_norms.push_back(layer.norm() / scale);
  }
}

void check_rules(const FinishStep& command, std::uint32_t clip_groups) {
  if (command.rules.size() != clip_groups) {
    throw DeviceError(fmt::format("{} clip rules for {} clip groups", command.rules.size(), clip_groups));
  }
  if (!(command.scale > 0)) {
    throw DeviceError(fmt::format("scale is {}, it must be positive", command.scale));
  }
}

void check_outcomes(const ScaleGradients& command, std::uint32_t clip_groups) {
  if (command.outcomes.size() != clip_groups) {
    throw DeviceError(fmt::format("{} clip outcomes for {} clip groups", command.outcomes.size(), clip_groups));
  }
}

void check_measured(std::optional<Tag> measured, Tag tag) {
  if (measured != tag) {
    throw DeviceError(fmt::format("attempt {} was not finished: there is no norm to clip by", tag));
  }
}

void check_unapplied(std::optional<Tag> applied, Tag tag) {
  if (applied == tag) {
    throw DeviceError(fmt::format("attempt {} was already finished: gradients are multiplied once", tag));
  }
}

}  // namespace gradsync::device
