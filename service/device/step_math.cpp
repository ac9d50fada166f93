#include "device/step_math.hpp"

namespace gradsync::device {

namespace {

/// Only what every step fills: lists of findings are rare, and hold lists of their own.
template <typename Item>
void take_memory(std::vector<Item>& from, std::vector<Item>& to) {
  from.clear();
  to.swap(from);
}

}  // namespace

StepMath renewed(StepMath before) {
  StepMath math;
  math.groups.swap(before.groups);
  take_memory(before.raw_group_norms, math.raw_group_norms);
  take_memory(before.layer_norms, math.layer_norms);
  take_memory(before.absent, math.absent);
  return math;
}

}  // namespace gradsync::device
