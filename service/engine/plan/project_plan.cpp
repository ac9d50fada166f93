#include "engine/plan/project_plan.hpp"

#include "plan/interrupt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace gradsync::engine {

namespace {

using LaneOfRank = std::vector<device::LaneId>;

/// The lanes in the order of their first ranks.
std::vector<device::LaneId> lanes_of(const LaneOfRank& lane_of_rank) {
  std::vector<device::LaneId> lanes;
  for (const device::LaneId lane : lane_of_rank) {
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) {
      lanes.push_back(lane);
    }
  }
  return lanes.empty() ? std::vector{device::kHostLane} : lanes;
}

/// The first rank, and the first whose buffer is elsewhere.
Error refused(const LaneOfRank& lane_of_rank, const std::string& why, std::string hint) {
  const auto other = std::find_if(lane_of_rank.begin(), lane_of_rank.end(), [&](device::LaneId lane) {
    return lane != lane_of_rank.front();
  });
  const auto rank = other - lane_of_rank.begin();
  Error error = make_error(
      ErrorCode::UnsupportedPlacement,
      fmt::format(
          "rank 0 has its buffer on lane {} and rank {} on lane {}: {}", lane_of_rank.front(), rank, *other, why
      ),
      std::move(hint)
  );
  error.path = "buffer";
  error.ranks = {0, rank};
  return error;
}

/// Indices into `lanes`, of those that a bucket's ranks are on.
std::vector<std::size_t> candidates(
    const plan::Plan& plan,
    std::uint32_t bucket,
    const LaneOfRank& lane_of_rank,
    const std::vector<device::LaneId>& lanes
) {
  std::vector<std::size_t> found;
  for (std::uint32_t rank = 0; rank < lane_of_rank.size(); ++rank) {
    if (!plan.layout(rank).bucket_rows[bucket].empty()) {
      const auto lane = std::find(lanes.begin(), lanes.end(), lane_of_rank[rank]) - lanes.begin();
      if (std::find(found.begin(), found.end(), static_cast<std::size_t>(lane)) == found.end()) {
        found.push_back(static_cast<std::size_t>(lane));
      }
    }
  }
  return found.empty() ? std::vector<std::size_t>{0} : found;
}

std::vector<LaneShare> cut(
    const plan::Plan& plan, const LaneOfRank& lane_of_rank, const std::vector<device::LaneId>& lanes
) {
  std::vector<LaneShare> shares;
  for (const device::LaneId lane : lanes) {
    shares.push_back({lane, {}});
  }
  std::vector<std::uint32_t> by_size(plan.buckets.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::ranges::stable_sort(by_size, std::ranges::greater{}, [&](std::uint32_t bucket) {
    return plan.buckets[bucket].size_bytes;
  });
  std::vector<std::uint64_t> bytes(lanes.size());
  for (const std::uint32_t bucket : by_size) {
    plan::interruption_point();
    const std::vector<std::size_t> possible = candidates(plan, bucket, lane_of_rank, lanes);
    const std::size_t lane = *std::ranges::min_element(possible, {}, [&](std::size_t each) { return bytes[each]; });
    shares[lane].buckets.push_back(bucket);
    bytes[lane] += plan.buckets[bucket].size_bytes;
  }
  for (LaneShare& share : shares) {
    std::ranges::sort(share.buckets);
  }
  std::erase_if(shares, [](const LaneShare& share) { return share.buckets.empty(); });
  return shares;
}

}  // namespace

Result<std::vector<LaneShare>> project_plan(const plan::Plan& plan, const LaneOfRank& lane_of_rank) {
  const std::vector<device::LaneId> lanes = lanes_of(lane_of_rank);
  if (lanes.size() == 1) {
    LaneShare whole{lanes.front(), std::vector<std::uint32_t>(plan.buckets.size())};
    std::iota(whole.buckets.begin(), whole.buckets.end(), 0u);
    return std::vector{std::move(whole)};
  }
  if (plan.options.data_path == plan::DataPath::Stats) {
    return refused(lane_of_rank, "tables of statistics are read by one lane", "buffers.allocate gives their memory");
  }
  if (std::find(lanes.begin(), lanes.end(), device::kHostLane) != lanes.end()) {
    return refused(
        lane_of_rank,
        "memory of a CPU and of a GPU is not summed together",
        "have all ranks' gradients on GPUs, or none"
    );
  }
  std::vector<LaneShare> shares = cut(plan, lane_of_rank, lanes);
  if (shares.empty()) {  // a plan without a bucket
    shares.push_back({lanes.front(), {}});
  }
  return shares;
}

}  // namespace gradsync::engine
