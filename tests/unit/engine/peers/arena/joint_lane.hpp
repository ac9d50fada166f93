#pragma once
// A lane of one node of several, as plain as it can be: float32, one thread, and it works when it is asked for a
// report. Sums travel by the transfer programs of the plan, as real bytes over the connections that it was given. Where
// it is used wrongly (another plan, a bucket twice, connections that no program asks for) it throws.

#include "device/lane.hpp"
#include "plan/transfer/node_transfer.hpp"
#include "unit/engine/peers/node_lanes.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

class JointLane final : public NodeLane {
 public:
  JointLane() = default;
  ~JointLane() override;
  JointLane(const JointLane&) = delete;
  JointLane& operator=(const JointLane&) = delete;

  void submit(device::LaneCommand command) override;
  [[nodiscard]] bool wait_report(device::LaneReport& report) override;

  void break_wire(plan::TransferNode own, plan::TransferNode peer) override;

  void fail_next() override { fails_ = true; }

  [[nodiscard]] bool connected() const override;

 private:
  struct Memory {
    std::byte* bytes = nullptr;
    std::uint64_t size = 0;
  };

  /// One way in of a connection.
  struct Inbox {
    std::vector<std::byte> bytes;  ///< that came and were not read yet
    bool ended = false;
  };

  using Way = std::pair<plan::TransferNode, plan::Payload>;

  struct Piece {
    std::vector<float> values;
    bool contributed = false;
  };

  using Block = std::vector<Piece>;

  /// A reduction that waits for other nodes.
  struct Running {
    device::Tag tag = 0;
    std::uint32_t bucket = 0;
    std::vector<Block> own;                                                 ///< by block: partial sums of this node
    std::map<std::uint32_t, std::map<plan::TransferNode, Block>> partials;  ///< by block: of the others, at its owner
    std::map<Way, std::deque<plan::TransferMessage>> expected;
    std::size_t missing = 0;
  };

  /// A sum to which no rank contributed, as far as it comes to ranks here.
  struct Empty {
    std::uint32_t tensor = 0;
    std::uint32_t part = 0;
    std::uint32_t sum = 0;
    std::uint64_t first = 0;
    std::uint64_t elements = 0;
    bool counts = false;  ///< this node would count it
  };

  struct Counted {
    double power_sum = 0;
    double maximum = 0;
    std::uint64_t elements = 0;
    std::uint64_t nonfinite = 0;
    std::uint64_t nan = 0;
  };

  struct Plan {
    device::LanePlan layout;
    std::map<plan::TransferNode, device::NodeConnection> connections;
    std::map<Way, Inbox> inboxes;
    std::optional<device::Failed> lost;
    std::optional<device::Tag> aborted;
    std::optional<Running> running;
    device::Tag tag = 0;
    std::set<std::uint32_t> reduced;
    std::set<std::pair<std::uint32_t, std::int64_t>> unused;
    std::map<std::uint32_t, Counted> counted;
    std::vector<Empty> empties;
    std::map<std::uint32_t, std::map<std::int64_t, std::uint64_t>> nonfinite;  ///< by tensor and rank: of inputs
    std::set<std::uint32_t> present;  ///< tensors to which a rank here contributed
    bool finished = false;
    bool scaled = false;
  };

  struct Place {
    std::uint32_t tensor = 0;
    std::uint32_t part = 0;
    std::uint32_t sum = 0;
  };

  [[nodiscard]] static std::uint64_t plan_of(const device::LaneCommand& command);
  [[nodiscard]] Plan& plan(device::PlanId id);
  [[nodiscard]] bool progress(device::PlanId id, device::LaneReport& report);
  [[nodiscard]] std::optional<device::LaneReport> execute(device::LaneCommand& command);

  [[nodiscard]] device::LaneReport perform(device::MapBuffer& command);
  [[nodiscard]] device::LaneReport perform(device::UnmapBuffer& command);
  [[nodiscard]] device::LaneReport perform(device::LoadPlan& command);
  [[nodiscard]] device::LaneReport perform(device::ConnectNodes& command);
  [[nodiscard]] device::LaneReport perform(device::FinishStep& command);
  [[nodiscard]] device::LaneReport perform(device::ScaleGradients& command);
  /// None: it waits for other nodes.
  [[nodiscard]] std::optional<device::LaneReport> begin(device::ReduceBucket& command);

  // a bucket
  void begin_attempt(Plan& plan, const device::ReduceBucket& command);
  void reduce_here(Plan& plan, std::uint32_t bucket);
  void send_partials(device::PlanId id, Plan& plan);
  void read_all(Plan& plan);
  void take_messages(device::PlanId id, Plan& plan);
  void take(device::PlanId id, Plan& plan, const plan::TransferMessage& message, Block block);
  void finish_block(device::PlanId id, Plan& plan, std::uint32_t number);
  void write_block(Plan& plan, const plan::TransferBlock& block, const Block& values, bool owner);
  void send(device::PlanId id, Plan& plan, const plan::TransferMessage& message, const Block& block);
  [[nodiscard]] device::Failed lost(device::PlanId id, plan::TransferNode peer, const std::string& why) const;

  // its elements
  [[nodiscard]] Piece partial_of(Plan& plan, const Place& place, std::uint64_t first, std::uint64_t elements);
  [[nodiscard]] float* at(const Plan& plan, std::uint32_t rank, std::uint64_t offset, std::uint64_t element);
  void write(Plan& plan, const Place& place, std::uint64_t first, const std::vector<float>& values);
  static void count(Plan& plan, std::uint32_t tensor, const std::vector<float>& values);
  [[nodiscard]] static bool is_here(const Plan& plan, std::uint32_t rank);

  std::deque<device::LaneCommand> commands_;
  std::map<device::BufferId, Memory> buffers_;
  std::map<device::PlanId, Plan> plans_;
  std::map<device::PlanId, device::Tag> aborted_;
  bool fails_ = false;
};

}  // namespace gradsync::engine
