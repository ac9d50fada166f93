// Reductions by collectives without a lane around them: what Communicators says is told to them one by one here.

#include "device/collective/collective_run.hpp"

#include "conformance/collective_world.hpp"
#include "device/host/host_node_passes.hpp"
#include "device/host/host_passes.hpp"
#include "fakes/libnccl/nccl_world.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace gradsync::device {
namespace {

NcclOptions fake_options() {
  NcclOptions options{GRADSYNC_FAKE_NCCL_LIBRARY, {}};
  options.settings.warm_up = fakes::NcclWorld::small().warm_up;
  return options;
}

/// What a lane has of a plan over nodes, for one node. All of them are on one thread.
class RunOfNode {
 public:
  RunOfNode(fakes::FakeNccl& fake, const ShardedJob& job, const NodeOfRank& placed, plan::TransferNode node)
      : fake_(fake),
        node_(static_cast<int>(node)),
        memory_(job.arenas),
        collectives_(fake_options(), std::make_unique<fakes::HostMemoryDevice>(fake, node_)),
        loaded_(layout(job, placed, node), views(placed), 1) {
    run_ = std::make_unique<CollectiveRun>(kPlanOfNodes, loaded_, collectives_, node_passes_, passes_, cancel_);
  }

  [[nodiscard]] CollectiveRun& run() { return *run_; }

  [[nodiscard]] const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

  void poll() {
    fake_.device(node_);
    if (collectives_.next_poll()) {
      std::vector<PlanId> told;
      collectives_.poll(told);
    }
  }

  /// The first report, within a minute. The other node goes on meanwhile.
  LaneReport await(RunOfNode& other) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::vector<LaneReport> reports;
    while (reports.empty()) {
      poll();
      other.poll();
      run_->take_reports(reports);
      if (std::chrono::steady_clock::now() > limit) {
        throw std::runtime_error("node " + std::to_string(node_) + " reports nothing");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return reports.front();
  }

 private:
  static LanePlan layout(const ShardedJob& job, const NodeOfRank& placed, plan::TransferNode node) {
    LanePlan made = layout_of_node(job.layout, placed, node);
    made.nodes.communicators = communicators_of(made.nodes, "dp");
    return made;
  }

  std::vector<BufferView> views(const NodeOfRank& placed) {
    std::vector<BufferView> made(placed.size());
    for (std::size_t rank = 0; rank < placed.size(); ++rank) {
      if (placed[rank] == static_cast<plan::TransferNode>(node_)) {
        made[rank] = {memory_[rank].data(), memory_[rank].size()};
      }
    }
    return made;
  }

  fakes::FakeNccl& fake_;
  int node_;
  std::atomic<bool> cancel_{false};
  WorkerPool pool_{1, "test"};
  HostPasses passes_{pool_, cancel_};
  HostNodePasses node_passes_{pool_, cancel_};
  std::vector<std::vector<std::byte>> memory_;  ///< by rank
  LaneCollectives collectives_;
  LoadedPlan loaded_;
  std::unique_ptr<CollectiveRun> run_;
};

/// The sum of an operation that failed is of no use, also for as long as nobody has said why it failed.
TEST(CollectiveLaneRun, does_not_write_what_an_operation_that_failed_has_left) {
  fakes::FakeNccl fake;
  fake.script(("never_comes operation=" + std::to_string(kWarmUps)).c_str());
  ShardedJob job(2);
  job.add_bucket(plan::DType::Float32, 2.0);
  job.add(replicated({1'000}, {{0, 1}}));
  job.load();
  std::mt19937_64 random(1);
  job.fill(random);
  const NodeOfRank placed = {0, 1};
  RunOfNode first(fake, job, placed, 0);
  RunOfNode second(fake, job, placed, 1);
  const std::vector<CommunicatorId> ids =
      *agree_on_communicators({offers_of("0", first.run().loaded()), offers_of("1", second.run().loaded())});
  for (RunOfNode* const each : {&first, &second}) {
    ConnectNodes connect{kPlanOfNodes, {}, ids_for(each->run().loaded(), ids)};
    ASSERT_FALSE(each->run().connect(connect).has_value());
  }
  ASSERT_TRUE(std::holds_alternative<Connected>(first.await(second)));
  ASSERT_TRUE(std::holds_alternative<Connected>(second.await(first)));
  ReduceBucket command{kPlanOfNodes, 1, 0, {}};
  first.run().begin(command);
  ASSERT_TRUE(first.run().advance()) << "its collective is launched, and never done";
  first.run().on(Communicators::Operated{kPlanOfNodes, 1, false});
  EXPECT_FALSE(first.run().advance()) << "there is nothing to go on with";
  std::vector<LaneReport> reports;
  first.run().take_reports(reports);
  EXPECT_TRUE(reports.empty());
  EXPECT_TRUE(first.memory() == job.arenas) << "memory of a rank was written";
  for (RunOfNode* const each : {&first, &second}) {
    ASSERT_FALSE(each->run().abort(Abort{kPlanOfNodes, 1}).has_value());
  }
  EXPECT_TRUE(std::holds_alternative<Failed>(first.await(second))) << "its reduction";
  EXPECT_TRUE(std::holds_alternative<Aborted>(second.await(first)));
  EXPECT_STREQ(fake.violations(), "");
}

}  // namespace
}  // namespace gradsync::device
