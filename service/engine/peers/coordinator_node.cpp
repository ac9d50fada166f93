#include "engine/peers/coordinator_node.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::engine {

CoordinatorNode::CoordinatorNode(
    CoordinatorMachine::Options coordinator, MemberMachine::Options member, DeclarationsByHash& declarations
)
    : coordinator_(std::move(coordinator), declarations), member_(std::move(member), declarations) {}

NodeActions CoordinatorNode::on_local(TimePoint now, LocalEvent event) {
  NodeActions actions;
  take(member_.on_local(now, std::move(event)), actions);
  return drained(now, std::move(actions));
}

void CoordinatorNode::on_comparison(
    std::uint64_t epoch, std::shared_ptr<const plan::Plan> plan, std::shared_ptr<const Comparison> comparison
) {
  coordinator_.on_comparison(epoch, std::move(plan), std::move(comparison));
}

NodeActions CoordinatorNode::on_link(TimePoint now, LinkNumber link, std::string seen_address) {
  NodeActions actions;
  take(coordinator_.on_link(now, link, std::move(seen_address)), actions);
  return drained(now, std::move(actions));
}

NodeActions CoordinatorNode::on_message(TimePoint now, LinkNumber link, ToCoordinator message) {
  NodeActions actions;
  take(coordinator_.on_message(now, link, std::move(message)), actions);
  return drained(now, std::move(actions));
}

NodeActions CoordinatorNode::on_link_ended(TimePoint now, LinkNumber link, const std::string& why) {
  NodeActions actions;
  take(coordinator_.on_link_ended(now, link, why), actions);
  return drained(now, std::move(actions));
}

NodeActions CoordinatorNode::on_time(TimePoint now) {
  NodeActions actions;
  take(coordinator_.on_time(now), actions);
  take(member_.on_time(now), actions);
  return drained(now, std::move(actions));
}

std::optional<TimePoint> CoordinatorNode::next_deadline() const {
  const std::optional<TimePoint> coordinator = coordinator_.next_deadline();
  const std::optional<TimePoint> member = member_.next_deadline();
  return coordinator && member ? std::min(*coordinator, *member) : coordinator ? coordinator : member;
}

void CoordinatorNode::take(CoordinatorActions some, NodeActions& actions) {
  for (CoordinatorAction& action : some) {
    if (auto* tell = std::get_if<TellOwnMember>(&action)) {
      said_.emplace_back(std::move(tell->message));
    } else if (auto* send = std::get_if<SendToMember>(&action)) {
      actions.emplace_back(std::move(*send));
    } else if (const auto* close = std::get_if<CloseLink>(&action)) {
      actions.emplace_back(*close);
    } else if (const auto* store = std::get_if<StoreDone>(&action)) {
      actions.emplace_back(*store);
    } else if (auto* warn = std::get_if<WarnHalfTime>(&action)) {
      actions.emplace_back(std::move(*warn));
    }
  }
}

/// A member without a link opens and drops none.
void CoordinatorNode::take(MemberActions some, NodeActions& actions) {
  for (MemberAction& action : some) {
    if (auto* send = std::get_if<SendToCoordinator>(&action)) {
      said_.emplace_back(std::move(send->message));
    } else if (auto* open = std::get_if<OpenDataLinks>(&action)) {
      actions.emplace_back(std::move(*open));
    } else if (auto* tell = std::get_if<TellJob>(&action)) {
      actions.emplace_back(std::move(*tell));
    }
  }
}

NodeActions CoordinatorNode::drained(TimePoint now, NodeActions actions) {
  while (!said_.empty()) {
    Said said = std::move(said_.front());
    said_.pop_front();
    if (auto* message = std::get_if<ToMember>(&said)) {
      take(member_.on_message(now, std::move(*message)), actions);
    } else {
      take(coordinator_.on_own(now, std::get<ToCoordinator>(std::move(said))), actions);
    }
  }
  return actions;
}

}  // namespace gradsync::engine
