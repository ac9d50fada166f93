// Reductions by collectives without a lane around them: what Communicators says is told to them one by one here.

#include "device/collective/collective_run.hpp"

#include "conformance/collective_world.hpp"
#include "device/device_error.hpp"
#include "device/host/host_node_passes.hpp"
#include "device/host/host_passes.hpp"
#include "fakes/libnccl/nccl_world.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
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

/// Every use of a device fails as soon as a test says so.
void throw_if_lost(const bool& lost) {
  if (lost) {
    throw DeviceError("the GPU is gone", DeviceError::Kind::DeviceLost);
  }
}

class StreamToLose final : public CollectiveStream {
 public:
  StreamToLose(std::unique_ptr<CollectiveStream> stream, const bool& lost) : stream_(std::move(stream)), lost_(lost) {}

  [[nodiscard]] NcclStream* handle() override { return stream_->handle(); }

  void mark() override { stream_->mark(); }

  [[nodiscard]] std::uint64_t passed() override {
    throw_if_lost(lost_);
    return stream_->passed();
  }

 private:
  std::unique_ptr<CollectiveStream> stream_;
  const bool& lost_;
};

class DeviceToLose final : public fakes::HostMemoryDevice {
 public:
  DeviceToLose(fakes::FakeNccl& fake, int number, const bool& lost) : HostMemoryDevice(fake, number), lost_(lost) {}

  [[nodiscard]] std::unique_ptr<CollectiveStream> make_stream() override {
    return std::make_unique<StreamToLose>(HostMemoryDevice::make_stream(), lost_);
  }

  [[nodiscard]] bool has_threads() const override { return false; }  // none of them hangs here

 private:
  const bool& lost_;
};

class BlocksToLose final : public BlockWork {
 public:
  BlocksToLose(std::unique_ptr<BlockWork> work, const bool& lost) : work_(std::move(work)), lost_(lost) {}

  [[nodiscard]] std::byte* memory() const override { return work_->memory(); }

  void write(std::byte* to, const void* from, std::size_t bytes) override { work_->write(to, from, bytes); }

  void read(void* to, const std::byte* from, std::size_t bytes) const override { work_->read(to, from, bytes); }

  void add(BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged) override {
    work_->add(kind, bucket, block, staged);
  }

  void run() override {
    throw_if_lost(lost_);
    work_->run();
  }

 private:
  std::unique_ptr<BlockWork> work_;
  const bool& lost_;
};

class PassesToLose final : public NodePasses {
 public:
  PassesToLose(WorkerPool& pool, const std::atomic<bool>& cancel, const bool& lost)
      : passes_(pool, cancel), lost_(lost) {}

  [[nodiscard]] std::unique_ptr<BlockWork> make_blocks(LoadedPlan& plan, std::uint64_t staging_bytes) override {
    return std::make_unique<BlocksToLose>(passes_.make_blocks(plan, staging_bytes), lost_);
  }

  void compare_results(LoadedPlan& plan, std::uint32_t bucket) override { passes_.compare_results(plan, bucket); }

  [[nodiscard]] double scale_outputs(LoadedPlan& plan, const ScaleGradients& command) override {
    return passes_.scale_outputs(plan, command);
  }

  [[nodiscard]] RowsRead read_copies(const LoadedPlan& plan, const ReadRows& command) override {
    return passes_.read_copies(plan, command);
  }

 private:
  HostNodePasses passes_;
  const bool& lost_;
};

/// What a lane has of a plan over nodes, for one node. All of them are on one thread.
class RunOfNode {
 public:
  RunOfNode(fakes::FakeNccl& fake, const ShardedJob& job, const NodeOfRank& placed, plan::TransferNode node)
      : fake_(fake),
        node_(static_cast<int>(node)),
        memory_(job.arenas),
        collectives_(fake_options(), std::make_unique<DeviceToLose>(fake, node_, lost_)),
        loaded_(layout(job, placed, node), views(placed), 1) {
    run_ = std::make_unique<CollectiveRun>(kPlanOfNodes, loaded_, collectives_, node_passes_, passes_, cancel_);
  }

