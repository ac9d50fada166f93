#include "device/norm_totals.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

namespace gradsync::device {

void NormTotals::write(const std::vector<plan::ClipRule>& rules, double scale, StepMath& math) const {
  plan::ClipRule measure;
  for (std::size_t group = 0; group < rules.size(); ++group) {
    const plan::ClipRule& rule = rules[group];
    const double raw_norm = (groups_.empty() ? total_ : groups_[group]).norm();
    math.groups.push_back(plan::apply_clip_rule(rule, raw_norm, scale));
    math.raw_group_norms.push_back(raw_norm);
    measure.norm_dtype = rule.norm_dtype == plan::DType::Float64 ? rule.norm_dtype : measure.norm_dtype;
  }
  plan::decide_together(math.groups);
  math.norm = plan::apply_clip_rule(measure, total_.norm(), scale).norm;
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
