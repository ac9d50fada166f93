// What nodes of an epoch say, from READY to its end.

#include "device/nccl/communicator_agreement.hpp"
#include "engine/peers/coordinator_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace gradsync::engine {

void CoordinatorMachine::dispatch(TimePoint now, Member& member, ToCoordinator message, Actions& actions) {
  if (const auto* want = std::get_if<PeerWant>(&message)) {
    for (const ContentHash& hash : want->hashes) {
      for (PeerDeclaration& page : declarations_.pages_of(hash)) {
        send(now, member, std::move(page), actions);
      }
    }
  } else if (auto* page = std::get_if<PeerDeclaration>(&message)) {
    if (const std::optional<Error> error = declarations_.take(std::move(*page))) {
      refuse(now, member.link, *error, actions);
    } else {
      try_prepare(now, actions);
    }
  } else if (auto* pause = std::get_if<PeerPause>(&message)) {
    member.paused = std::move(pause->ranks);
    pausing_ = true;
    tell_pauses(now, actions);
  } else if (state_ != State::Gathering && member.number) {
    if (const auto* leave = std::get_if<PeerLeave>(&message)) {
      if (leave->epoch == epoch_) {
        Error error = leave->error;
        error.node = error.node.empty() ? member.join.node : error.node;
        end_epoch(now, std::move(error), actions);
      }
    } else if (state_ == State::Begun) {
      dispatch_attempt(now, *member.number, std::move(message), actions);
    } else {
      dispatch_forming(now, *member.number, std::move(message), actions);
    }
  }
}

void CoordinatorMachine::dispatch_forming(TimePoint now, NodeNumber number, ToCoordinator message, Actions& actions) {
  if (auto* ready = std::get_if<PeerReady>(&message)) {
    if (ready->epoch == epoch_) {
      on_ready(now, number, std::move(*ready), actions);
    }
  } else if (auto* policies = std::get_if<PeerPolicies>(&message)) {
    if (policies->epoch == epoch_) {
      on_policies(now, number, std::move(*policies), actions);
    }
  } else if (const auto* connected = std::get_if<PeerConnected>(&message)) {
    if (connected->epoch == epoch_) {
      on_connected(now, number, actions);
    }
  }
}

void CoordinatorMachine::on_ready(TimePoint now, NodeNumber number, PeerReady ready, Actions& actions) {
  if (state_ != State::Preparing || course_.ready.contains(number)) {
    return;
  }
  // It says the state that it had before once more: the other one is on its way there.
  if (const auto before = course_.policies_to.find(number);
      before != course_.policies_to.end() && before->second == ready.policy_digest) {
    return;
  }
  course_.ready.emplace(number, std::move(ready));
  if (course_.ready.size() == course_.roster.size()) {
    all_ready(now, actions);
  }
}

void CoordinatorMachine::all_ready(TimePoint now, Actions& actions) {
  const PeerReady& first = course_.ready.at(0);
  NodeNumber source = 0;
  for (const auto& [other, said] : course_.ready) {
    if (said.plan_digest != first.plan_digest) {
      Error error = make_error(
          ErrorCode::PlanMismatch,
          fmt::format(
              "node '{}' has plan {} and node '{}' plan {}",
              node(0).join.node,
              first.plan_digest,
              node(other).join.node,
              said.plan_digest
          ),
          "install the same release of gradsyncd on all nodes"
      );
      error.node = node(other).join.node;
      end_epoch(now, std::move(error), actions);
      return;
    }
    source = course_.ready.at(source).policies_anew && !said.policies_anew ? other : source;
  }
  settle_policies(now, source, actions);
}

void CoordinatorMachine::settle_policies(TimePoint now, NodeNumber source, Actions& actions) {
  std::map<NodeNumber, std::string> differ;
  for (const auto& [number, said] : course_.ready) {
    if (said.policy_digest != course_.ready.at(source).policy_digest) {
      differ.emplace(number, said.policy_digest);
    }
  }
  if (differ.empty()) {
    connect(now, actions);
  } else if (course_.policies_of) {
    const std::string& other = node(differ.begin()->first).join.node;
    Error error = make_error(
        ErrorCode::InternalError,
        fmt::format("node '{}' did not take over what policies of node '{}' remember", other, node(source).join.node)
    );
    error.node = other;
    end_epoch(now, std::move(error), actions);
  } else {
    for (const auto& [number, digest] : differ) {
      course_.ready.erase(number);
    }
    course_.policies_of = source;
    course_.policies_to = std::move(differ);
    send(now, node(source), PeerPolicies{epoch_, 0, 1, {}}, actions);
  }
}

