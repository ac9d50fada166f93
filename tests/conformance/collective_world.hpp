#pragma once
// Lanes of several nodes, each a worker process, whose sums travel by collectives of a library that has NCCL's
// interface, real sums and faults on demand.

#include "conformance/lane_kinds.hpp"
#include "unit/device/transfer/node_world.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::device {

inline constexpr PlanId kPlanOfNodes = NodeWorld::kPlan;
inline constexpr int kWarmUps = 2;  ///< operations of a new communicator; see the role in main.cpp

/// The device of lanes: the CPU, or a GPU, whose kernels run on the emulation.
enum class CollectiveDeviceKind { Host, Gpu };

inline std::string name_of(CollectiveDeviceKind kind) { return kind == CollectiveDeviceKind::Gpu ? "gpu" : "host"; }

/// So many nodes with such lanes.
struct CollectiveNodes {
  std::uint32_t nodes = 2;
  CollectiveDeviceKind kind = CollectiveDeviceKind::Host;

  friend std::ostream& operator<<(std::ostream& out, const CollectiveNodes& each) {
    return out << each.nodes << " of " << name_of(each.kind);
  }
};

/// Those whose lanes this build can run: ThreadSanitizer knows no fibers, on which the emulation runs.
inline std::vector<CollectiveNodes> runnable(std::vector<CollectiveNodes> all) {
#ifdef __SANITIZE_THREAD__
  std::erase_if(all, [](const CollectiveNodes& each) { return each.kind == CollectiveDeviceKind::Gpu; });
#endif
  return all;
}

inline std::vector<CollectiveDeviceKind> collective_kinds() {
  std::vector<CollectiveDeviceKind> kinds;
  for (const CollectiveNodes& each : runnable({{2, CollectiveDeviceKind::Host}, {2, CollectiveDeviceKind::Gpu}})) {
    kinds.push_back(each.kind);
  }
  return kinds;
}

/// Lanes behind processes: this binary as the worker, or the gradsyncd that GRADSYNC_TEST_WORKER names.
class NcclWorkers {
 public:
  explicit NcclWorkers(std::string script, CollectiveDeviceKind kind = CollectiveDeviceKind::Host)
      : script_(std::move(script)), kind_(kind) {}

  [[nodiscard]] MakeNodeLane maker() {
    return [this](plan::TransferNode node, LaneSink sink) {
      const bool gpu = kind_ == CollectiveDeviceKind::Gpu;
      ProcessLaneOptions options = worker_options(gpu ? "gpu_nccl_worker" : "nccl_worker");
      if (const char* worker = std::getenv("GRADSYNC_TEST_WORKER")) {
        options.command = {
            worker, "worker", "--threads", "1", "--nccl", GRADSYNC_FAKE_NCCL_LIBRARY, "--nccl-abort-ms", "500"};
        if (gpu) {
          options.command.insert(options.command.end(), {"--kernels", gpu_options().library});
        }
      }
      options.environment = {"GRADSYNC_FAKE_NCCL=" + script_};
      auto lane = std::make_unique<ProcessLane>(std::move(options), std::move(sink));
      lanes.resize(std::max<std::size_t>(lanes.size(), node + 1));
      lanes[node] = lane.get();
      return lane;
    };
  }

  std::vector<ProcessLane*> lanes;  ///< by node

 private:
  std::string script_;
  CollectiveDeviceKind kind_;
};

inline NodeWorldOptions collective_options(NcclWorkers& workers, const std::string& axis = "first") {
  NodeWorldOptions options;
  options.transfer.block_bytes = 16U << 10;
  options.make_lane = workers.maker();
  options.axis = axis;
  return options;
}

/// Whole tensors in three formats that all ranks sum, and one that is scattered over the ranks.
inline ShardedJob collective_job(std::uint32_t world) {
  const std::vector<std::uint32_t> ranks = all_ranks(world);
  ShardedJob job(world);
  job.add_bucket(plan::DType::Float32, 2.0);
  job.add_bucket(plan::DType::BFloat16, 4.0);
  job.add_bucket(plan::DType::Float64, 1.0);
  for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
    for (const std::uint64_t elements : {1U, 17U, 20'000U}) {
      ShardedTensor tensor = replicated({elements}, {ranks});
      tensor.bucket = bucket;
      tensor.clip_group = bucket % 2;
      job.add(tensor);
    }
  }
  job.add(scattered({world, 3'300}, 0, Index(world, 1), Index(ranks.begin(), ranks.end())));
  job.load();
  return job;
}

/// Two ranks on each node, side by side.
inline NodeOfRank pairs(std::uint32_t nodes) {
  NodeOfRank placed;
  for (std::uint32_t rank = 0; rank < 2 * nodes; ++rank) {
    placed.push_back(rank / 2);
  }
  return placed;
}

inline void expect_collective_step(NodeWorld& world, Tag tag, const UnusedSet& unused = {}) {
  ShardedOracle oracle(world.job, unused);
  const NodesSaid said = world.step(tag, unused);
  ASSERT_TRUE(said.failed.empty()) << said.failed.front().message;
  EXPECT_EQ(said.absent, oracle.absent);
  EXPECT_NEAR(said.norm, oracle.norm(), 1e-12 * oracle.norm());
  EXPECT_EQ(said.cells.counted_elements, oracle.counted_elements);
  EXPECT_EQ(said.divergence, oracle.divergence);
  EXPECT_TRUE(said.nonfinite.empty());
  oracle.multiply(said.outcomes);
  EXPECT_TRUE(world.memory() == oracle.arenas) << "memory";
}

}  // namespace gradsync::device
