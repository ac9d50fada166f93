#pragma once
// FinishStep on data path `stats`: the rows of all ranks → norms, coefficients and findings. The gradients are not
// here; each trainer multiplies its own.

#include "device/device_error.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_stats.hpp"
#include "device/stats/stats_row.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace gradsync::device {

/// A row that could not be believed, by indices; the caller knows the names.
class RowError : public DeviceError {
 public:
  RowError(std::uint32_t tensor, std::int64_t rank, const RowFault& fault)
      : DeviceError(fmt::format("tensor {}, rank {}: {} {}", tensor, rank, fault.field, fault.message)),
        tensor_(tensor),
        rank_(rank),
        field_(fault.field) {}

  [[nodiscard]] std::uint32_t tensor() const { return tensor_; }

  [[nodiscard]] std::int64_t rank() const { return rank_; }

  [[nodiscard]] const std::string& field() const { return field_; }

 private:
  std::uint32_t tensor_;
  std::int64_t rank_;
  std::string field_;
};

/// Throws RowError for the first row that is stale or impossible, DeviceError as `finish_step` does.
[[nodiscard]] StepMath finish_stats(LoadedStats& plan, const FinishStep& command, const std::atomic<bool>& cancel);

/// The findings of a node with what all nodes add and compare. Throws as `finish_stats` does, and where something is to
/// be decided.
[[nodiscard]] Finished finish_raw(LoadedStats& plan, const FinishStep& command, const std::atomic<bool>& cancel);

/// Nothing is left to do here but to keep the rule that a step is applied once. Throws DeviceError.
void scale_stats(LoadedStats& plan, const ScaleGradients& command);

}  // namespace gradsync::device
