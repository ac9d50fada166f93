#include "engine/plan/project_plan.hpp"

#include "plan/interrupt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace gradsync::engine {

namespace {

using LaneOfRank = std::vector<device::LaneId>;

std::vector<LaneShare> shares_of(std::int64_t world_size, const LaneOfRank& lane_of_rank) {
  std::vector<LaneShare> shares;
  for (std::uint32_t rank = 0; rank < static_cast<std::uint64_t>(world_size); ++rank) {
    const device::LaneId lane = lane_of_rank.empty() ? device::kHostLane : lane_of_rank[rank];
    auto share = std::find_if(shares.begin(), shares.end(), [&](const LaneShare& each) { return each.lane == lane; });
    if (share == shares.end()) {
      share = shares.insert(share, LaneShare{lane, {}, {}});
    }
    share->ranks.push_back(rank);
  }
  return shares;
}

/// Ranks that hold something together; they have to be on one lane.
class Holders {
 public:
  explicit Holders(const LaneOfRank& lane_of_rank) : lane_of_rank_(lane_of_rank) {}

  void add(std::uint32_t rank) {
    first_ = first_.value_or(rank);
    if (lane_of(rank) != lane_of(*first_)) {
      other_ = other_.value_or(rank);
    }
  }

  [[nodiscard]] device::LaneId lane() const { return lane_of(first_.value_or(0)); }

  [[nodiscard]] std::optional<Error> refusal(const std::string& what) const {
    if (!other_) {
      return std::nullopt;
    }
    Error error = make_error(
        ErrorCode::UnsupportedPlacement,
        fmt::format(
            "{} is summed over rank {}, whose buffer is on lane {}, and rank {}, whose buffer is on lane {}",
            what,
            *first_,
            lane_of(*first_),
            *other_,
            lane_of(*other_)
        ),
        "buffers of ranks that share a tensor lie on one device: sums over several GPUs are not done yet"
    );
    error.path = "buffer";
    error.ranks = {*first_, *other_};
    return error;
  }

 private:
  [[nodiscard]] device::LaneId lane_of(std::uint32_t rank) const { return lane_of_rank_[rank]; }

  const LaneOfRank& lane_of_rank_;
  std::optional<std::uint32_t> first_;
  std::optional<std::uint32_t> other_;  ///< the first on another lane
};

}  // namespace

Result<std::vector<LaneShare>> project_plan(const plan::Plan& plan, const LaneOfRank& lane_of_rank) {
  std::vector<LaneShare> shares = shares_of(plan.world_size, lane_of_rank);
  if (shares.size() == 1) {
    shares.front().buckets.resize(plan.buckets.size());
    std::iota(shares.front().buckets.begin(), shares.front().buckets.end(), 0u);
    return shares;
  }
  for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    Holders holders(lane_of_rank);
    for (std::uint32_t rank = 0; rank < lane_of_rank.size(); ++rank) {
      if (!plan.layout(rank).bucket_rows[bucket].empty()) {
        holders.add(rank);
      }
    }
    if (std::optional<Error> error = holders.refusal(fmt::format("bucket {}", bucket))) {
      error->bucket = bucket;
      return std::move(*error);
    }
    std::find_if(shares.begin(), shares.end(), [&](const LaneShare& share) {
      return share.lane == holders.lane();
    })->buckets.push_back(bucket);
  }
  if (plan.options.data_path == plan::DataPath::Stats) {
    for (const plan::PlannedTensor& tensor : plan.tensors) {
      plan::interruption_point();
      Holders holders(lane_of_rank);
      for (const plan::Holding& holding : tensor.holdings) {
        holders.add(static_cast<std::uint32_t>(holding.rank));
      }
      if (std::optional<Error> error = holders.refusal(fmt::format("tensor '{}'", tensor.declaration.name))) {
        error->tensor = tensor.declaration.name;
        return std::move(*error);
      }
    }
  }
  return shares;
}

}  // namespace gradsync::engine
