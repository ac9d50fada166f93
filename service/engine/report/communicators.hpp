#pragma once
// The groups of ranks whose gradients travel between nodes, as people see them. By sockets: who brings something to a
// sum that is on several nodes, and how much went over the connections of this node for it; groups are those of the
// plan, and nothing is connected for one of them alone. By NCCL: the communicators of this node, their collectives, and
// what this node gave to them and got. How much of that crosses the network is known to NCCL alone.

#include "base/clock.hpp"
#include "device/lane.hpp"
#include "engine/report/report.hpp"
#include "plan/plan.hpp"
#include "plan/transfer/bucket_collectives.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

class Communicators {
 public:
  /// None: nothing travels.
  Communicators() = default;

  /// What a lane of this node takes part in; lanes come in the order of their sites. `collectives`: none where sums
  /// travel by sockets.
  void add(const plan::Plan& plan, const device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives = {});

  /// The lane has reduced the bucket. Lanes are counted from 0.
  void on_reduced(std::size_t lane, std::uint32_t bucket, TimePoint now);

  /// The first 16 of them.
  [[nodiscard]] std::vector<CommunicatorStatus> status(std::uint64_t epoch, const char* state, TimePoint now) const;

  /// Both ways, in one reduction by this lane.
  [[nodiscard]] std::uint64_t bytes_of(std::size_t lane, std::uint32_t bucket) const;

  /// Those of NCCL, in one reduction by this lane, but for those that a lane before it counts.
  [[nodiscard]] std::uint64_t collectives_of(std::size_t lane, std::uint32_t bucket) const;

 private:
  struct Communicator {
    std::string name;
    std::vector<std::int64_t> ranks;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t operations = 0;
    std::uint64_t operations_per_step = 0;
    std::optional<TimePoint> used = {};
    /// The first lane that is a member: an operation of several GPUs of this node is one.
    std::size_t counted_by = std::numeric_limits<std::size_t>::max();
  };

  /// What one reduction of a bucket moves for one of them.
  struct Use {
    std::size_t communicator = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t operations = 0;
  };

  using UsesByBucket = std::vector<std::vector<Use>>;

  [[nodiscard]] UsesByBucket count_messages(const plan::Plan& plan, const device::LaneNodes& nodes);
  [[nodiscard]] UsesByBucket count_collectives(
      const device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives
  );
  /// None where nothing of the bucket is known to travel.
  [[nodiscard]] const std::vector<Use>& uses_of(std::size_t lane, std::uint32_t bucket) const;
  [[nodiscard]] std::vector<std::size_t> take_streams(
      const plan::Plan& plan, const plan::BucketTransfer& transfer, plan::TransferNode node
  );
  [[nodiscard]] std::size_t find_or_add(std::string name, std::vector<std::int64_t> ranks);

  bool nccl_ = false;
  std::vector<Communicator> all_;
  std::vector<UsesByBucket> by_lane_;
};

}  // namespace gradsync::engine
