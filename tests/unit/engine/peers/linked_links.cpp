// Links, time, and the actions of the machines.

#include "unit/engine/peers/linked_machines.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

namespace {

constexpr std::size_t kKept = 6;  // messages of a direction that may come again

template <typename Message>
void keep(const Message& message, std::uint64_t place, std::vector<Message>& kept) {
  if (kept.size() < kKept) {
    kept.push_back(message);
  } else {
    kept[place] = message;
  }
}

}  // namespace

/// Links on which something is to arrive, be it their end.
std::vector<LinkNumber> LinkedMachines::busy() const {
  std::vector<LinkNumber> found;
  for (const auto& [number, link] : links_) {
    const bool up = link.up_open && (!link.up.empty() || link.up_ends);
    const bool down = link.down_open && (!link.down.empty() || link.down_ends);
    if (up || down) {
      found.push_back(number);
    }
  }
  return found;
}

void LinkedMachines::deliver(LinkNumber number) {
  Link& link = links_.at(number);
  const bool up = link.up_open && (!link.up.empty() || link.up_ends);
  const bool down = link.down_open && (!link.down.empty() || link.down_ends);
  if (up && (!down || one_in(2))) {
    if (link.up.empty()) {
      close_coordinator_end(number);
      perform(0, nodes_[0].coordinator->on_link_ended(now_, number, "reset"));
      return;
    }
    ToCoordinator message = std::move(link.up.front());
    link.up.pop_front();
    keep(message, below(kKept), link.up_again);
    hand_up(number, std::move(message));
  } else if (down) {
    const std::size_t index = link.node;
    if (link.down.empty()) {
      close_member_end(number);
      perform(index, nodes_[index].member->on_link_ended(now_, "reset"));
      return;
    }
    ToMember message = std::move(link.down.front());
    link.down.pop_front();
    keep(message, below(kKept), link.down_again);
    hand_down(number, std::move(message));
  }
}

/// A message that was delivered once comes again, over the same link.
void LinkedMachines::deliver_again() {
  if (links_.empty()) {
    return;
  }
  auto at = links_.begin();
  std::advance(at, below(links_.size()));
  const LinkNumber number = at->first;
  const Link& link = at->second;
  if (link.up_open && !link.up_again.empty() && one_in(2)) {
    hand_up(number, link.up_again[below(link.up_again.size())]);
  } else if (link.down_open && !link.down_again.empty()) {
    hand_down(number, link.down_again[below(link.down_again.size())]);
  }
}

void LinkedMachines::hand_up(LinkNumber number, ToCoordinator message) {
  if (const auto* join = std::get_if<PeerJoin>(&message)) {
    std::uint64_t& latest = joined_[links_.at(number).node];
    latest = std::max<std::uint64_t>(latest, std::stoull(join->incarnation));
  }
  perform(0, nodes_[0].coordinator->on_message(now_, number, std::move(message)));
}

void LinkedMachines::hand_down(LinkNumber number, ToMember message) {
  const std::size_t index = links_.at(number).node;
  perform(index, nodes_[index].member->on_message(now_, std::move(message)));
}

/// What is on its way is gone, and both ends hear of it at some time.
void LinkedMachines::cut(LinkNumber number) {
  Link& link = links_.at(number);
  link.up.clear();
  link.down.clear();
  link.up_ends = link.down_ends = true;
}

void LinkedMachines::close_member_end(LinkNumber number) {
  const auto found = links_.find(number);
  if (found != links_.end()) {
    Link& link = found->second;
    if (link.down_open && one_in(2)) {
      link.up.clear();  // a reset overtakes
    }
    link.down_open = false;
    link.up_ends = true;
    forget_if_closed(number);
  }
}

void LinkedMachines::close_coordinator_end(LinkNumber number) {
  const auto found = links_.find(number);
  if (found != links_.end()) {
    Link& link = found->second;
    if (link.up_open && one_in(2)) {
      link.down.clear();
    }
    link.up_open = false;
    link.down_ends = true;
    forget_if_closed(number);
  }
}

void LinkedMachines::forget_if_closed(LinkNumber number) {
  if (!links_.at(number).up_open && !links_.at(number).down_open) {
    links_.erase(number);
  }
}

/// To the next thing that some machine waits for.
void LinkedMachines::pass_time() {
  std::optional<TimePoint> next;
  for (const Node& node : nodes_) {
    const auto due = node.coordinator ? node.coordinator->next_deadline()
                     : node.member    ? node.member->next_deadline()
                                      : std::nullopt;
    next = due ? std::min(next.value_or(*due), *due) : next;
  }
  now_ = next ? std::max(now_, *next) : now_ + std::chrono::seconds(1);
}

