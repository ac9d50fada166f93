#pragma once
// The sums of a step, whole, by clip group and by layer, and what the rules make of them. Tensors are added in plan
// order: the order of addition is part of the result. A plan has one, for step after step.

#include "device/lane.hpp"
#include "device/math/norm_sum.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace gradsync::device {

class NormTotals {
 public:
  NormTotals(double p, std::uint32_t clip_groups, std::uint32_t layers)
      : p_(p), total_(p), groups_(clip_groups == 1 ? 0 : clip_groups, NormSum(p)), layers_(layers, NormSum(p)) {}

  /// For the next step.
  void clear() {
    total_ = NormSum(p_);
    std::fill(groups_.begin(), groups_.end(), total_);
    std::fill(layers_.begin(), layers_.end(), total_);
  }

  /// `layer` −1: none.
  void add(const TensorSum& sum, std::uint32_t clip_group, std::int32_t layer) {
    total_.add(sum);
    if (!groups_.empty()) {
      groups_[clip_group].add(sum);
    }
    if (layer >= 0) {
      layers_[static_cast<std::size_t>(layer)].add(sum);
    }
  }

  /// What was added, as it is.
  [[nodiscard]] NodeCells cells(std::uint64_t counted_elements) const;

  /// Norms and outcomes, decided together; one rule per clip group.
  void write(const std::vector<plan::ClipRule>& rules, double scale, StepMath& math) const;

 private:
  double p_;
  NormSum total_;
  std::vector<NormSum> groups_;  ///< none where there is one group: its sum is the whole
  std::vector<NormSum> layers_;
};

/// Throws DeviceError unless there is one rule per clip group and the scale is positive.
void check_rules(const FinishStep& command, std::uint32_t clip_groups);

/// Throws DeviceError unless there is one outcome per clip group.
void check_outcomes(const ScaleGradients& command, std::uint32_t clip_groups);

/// Throws DeviceError unless attempt `tag` has a norm to clip by: the last one measured.
void check_measured(std::optional<Tag> measured, Tag tag);

/// Throws DeviceError where attempt `tag` was multiplied before.
void check_unapplied(std::optional<Tag> applied, Tag tag);

}  // namespace gradsync::device
