#pragma once
// A plan of data path `stats` with the ranks' tables as a trainer fills them: from the values that it holds.

#include "device/math/chunk_reference.hpp"
#include "device/stats/stats_row.hpp"
#include "unit/device/lane_fixture.hpp"

#include <cmath>
#include <limits>

namespace gradsync::device {

inline constexpr std::uint64_t kStamp = (std::uint64_t{1} << 32) + 1;  // the first attempt of epoch 1

/// What a trainer writes of its gradients.
inline StatsRow row_of(const std::vector<double>& values, double p = 2, std::uint64_t stamp = kStamp) {
  StatsRow row;
  row.stamp = stamp;
  std::vector<double> finite;
  for (const double value : values) {
    if (std::isfinite(value)) {
      finite.push_back(value);
      row.maximum = std::max(row.maximum, std::abs(value));
    } else {
      ++row.nonfinite;
      row.nan += std::isnan(value) ? 1 : 0;
    }
  }
  if (!std::isinf(p)) {
    TensorSum sum;
    sum.maximum = row.maximum;
    sum.power_sum = power_sum(plan::DType::Float64, finite.data(), finite.size(), p, 1);
    if (needs_rescaling(sum, p)) {
      row.scale = rescaling_divisor(row.maximum, p);
      sum.power_sum = power_sum(plan::DType::Float64, finite.data(), finite.size(), p, row.scale);
    }
    row.power_sum = sum.power_sum.high;
    row.power_sum_low = sum.power_sum.low;
  }
  return row;
}

class StatsFixture : public LaneFixture {
 protected:
  /// Adds a tensor; each rank's rows follow in the order in which its tensors are added. Holders by box, then rank.
  struct Part {
    std::uint32_t rank = 0;
    std::uint32_t box = 0;
    std::uint64_t elements = 0;
  };

  void begin(std::uint32_t world, double p = 2) {
    plan_ = {};
    plan_.world_size = world;
    plan_.norm_type = p;
    rows_.assign(world, 0);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      plan_.rank_buffers.push_back(BufferId{rank} + 1);
    }
  }

  std::uint32_t tensor(const std::vector<Part>& parts, std::uint32_t clip_group = 0, std::int32_t layer = -1) {
    StatsTensor& added = plan_.tensors.emplace_back();
    added.clip_group = clip_group;
    added.layer = layer;
    plan_.clip_groups = std::max(plan_.clip_groups, clip_group + 1);
    plan_.layers = std::max(plan_.layers, static_cast<std::uint32_t>(layer + 1));
    for (const Part& part : parts) {
      added.holders.push_back({part.rank, rows_[part.rank]++, part.box, part.elements});
    }
    return static_cast<std::uint32_t>(plan_.tensors.size() - 1);
  }

  /// Maps a table per rank, all rows 0, and loads the plan.
  void load_stats() {
    start(1);
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      arenas_.emplace_back(std::max<std::uint64_t>(std::uint64_t{rows_[rank]} * sizeof(StatsRow), 64));
      map(rank);
    }
    lane_->submit(LoadStats{kPlan, plan_});
    expect<Loaded>();
  }

  StatsRow& row(std::uint32_t tensor, std::uint32_t rank) {
    for (const StatsHolder& holder : plan_.tensors[tensor].holders) {
      if (holder.rank == rank) {
        return arenas_[rank].at<StatsRow>(0)[holder.row];
      }
    }
    throw std::logic_error("the rank does not hold the tensor");
  }

  void fill(std::uint32_t tensor, std::uint32_t rank, const std::vector<double>& values) {
    row(tensor, rank) = row_of(values, plan_.norm_type);
  }

  [[nodiscard]] FinishStep command(Tag tag = 0) const {
    return {kPlan, tag, 1.0, std::vector<plan::ClipRule>(plan_.clip_groups, exact(std::nullopt)), true, kStamp};
  }

  StepMath measure(Tag tag = 0) {
    lane_->submit(command(tag));
    return expect<Finished>().math;
  }

  Failed refusal(Tag tag = 0) {
    lane_->submit(command(tag));
    return expect<Failed>();
  }

  /// Norms as doubles, so that a test sees every bit.
  static plan::ClipRule exact(std::optional<double> max_norm) {
    return {max_norm, plan::ClipMode::Strict, plan::ZeroRule::Refuse, plan::DType::Float64};
  }

  StatsPlan plan_;
  std::vector<std::uint32_t> rows_;  ///< by rank
};

}  // namespace gradsync::device