void LinkedMachines::tick() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].coordinator) {
      if (const auto due = nodes_[i].coordinator->next_deadline(); due && *due <= now_) {
        perform(i, nodes_[i].coordinator->on_time(now_));
      }
      if (nodes_[i].coordinator && !nodes_[i].coordinator->coordinator().counts_right()) {
        fail("the roll of the coordinator is not that of its members");
      }
    } else if (nodes_[i].member) {
      if (const auto due = nodes_[i].member->next_deadline(); due && *due <= now_) {
        perform(i, nodes_[i].member->on_time(now_));
      }
    }
  }
}

void LinkedMachines::perform(std::size_t index, std::vector<NodeAction> actions) {
  for (NodeAction& action : actions) {
    queue_.push_back({index, nodes_[index].incarnation, std::move(action)});
  }
  drain();
}

void LinkedMachines::perform(std::size_t index, std::vector<MemberAction> actions) {
  for (MemberAction& action : actions) {
    queue_.push_back({index, nodes_[index].incarnation, std::move(action)});
  }
  drain();
}

/// In order, those of a node that follow from an action behind the others. A daemon may be killed between any two.
void LinkedMachines::drain() {
  if (std::exchange(draining_, true)) {
    return;
  }
  while (!queue_.empty()) {
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    Node& node = nodes_[next.node];
    if (!node.up() || node.incarnation != next.incarnation) {
      continue;
    }
    if (node.fuse && (*node.fuse)-- == 0) {
      kill(next.node);
      continue;
    }
    std::visit([&](auto& action) { act(next.node, action); }, next.action);
  }
  draining_ = false;
}

void LinkedMachines::act(std::size_t index, NodeAction& action) {
  if (auto* send = std::get_if<SendToMember>(&action)) {
    send_down(*send);
  } else if (const auto* store = std::get_if<StoreDone>(&action)) {
    store_done(store->word);
  } else if (const auto* close = std::get_if<CloseLink>(&action)) {
    close_coordinator_end(close->link);
  } else if (const auto* open = std::get_if<OpenDataLinks>(&action)) {
    on_data(index, *open);
  } else if (auto* tell = std::get_if<TellJob>(&action)) {
    on_event(index, tell->event);
  }
}

void LinkedMachines::send_down(SendToMember& send) {
  if (const auto* prepare = std::get_if<PeerPrepare>(&send.message)) {
    for (std::size_t i = 1; i < prepare->roster.size() && i < nodes_.size(); ++i) {
      if (std::stoull(prepare->roster[i].incarnation) < joined_[i]) {
        fail("a roster has an incarnation that was superseded");
      }
    }
  } else if (const auto* done = std::get_if<PeerDone>(&send.message);
             done != nullptr && !stored_.contains(done->word)) {
    fail("a node is told that an attempt is done before the record of the coordinator says so");
  }
  const auto link = links_.find(send.link);
  if (link != links_.end() && link->second.down_open && !link->second.down_ends) {
    link->second.down.push_back(std::move(send.message));
  }
}

void LinkedMachines::act(std::size_t index, MemberAction& action) {
  Node& node = nodes_[index];
  if (auto* send = std::get_if<SendToCoordinator>(&action)) {
    const auto link = links_.find(node.link);
    if (link != links_.end() && link->second.up_open && !link->second.up_ends) {
      link->second.up.push_back(std::move(send->message));
    }
  } else if (std::holds_alternative<OpenLink>(action)) {
    open(index);
  } else if (const auto* data = std::get_if<OpenDataLinks>(&action)) {
    on_data(index, *data);
  } else if (std::holds_alternative<DropLink>(action)) {
    close_member_end(node.link);
  } else if (auto* tell = std::get_if<TellJob>(&action)) {
    on_event(index, tell->event);
  }
}

void LinkedMachines::open(std::size_t index) {
  Node& node = nodes_[index];
  if (!nodes_[0].up()) {
    perform(index, node.member->on_link_ended(now_, "refused"));
    return;
  }
  node.link = ++links_made_;
  links_[node.link].node = index;
  const std::string address = fmt::format("10.0.0.{}", index + 1);
  perform(index, node.member->on_link(now_, address));
  perform(0, nodes_[0].coordinator->on_link(now_, node.link, address));
}

}  // namespace gradsync::engine
