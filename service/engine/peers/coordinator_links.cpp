// The coordinator's links: what comes over them, what goes out, and when they are given up.

#include "base/text/text.hpp"
#include "engine/peers/coordinator_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gradsync::engine {

namespace {

Error node_is_lost(const PeerJoin& join, const std::string& why) {
  Error error = make_error(
      ErrorCode::NodeLost,
      fmt::format(
          "node '{}' with {} is lost: {}",
          join.node,
          enumerate_ranks(join.ranks, static_cast<std::int64_t>(join.ranks.size())),
          why
      ),
      "the epoch forms again when the node is back"
  );
  error.node = join.node;
  error.ranks = join.ranks;
  return error;
}

}  // namespace

CoordinatorMachine::CoordinatorMachine(Options options, DeclarationsByHash& declarations)
    : options_(std::move(options)), declarations_(declarations) {}

CoordinatorActions CoordinatorMachine::on_link(TimePoint now, LinkNumber link, std::string seen_address) {
  Actions actions;
  links_[link] = Link{seen_address, {}, now, now, now};
  wake_at(now + kBeat);
  send_over(
      now,
      link,
      PeerHello{link, options_.incarnation, options_.version, kPeerProtocol, options_.node, std::move(seen_address)},
      actions
  );
  return actions;
}

CoordinatorActions CoordinatorMachine::on_message(TimePoint now, LinkNumber link, ToCoordinator message) {
  Actions actions;
  const auto found = links_.find(link);
  if (found == links_.end()) {
    return actions;
  }
  found->second.heard = now;
  if (auto* join = std::get_if<PeerJoin>(&message)) {
    on_join(now, link, std::move(*join), actions);
  } else if (const auto member = member_of(link); member != members_.end()) {
    dispatch(now, member->second, std::move(message), actions);
  }
  retry_deferred(now, actions);
  return actions;
}

CoordinatorActions CoordinatorMachine::on_own(TimePoint now, ToCoordinator message) {
  Actions actions;
  if (auto* join = std::get_if<PeerJoin>(&message)) {
    on_own_join(now, std::move(*join), actions);
    return actions;
  }
  const auto own = members_.find(roll_.own());
  if (own != members_.end()) {
    dispatch(now, own->second, std::move(message), actions);
  }
  return actions;
}

CoordinatorActions CoordinatorMachine::on_link_ended(TimePoint now, LinkNumber link, const std::string& why) {
  Actions actions;
  lose(now, link, why, actions);
  retry_deferred(now, actions);
  return actions;
}

/// The node that joined over it, unless another link counts for that node by now.
CoordinatorMachine::Members::iterator CoordinatorMachine::member_of(LinkNumber link) {
  const auto found = links_.find(link);
  if (found == links_.end() || found->second.node_id.empty()) {
    return members_.end();
  }
  const auto member = members_.find(found->second.node_id);
  return member == members_.end() || member->second.link != link ? members_.end() : member;
}

void CoordinatorMachine::send(TimePoint now, const Member& member, ToMember message, Actions& actions) {
  if (member.own) {
    actions.emplace_back(TellOwnMember{std::move(message)});
  } else if (member.link != 0) {
    send_over(now, member.link, std::move(message), actions);
  }
}

void CoordinatorMachine::send_over(TimePoint now, LinkNumber link, ToMember message, Actions& actions) {
  links_.at(link).sent = now;
  actions.emplace_back(SendToMember{link, std::move(message)});
}

/// To the members of other nodes first, and then to that of this one, which may answer its ranks.
void CoordinatorMachine::send_to_all(TimePoint now, const ToMember& message, Actions& actions) {
  for (const bool own : {false, true}) {
    for (const auto& [id, member] : members_) {
      if (member.own == own) {
        send(now, member, message, actions);
      }
    }
  }
}

