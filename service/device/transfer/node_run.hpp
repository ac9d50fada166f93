#pragma once
// The reductions of a plan over nodes that are under way, whatever carries their sums from node to node. Nothing here
// waits: a reduction is begun with its command, and goes on with `advance`. Reports come in the order of the commands.

#include "device/lane.hpp"

#include <optional>
#include <vector>

namespace gradsync::device {

class NodeRun {
 public:
  virtual ~NodeRun() = default;

  /// Throws DeviceError for what the plan does not need. Nothing: the report comes later.
  [[nodiscard]] virtual std::optional<LaneReport> connect(ConnectNodes& command) = 0;

  /// A command that does not fit, is aborted, or needs other nodes where they are not connected, fails in its turn.
  virtual void begin(ReduceBucket& command) = 0;

  /// A bounded amount of what can be done now. True: there is more.
  [[nodiscard]] virtual bool advance() = 0;

  /// Ends what is under way, unless the attempt is older than all that began. Behind the report, which comes later
  /// where there is none, nothing of the attempt touches memory.
  [[nodiscard]] virtual std::optional<LaneReport> abort(const Abort& command) = 0;

  /// Ends what is under way, because the lane ends.
  virtual void give_up() = 0;

  /// The oldest attempt of which something is under way; what else is about the plan waits until there is none.
  [[nodiscard]] virtual std::optional<Tag> under_way() const = 0;

  virtual void take_reports(std::vector<LaneReport>& reports) = 0;
};

}  // namespace gradsync::device