namespace {

/// The ids of the communicators that a node offered.
PeerConnect connect_for(
    std::uint64_t epoch, const PeerReady& ready, const std::vector<device::CommunicatorId>& agreed
) {
  PeerConnect connect{epoch};
  if (ready.communicators) {
    std::ranges::copy_if(agreed, std::back_inserter(connect.communicators), [&](const device::CommunicatorId& id) {
      return std::ranges::count(ready.communicators->offers, id.name, &device::CommunicatorOffer::name) != 0;
    });
  }
  return connect;
}

}  // namespace

/// An id is a secret of the members of its communicator: no other node gets it.
void CoordinatorMachine::connect(TimePoint now, Actions& actions) {
  std::vector<device::NodeOffers> offers;
  for (const auto& [number, said] : course_.ready) {
    device::NodeOffers& of_node = offers.emplace_back(device::NodeOffers{node(number).join.node, 0, {}});
    if (said.communicators) {
      of_node.version = said.communicators->version;
      of_node.offers = said.communicators->offers;
    }
  }
  const Result<std::vector<device::CommunicatorId>> agreed = device::agree_on_communicators(offers);
  if (!agreed) {
    end_epoch(now, agreed.error(), actions);
    return;
  }
  state_ = State::Connecting;
  course_.late = now + (agreed->empty() ? kReady : kBuilt);
  wake_at(*course_.late);
  for (NodeNumber number = 1; number < course_.roster.size(); ++number) {
    send(now, node(number), connect_for(epoch_, course_.ready.at(number), *agreed), actions);
  }
  send(now, node(0), connect_for(epoch_, course_.ready.at(0), *agreed), actions);
}

void CoordinatorMachine::on_policies(TimePoint now, NodeNumber number, PeerPolicies page, Actions& actions) {
  if (state_ == State::Preparing && course_.policies_of == number && !page.state.empty()) {
    for (const auto& [to, digest] : course_.policies_to) {
      send(now, node(to), page, actions);
    }
  }
}

void CoordinatorMachine::on_connected(TimePoint now, NodeNumber number, Actions& actions) {
  if (state_ != State::Connecting) {
    return;
  }
  course_.connected.insert(number);
  if (course_.connected.size() == course_.roster.size()) {
    state_ = State::Begun;
    own_words_.known = true;
    course_.late.reset();
    send_to_all(now, PeerBegin{epoch_}, actions);
    tell_pauses(now, actions);
  }
}

void CoordinatorMachine::on_comparison(
    std::uint64_t epoch, std::shared_ptr<const plan::Plan> plan, std::shared_ptr<const Comparison> comparison
) {
  if (epoch == epoch_ && state_ == State::Preparing) {
    course_.plan = std::move(plan);
    course_.comparison = std::move(comparison);
  }
}

// The member of this node is told last. All join anew, behind everything that they sent before.
void CoordinatorMachine::end_epoch(TimePoint now, Error error, Actions& actions) {
  error.job = options_.job.second;
  error.epoch = epoch_ + 1;
  error.attempt = 0;
  const PeerEnd end{epoch_, state_ == State::Begun ? word() : 0, std::move(error)};
  state_ = State::Gathering;
  under_way_ = {};
  course_ = {};
  for (auto& [id, member] : members_) {
    change(member, [&each = member] { each.joined = false; });
    member.number.reset();
  }
  send_to_all(now, end, actions);
}

/// Each node hears when an attempt begins to wait for a paused rank of another, and when it waits for none any more.
void CoordinatorMachine::tell_pauses(TimePoint now, Actions& actions) {
  if (!pausing_ || state_ != State::Begun) {
    return;
  }
  const auto is_waited_for = [this](const Member& member) {
    return !member.paused.empty() && member.number && !under_way_.asks.contains(*member.number);
  };
  pausing_ = false;
  std::vector<const Member*> paused;
  for (const auto& [id, member] : members_) {
    pausing_ = pausing_ || !member.paused.empty();
    if (is_waited_for(member)) {
      paused.push_back(&member);
    }
  }
  for (auto& [id, member] : members_) {
    const bool waits = paused.size() > (is_waited_for(member) ? 1U : 0U);
    if (member.number && member.told_paused != waits) {
      PeerPause pause;
      for (const Member* other : paused) {
        if (other != &member) {
          pause.ranks.insert(pause.ranks.end(), other->paused.begin(), other->paused.end());
        }
      }
      std::ranges::sort(pause.ranks);
      member.told_paused = waits;
      send(now, member, std::move(pause), actions);
    }
  }
}

}  // namespace gradsync::engine