void CoordinatorMachine::close(LinkNumber link, Actions& actions) {
  deferred_.erase(link);
  if (links_.erase(link) != 0) {
    actions.emplace_back(CloseLink{link});
  }
}

void CoordinatorMachine::lose(TimePoint now, LinkNumber link, const std::string& why, Actions& actions) {
  const auto found = member_of(link);
  links_.erase(link);
  deferred_.erase(link);
  if (found == members_.end()) {
    return;
  }
  Member& member = found->second;
  change(member, [&] {
    member.link = 0;
    member.joined = false;
  });
  if (state_ != State::Gathering) {
    end_epoch(now, node_is_lost(member.join, why), actions);
  }
}

void CoordinatorMachine::refuse(TimePoint now, LinkNumber link, const Error& error, Actions& actions) {
  if (links_.contains(link)) {
    send_over(now, link, PeerRefused{error}, actions);
    lose(now, link, "it was refused", actions);
    actions.emplace_back(CloseLink{link});
  }
}

void CoordinatorMachine::check_links(TimePoint now, Actions& actions) {
  std::vector<std::pair<LinkNumber, TimePoint>> silent;
  std::vector<LinkNumber> strange;
  std::vector<LinkNumber> idle;
  for (const auto& [link, state] : links_) {
    if (state.heard + kDead <= now) {
      silent.emplace_back(link, state.heard);
    } else if (state.node_id.empty() && state.since + kJoinWithin <= now && !deferred_.contains(link)) {
      strange.push_back(link);
    } else if (state.sent + kBeat <= now + kBeatsTogether) {
      idle.push_back(link);
    }
  }
  for (const auto& [link, heard] : silent) {
    lose(now, link, fmt::format("nothing came over its link for {:.1f} s", seconds(now - heard)), actions);
    actions.emplace_back(CloseLink{link});
  }
  for (const LinkNumber link : strange) {
    close(link, actions);
  }
  for (const LinkNumber link : idle) {
    if (links_.at(link).sent + kBeat <= now + kBeatsTogether) {
      send_over(now, link, PeerBeat{}, actions);
    }
  }
}

CoordinatorActions CoordinatorMachine::on_time(TimePoint now) {
  Actions actions;
  if (!wake_ || now < *wake_) {
    return actions;
  }
  check_links(now, actions);
  retry_deferred(now, actions);
  if (course_.late && *course_.late <= now) {
    Error error = make_error(
        ErrorCode::DeclareTimeout,
        fmt::format("epoch {} does not form within {:.1f} s: {}", epoch_, seconds(kReady), waits_for()),
        "see what these nodes do, then declare again"
    );
    end_epoch(now, std::move(error), actions);
  }
  if (under_way_.who_until && *under_way_.who_until <= now) {
    who_is_over(now, actions);
  }
  wake_ = earliest();
  return actions;
}

std::optional<TimePoint> CoordinatorMachine::earliest() const {
  std::optional<TimePoint> earliest = course_.late;
  const auto lower = [&earliest](TimePoint other) { earliest = std::min(earliest.value_or(other), other); };
  for (const auto& [link, state] : links_) {
    lower(std::min(state.heard + kDead, state.sent + kBeat));
    if (state.node_id.empty() && !deferred_.contains(link)) {
      lower(state.since + kJoinWithin);
    }
  }
  for (const auto& [link, deferred] : deferred_) {
    lower(deferred.until);
  }
  if (under_way_.who_until) {
    lower(*under_way_.who_until);
  }
  return earliest;
}

std::vector<LinkNumber> CoordinatorMachine::links() const {
  std::vector<LinkNumber> numbers;
  for (const auto& [number, link] : links_) {
    numbers.push_back(number);
  }
  return numbers;
}

bool CoordinatorMachine::counts_right() const {
  CoordinatorRoll roll;
  for (const auto& [id, member] : members_) {
    roll.add(member);
  }
  return roll == roll_;
}

}  // namespace gradsync::engine