  [[nodiscard]] CollectiveRun& run() { return *run_; }

  /// Its device, from now on.
  void lose() { lost_ = true; }

  /// Nothing is waited for any more.
  void poll_until_idle() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (run_->under_way()) {
      poll();
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

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
  bool lost_ = false;
  std::atomic<bool> cancel_{false};
  WorkerPool pool_{1, "test"};
  HostPasses passes_{pool_, cancel_};
  PassesToLose node_passes_{pool_, cancel_, lost_};
  std::vector<std::vector<std::byte>> memory_;  ///< by rank
  LaneCollectives collectives_;
  LoadedPlan loaded_;
  std::unique_ptr<CollectiveRun> run_;
};

/// Two nodes with a rank each.
class CollectiveLaneRun : public testing::Test {
 protected:
  static ShardedJob filled() {
    ShardedJob job = pair_job(1'000);
    std::mt19937_64 random(1);
    job.fill(random);
    return job;
  }

  void connect() {
    const std::vector<CommunicatorId> ids =
        *agree_on_communicators({offers_of("0", first.run().loaded()), offers_of("1", second.run().loaded())});
    for (RunOfNode* const each : {&first, &second}) {
      ConnectNodes connect{kPlanOfNodes, {}, ids_for(each->run().loaded(), ids)};
      ASSERT_FALSE(each->run().connect(connect).has_value());
    }
  }

  void expect_connected() {
    ASSERT_TRUE(std::holds_alternative<Connected>(first.await(second)));
    ASSERT_TRUE(std::holds_alternative<Connected>(second.await(first)));
  }

  /// A report that the lane of a node is lost with its device, and not that its communicators are.
  static void expect_lost(const LaneReport& report, Tag tag) {
    const auto* const failed = std::get_if<Failed>(&report);
    ASSERT_NE(failed, nullptr) << report.index();
    EXPECT_EQ(failed->message, "the GPU is gone");
    EXPECT_EQ(failed->tag, tag);
    EXPECT_TRUE(failed->lane_lost);
    EXPECT_FALSE(failed->wire_lost);
    EXPECT_FALSE(failed->aborted);
  }

  fakes::FakeNccl fake;
  ShardedJob job = filled();
  RunOfNode first{fake, job, {0, 1}, 0};
  RunOfNode second{fake, job, {0, 1}, 1};
  ReduceBucket command{kPlanOfNodes, 1, 0, {}};
};

TEST_F(CollectiveLaneRun, a_device_that_fails_while_collectives_are_looked_at_loses_the_lane) {
  connect();
  first.lose();
  expect_lost(first.await(second), 0);
  EXPECT_FALSE(first.run().under_way());
  try {
    static_cast<void>(first.run().abort(Abort{kPlanOfNodes, 1}));
    ADD_FAILURE() << "nothing can be aborted";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.kind(), DeviceError::Kind::DeviceLost);
    EXPECT_STREQ(error.what(), "the GPU is gone");
  }
  EXPECT_TRUE(std::holds_alternative<Connected>(second.await(first))) << "what was launched is done";
}

TEST_F(CollectiveLaneRun, a_device_that_fails_in_a_pass_loses_the_lane) {
  connect();
  expect_connected();
  first.run().begin(command);
  first.lose();
  EXPECT_FALSE(first.run().advance());
  std::vector<LaneReport> reports;
  first.run().take_reports(reports);
  ASSERT_EQ(reports.size(), 1U);
  expect_lost(reports.front(), 1);
  EXPECT_TRUE(first.run().under_way()) << "its communicators end";
  first.poll_until_idle();
  EXPECT_STREQ(fake.violations(), "");
}

/// The sum of an operation that failed is of no use, also for as long as nobody has said why it failed.
TEST_F(CollectiveLaneRun, does_not_write_what_an_operation_that_failed_has_left) {
  fake.script(("never_comes operation=" + std::to_string(kWarmUps)).c_str());
  connect();
  expect_connected();
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
