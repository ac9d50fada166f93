#pragma once
// The reductions of a plan whose sums travel by collectives of NCCL. Each is begun at once, with the sums that stay on
// this node, and goes on collective by collective: this node's partial sums go into staging memory, a collective adds
// them to those of the other nodes, and behind it they are divided, rounded once, and written to the ranks that are
// here, with the statistics. Two collectives are under way at a time.
//
// Invariants: nothing here waits. Collectives are launched in the one order of a step, which is that of buckets. What a
// collective brought is read only when Communicators says that it is done; after a failure nothing is, and the staging
// memory stays as it is, since it may still be written to until `Aborted`, and the plan cannot be unloaded before.

#include "base/clock.hpp"
#include "device/collective/collective_program.hpp"
#include "device/collective/lane_collectives.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/step/step_passes.hpp"
#include "device/transfer/node_passes.hpp"
#include "device/transfer/node_run.hpp"
#include "device/transfer/staging.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

class CollectiveRun final : public NodeRun, public CollectiveUser {
 public:
  /// Throws DeviceError for a plan that its communicators do not fit.
  CollectiveRun(
      PlanId id,
      LoadedPlan& plan,
      LaneCollectives& collectives,
      NodePasses& node_passes,
      const StepPasses& passes,
      const std::atomic<bool>& cancel
  );
  ~CollectiveRun() override;
  CollectiveRun(const CollectiveRun&) = delete;
  CollectiveRun& operator=(const CollectiveRun&) = delete;

  /// What this node has of the communicators.
  [[nodiscard]] const LoadedCommunicators& loaded() const { return loaded_; }

  [[nodiscard]] std::optional<LaneReport> connect(ConnectNodes& command) override;
  void begin(ReduceBucket& command) override;
  [[nodiscard]] bool advance() override;
  [[nodiscard]] std::optional<LaneReport> abort(const Abort& command) override;
  void give_up() override;
  [[nodiscard]] std::optional<Tag> under_way() const override;
  void take_reports(std::vector<LaneReport>& reports) override;

  void on(const Communicators::Connected& connected) override;
  void on(const Communicators::Broken& broken) override;
  void on(const Communicators::Operated& operated) override;
  void on(const Communicators::Aborted& aborted) override;
  void on(const Communicators::Lost& lost) override;

 private:
  enum class Link : std::uint8_t { None, Connecting, Connected, Failed };

  struct Reduction {
    ReduceBucket command;
    std::uint32_t begun = 0;    ///< collectives of the bucket that have staging memory, or had
    std::uint32_t written = 0;  ///< whose result is where it belongs
    double busy_s = 0;
    std::optional<Failed> failure = {};  ///< it never began, or its end failed
  };

  /// The sum of a block, which is there when its collective is done.
  struct Sum {
    const NodeBlock* block = nullptr;
    StagedBlock staged;
  };

  /// A collective that has staging memory.
  struct Flight {
    enum class State : std::uint8_t { Sums, Launched, Done };

    Reduction* reduction = nullptr;
    const NodeCollective* collective = nullptr;
    std::uint64_t number = 0;  ///< of the operation
    std::vector<StagedBlock> places = {};
    std::vector<Sum> sums = {};  ///< that this node gets
    std::byte* result = nullptr;
    State state = State::Sums;
  };

  struct End {
    std::string message;
    bool lane_lost = false;
    std::optional<Tag> aborted = {};
  };

  bool go_on();
  [[nodiscard]] bool may_travel(const ReduceBucket& command) const;
  void check_once(const ReduceBucket& command) const;
  void begin_step_of(Tag tag);
  [[nodiscard]] std::size_t plan_results();
  void plan_sums();
  [[nodiscard]] bool begin_flight(Reduction& reduction);
  void launch(Flight& flight);
  [[nodiscard]] std::vector<Sum> sums_of(const Flight& flight) const;
  void write_flags(const Flight& flight);
  void note_flags(const Flight& flight, const Sum& sum);
  void finish_reductions();
  void finish(Reduction& reduction);
  void fail_all(const End& end);
  void end_communicators();
  void answer_connect(const End& end);
  [[nodiscard]] Failed about(Tag tag) const;
  [[nodiscard]] Failed failed(Tag tag, const End& end) const;
  [[nodiscard]] const NodeBucket& bucket_of(const Flight& flight) const;
  [[nodiscard]] const plan::BucketTransfer& transfer_of(const Flight& flight) const;
  [[nodiscard]] const std::vector<NodeCollective>& program_of(const Reduction& reduction) const;

  PlanId id_;
  LoadedPlan& plan_;
  LaneCollectives& collectives_;
  NodePasses& node_passes_;
  const StepPasses& passes_;
  const std::atomic<bool>& cancel_;
  CollectiveProgram program_;
  std::unique_ptr<BlockWork> work_;
  StagingRing staging_;
  LoadedCommunicators loaded_;
  Link link_ = Link::None;
  std::string failure_;               ///< where the link is Failed
  bool ending_ = false;               ///< its communicators end, and something may still be written
  std::vector<Tag> aborts_;           ///< their reports are due
  std::deque<Reduction> reductions_;  ///< by command; addresses stay
  std::deque<Flight> flights_;        ///< in the order of their launches; likewise
  std::vector<LaneReport> reports_;
  std::optional<Tag> last_tag_;
  std::uint64_t operations_ = 0;
};

}  // namespace gradsync::device
