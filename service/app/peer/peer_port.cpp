#include "app/peer/peer_port.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace gradsync::app {

namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

/// Whether what the epoch before wanted is not wanted any more.
bool ends_epoch(const engine::PeerEvent& event) {
  return std::holds_alternative<engine::PrepareEpoch>(event) || std::holds_alternative<engine::EpochEnded>(event) ||
         std::holds_alternative<engine::EpochRefused>(event);
}

bool ends_epoch(const engine::LocalEvent& event) {
  return std::holds_alternative<engine::LocalsChanged>(event) || std::holds_alternative<engine::LocalsLeft>(event);
}

/// Nobody can say where rank 0 is.
Error no_coordinator(const engine::PeerJoin& identity) {
  Error error = make_error(
      ErrorCode::NoPeers,
      fmt::format(
          "rank 0 of job '{}' is not on node '{}', and its ranks do not say on which node it is",
          identity.job.second,
          identity.node
      ),
      "set GRADSYNC_COORDINATOR or MASTER_ADDR to an address of rank 0's node, or pass coordinator= to attach"
  );
  error.job = identity.job.second;
  error.node = identity.node;
  return error;
}

}  // namespace

PeerPort::PeerPort(Options options, FairBudget& declared, Owner& owner)
    : options_(std::move(options)), owner_(owner), declarations_(declared, {options_.identity.job.first, 0}) {}

PeerPort::~PeerPort() { owner_.on_gone(options_.job); }

template <typename Actions>
engine::PeerEvents PeerPort::taken(Actions actions) {
  engine::PeerEvents events;
  const Overloaded take{
      [&](engine::TellJob& tell) {
        if (const auto* prepare = std::get_if<engine::PrepareEpoch>(&tell.event)) {
          declarations_.keep_only(prepare->by_rank);  // what else has come is of no node that takes part
        }
        if (ends_epoch(tell.event)) {
          close_data();
        }
        events.push_back(std::move(tell.event));
      },
      [&](engine::WarnHalfTime& warn) { events.push_back(engine::PeersHalfTime{std::move(warn.waits_for)}); },
      [&](engine::OpenLink& open) {
        linked_ = false;
        outgoing_.emplace_back(std::move(open));
      },
      [&](engine::OpenDataLinks& open) {
        data_wanted_ = true;
        outgoing_.emplace_back(std::move(open));
      },
      [](engine::StoreDone&) {},  // the verdict of this node's own ranks, which comes with it, stores it
      [&](auto& send) { outgoing_.emplace_back(std::move(send)); },
  };
  for (auto& action : actions) {
    std::visit(take, action);
  }
  owner_.on_told(options_.job);
  return events;
}

engine::PeerEvents PeerPort::tell(engine::LocalEvent event) {
  if (ends_epoch(event)) {
    close_data();
  }
  if (auto* changed = std::get_if<engine::LocalsChanged>(&event)) {
    keep_contents(*changed);
    const bool has_rank_0 = std::ranges::count(changed->ranks, 0) != 0;
    if (coordinator_ && !has_rank_0 && are_all(changed->ranks)) {
      retire();
    }
    if (coordinator_ == nullptr && (member_ == nullptr || has_rank_0)) {
      return choose_role(std::move(*changed));
    }
  } else if (const auto* ready = std::get_if<engine::LocalsReady>(&event); ready != nullptr && coordinator_) {
    coordinator_->on_comparison(ready->epoch, ready->plan, ready->comparison);
  } else if (const auto* paused = std::get_if<engine::LocalsPaused>(&event)) {
    paused_ = paused->ranks;
  }
  return told(std::move(event));
}

void PeerPort::close_data() {
  if (std::exchange(data_wanted_, false)) {
    outgoing_.emplace_back(CloseDataLinks{});
  }
}

engine::PeerEvents PeerPort::told(engine::LocalEvent event) {
  if (coordinator_) {
    return taken(coordinator_->on_local(options_.now(), std::move(event)));
  }
  return member_ ? taken(member_->on_local(options_.now(), std::move(event))) : engine::PeerEvents{};
}

bool PeerPort::are_all(const std::vector<std::int64_t>& ranks) const {
  return static_cast<std::int64_t>(ranks.size()) == options_.identity.local_world_size;
}

/// Rank 0 was here and is gone, and other ranks have all seats: it comes on another node.
void PeerPort::retire() {
  for (const engine::LinkNumber link : coordinator_->coordinator().links()) {
    outgoing_.emplace_back(engine::CloseLink{link});
  }
  coordinator_ = nullptr;
}

