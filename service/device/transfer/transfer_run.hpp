#pragma once
// The reductions of a plan over nodes that are under way. Each is begun at once, with the sums that stay on this node,
// and goes on block by block: this node's partial sums go into staging memory, in the order of the program, while there
// is room; messages go and come; what has all its messages is added up, or copied to its destinations.
//
// Invariants: nothing here waits. `advance` does what can be done with the messages that are here, a bounded amount of
// it. Blocks begin in the order of the programs, buckets in the order of their commands, and a node finishes the blocks
// that it owns in that order, so every connection carries its messages in the order in which its other end wants them.
// Reports come in the order of the commands. No bit of a result depends on when a message came.
//
// After a fault of the wire, or an abort of an attempt, nothing of the plan travels any more: what is under way fails,
// and every later reduction of what travels.

#include "base/clock.hpp"
#include "device/host/host_node_passes.hpp"
#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/step/step_passes.hpp"
#include "device/transfer/block_pass.hpp"
#include "device/transfer/node_run.hpp"
#include "device/transfer/staging.hpp"
#include "device/wire/wire.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

class TransferRun final : public NodeRun {
 public:
  /// `wake` is called on threads of the wire: there is something to `advance` with.
  TransferRun(
      LoadedPlan& plan,
      WorkerPool& pool,
      const StepPasses& passes,
      const std::atomic<bool>& cancel,
      const MakeWire& make_wire,
      std::function<void()> wake
  );

  /// Throws DeviceError unless there is one connection to each node that messages are exchanged with, for the first
  /// time.
  [[nodiscard]] std::optional<LaneReport> connect(ConnectNodes& command) override;

  void begin(ReduceBucket& command) override;
  [[nodiscard]] bool advance() override;
  [[nodiscard]] std::optional<LaneReport> abort(const Abort& command) override;  ///< closes the wire
  void give_up() override;
  [[nodiscard]] std::optional<Tag> under_way() const override;
  void take_reports(std::vector<LaneReport>& reports) override;

 private:
  /// A block in staging memory.
  struct Block {
    StagedBlock staged;
    std::size_t missing = 0;  ///< messages that have not arrived
    std::size_t sending = 0;  ///< messages whose bytes are still read, or that are not sent yet
    bool summed = false;      ///< its own partial sum is there, if it has one
    bool written = false;     ///< its results are, if they are to be
  };

  struct Reduction {
    ReduceBucket command;
    const NodeBucket* bucket = nullptr;
    std::vector<Block> blocks = {};  ///< by NodeBucket::blocks
    std::uint32_t begun = 0;         ///< blocks that have staging memory, or had
    std::uint32_t joined = 0;        ///< blocks before which none that is owned waits to be added up
    std::uint32_t released = 0;      ///< blocks that gave their memory back
    double busy_s = 0;
    TimePoint since{};                   ///< when it began
    std::vector<LinkUse> links = {};     ///< what it took so far, by node
    std::optional<Failed> failure = {};  ///< it never began, or its end failed
  };

  struct Lost {
    std::string message;
    std::optional<plan::TransferNode> node;
  };

  /// What one call of `advance` does; in the order in which messages are to be sent.
  struct Work {
    BlockTask::Kind kind = BlockTask::Kind::Sum;
    Reduction* reduction = nullptr;
    std::uint32_t block = 0;
  };

  struct Arrived {
    Reduction* reduction = nullptr;
    std::uint32_t block = 0;
  };

  bool go_on();
  void check_once(const ReduceBucket& command) const;
  void check_wire(const ReduceBucket& command) const;
  void take_messages();
  void note(const WireDone& done);
  void note_use(Reduction& reduction, const WireDone& done, const NodeBlock& block) const;
  void note_flags(const Reduction& reduction, std::uint32_t block);
  void plan_joins(std::uint64_t& budget);
  void plan_copies(std::uint64_t& budget);
  void plan_sums(std::uint64_t& budget);
  [[nodiscard]] bool begin_block(Reduction& reduction);
  void plan_work(BlockTask::Kind kind, Reduction& reduction, std::uint32_t block, std::uint64_t& budget);
  void end_work(const Work& work);
  [[nodiscard]] WireMessage name_of(const Reduction& reduction, const plan::TransferMessage& message) const;
  void release();
  void finish_reductions();
  void finish(Reduction& reduction);
  void fail_all(Lost lost, std::optional<Tag> aborted);
  [[nodiscard]] const plan::BucketTransfer& transfer_of(const Reduction& reduction) const;

  LoadedPlan& plan_;
  WorkerPool& pool_;
  const StepPasses& passes_;
  const std::atomic<bool>& cancel_;
  std::deque<Reduction> reductions_;  ///< by command; addresses stay
  std::deque<Arrived> arrived_;       ///< results to be copied
  std::vector<Work> works_;
  std::vector<WireDone> done_;
  std::vector<LaneReport> reports_;
  HostNodePasses outputs_{pool_, cancel_};
  BlockPass pass_;
  std::optional<Tag> last_tag_;
  std::optional<Lost> lost_;  ///< why nothing travels any more
  Staging staging_;
  const MakeWire& make_wire_;
  std::function<void()> wake_;
  std::unique_ptr<Wire> wire_;  ///< last: it uses the staging memory
};

}  // namespace gradsync::device
