#pragma once
// Both machines of the coordinator's node, without a link between them: what one says to the other is queued behind the
// actions at hand, so that it has the order that a link would give. Sans-I/O like both.
//
// Invariants: actions are in the order in which they have to be performed; in particular `StoreDone` comes before any
// `done`, and before the verdict of this node's own ranks.

#include "engine/peers/coordinator_machine.hpp"
#include "engine/peers/member_machine.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

using NodeAction = std::variant<SendToMember, CloseLink, StoreDone, WarnHalfTime, OpenDataLinks, TellJob>;
using NodeActions = std::vector<NodeAction>;

class CoordinatorNode {
 public:
  /// `member.coordinator` is empty: it is here. `declarations` is that of the daemon, and outlives the machines.
  CoordinatorNode(
      CoordinatorMachine::Options coordinator, MemberMachine::Options member, DeclarationsByHash& declarations
  );

  // the job of this daemon
  [[nodiscard]] NodeActions on_local(TimePoint now, LocalEvent event);
  void on_comparison(
      std::uint64_t epoch, std::shared_ptr<const plan::Plan> plan, std::shared_ptr<const Comparison> comparison
  );

  // links of other nodes
  [[nodiscard]] NodeActions on_link(TimePoint now, LinkNumber link, std::string seen_address);
  [[nodiscard]] NodeActions on_message(TimePoint now, LinkNumber link, ToCoordinator message);
  [[nodiscard]] NodeActions on_link_ended(TimePoint now, LinkNumber link, const std::string& why);

  [[nodiscard]] NodeActions on_time(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  [[nodiscard]] const CoordinatorMachine& coordinator() const { return coordinator_; }

  [[nodiscard]] const MemberMachine& member() const { return member_; }

 private:
  using Said = std::variant<ToMember, ToCoordinator>;

  void take(CoordinatorActions some, NodeActions& actions);
  void take(MemberActions some, NodeActions& actions);
  [[nodiscard]] NodeActions drained(TimePoint now, NodeActions actions);

  CoordinatorMachine coordinator_;
  MemberMachine member_;
  std::deque<Said> said_;  ///< between the two, empty between events
};

}  // namespace gradsync::engine