engine::PeerEvents PeerPort::choose_role(engine::LocalsChanged changed) {
  const bool all_here = are_all(changed.ranks);
  if (std::ranges::count(changed.ranks, 0) != 0) {
    if (std::exchange(member_, nullptr)) {
      outgoing_.emplace_back(engine::DropLink{});
    }
    coordinator_ = std::make_unique<engine::CoordinatorNode>(
        engine::CoordinatorMachine::Options{
            options_.identity.job,
            options_.identity.incarnation,
            options_.version,
            options_.identity.node,
            options_.first_epoch,
            options_.most_nodes},
        member_options({}),
        declarations_
    );
  } else if (!all_here && !changed.words.known && changed.words.doubt == 0) {
    return {};
  } else if (options_.identity.local_world_size == options_.identity.world_size) {
    return {};  // rank 0 comes to this daemon
  } else if (options_.coordinator.empty()) {
    engine::PeerEvents refused;
    refused.push_back(engine::EpochRefused{no_coordinator(options_.identity)});
    return refused;
  } else {
    member_ = std::make_unique<engine::MemberMachine>(member_options(options_.coordinator), declarations_);
  }
  engine::PeerEvents events = told(std::move(changed));
  if (!paused_.empty()) {
    for (engine::PeerEvent& event : told(engine::LocalsPaused{paused_})) {
      events.push_back(std::move(event));
    }
  }
  return events;
}

/// Other nodes may ask for it.
void PeerPort::keep_contents(const engine::LocalsChanged& changed) {
  if (!changed.declared) {
    return;
  }
  for (std::size_t i = 0; i < changed.contents.size(); ++i) {
    const engine::ContentHash& hash = changed.declared->by_content[i].hash;
    if (!declarations_.find(hash)) {
      declarations_.add(hash, *changed.contents[i]);
    }
  }
}

engine::MemberMachine::Options PeerPort::member_options(std::string coordinator) const {
  return {options_.identity, std::move(coordinator), options_.version, options_.retry_seed};
}

std::string PeerPort::waits_for() const {
  if (coordinator_) {
    return coordinator_->coordinator().waits_for();
  }
  if (!member_) {
    return "rank 0, or all ranks of this node, have to attach";
  }
  const bool away = member_->state() == engine::MemberMachine::State::Away;
  return away && !unreachable_.empty() ? fmt::format("{}: {}", member_->waits_for(), unreachable_)
                                       : member_->waits_for();
}

bool PeerPort::vote(const engine::Voted& voted) {
  bool done = false;
  for (engine::PeerEvent& event : told(voted)) {
    const auto* verdict = std::get_if<engine::VerdictReached>(&event);
    if (verdict != nullptr && verdict->verdict == engine::Verdict::Done) {
      done = true;
    } else {
      later_.push_back(std::move(event));
    }
  }
  return done;
}

engine::PeerEvents PeerPort::on_link(engine::LinkNumber link, std::string seen_address) {
  return coordinator_ ? taken(coordinator_->on_link(options_.now(), link, std::move(seen_address)))
                      : engine::PeerEvents{};
}

engine::PeerEvents PeerPort::on_message(engine::LinkNumber link, engine::ToCoordinator message) {
  return coordinator_ ? taken(coordinator_->on_message(options_.now(), link, std::move(message)))
                      : engine::PeerEvents{};
}

engine::PeerEvents PeerPort::on_link_ended(engine::LinkNumber link, const std::string& why) {
  return coordinator_ ? taken(coordinator_->on_link_ended(options_.now(), link, why)) : engine::PeerEvents{};
}

engine::PeerEvents PeerPort::on_own_link(std::string own_address) {
  linked_ = true;
  unreachable_.clear();
  return member_ ? taken(member_->on_link(options_.now(), std::move(own_address))) : engine::PeerEvents{};
}

engine::PeerEvents PeerPort::on_own_message(engine::ToMember message) {
  return member_ ? taken(member_->on_message(options_.now(), std::move(message))) : engine::PeerEvents{};
}

engine::PeerEvents PeerPort::on_own_link_ended(const std::string& why) {
  if (!linked_ && why != unreachable_) {  // one line for a daemon that is away for an hour
    spdlog::warn("no link yet to the node of rank 0 job={} address={}: {}", key().second, options_.coordinator, why);
    unreachable_ = why;
  }
  return member_ ? taken(member_->on_link_ended(options_.now(), why)) : engine::PeerEvents{};
}

engine::PeerEvents PeerPort::on_time() {
  if (coordinator_) {
    return taken(coordinator_->on_time(options_.now()));
  }
  return member_ ? taken(member_->on_time(options_.now())) : engine::PeerEvents{};
}

std::optional<TimePoint> PeerPort::next_deadline() const {
  return coordinator_ ? coordinator_->next_deadline() : member_ ? member_->next_deadline() : std::nullopt;
}

}  // namespace gradsync::app
