// What the job of this daemon tells its member.

#include "base/text/host_port.hpp"
#include "engine/peers/member_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

MemberActions MemberMachine::on_local(TimePoint now, LocalEvent event) {
  Actions actions;
  if (auto* changed = std::get_if<LocalsChanged>(&event)) {
    on_changed(now, std::move(*changed), actions);
  } else if (auto* left = std::get_if<LocalsLeft>(&event)) {
    on_left(now, std::move(left->error), actions);
  } else if (const auto* ready = std::get_if<LocalsReady>(&event)) {
    on_ready(now, *ready, actions);
  } else if (const auto* policies = std::get_if<LocalPolicies>(&event)) {
    on_policies(now, *policies, actions);
  } else if (const auto* wanted = std::get_if<LinksWanted>(&event)) {
    on_links_wanted(*wanted, actions);
  } else if (const auto* connected = std::get_if<LocalsConnected>(&event)) {
    if (state_ == State::Connected && connected->epoch == epoch_) {
      send(now, PeerConnected{epoch_}, actions);
    }
  } else if (auto* paused = std::get_if<LocalsPaused>(&event)) {
    local_paused_ = std::move(paused->ranks);
    if (state_ != State::Away) {
      send(now, PeerPause{local_paused_}, actions);
    }
  } else if (state_ == State::Begun) {
    on_in_attempt(now, std::move(event), actions);
  }
  return actions;
}

void MemberMachine::on_in_attempt(TimePoint now, LocalEvent event, Actions& actions) {
  if (auto* asked = std::get_if<LocalsAsked>(&event)) {
    on_asked(now, std::move(asked->ask), actions);
  } else if (auto* rows = std::get_if<LocalRows>(&event)) {
    if (phase_ == Phase::Asked && rows->rows.word == word_) {
      send(now, std::move(rows->rows), actions);
    }
  } else if (const auto* voted = std::get_if<Voted>(&event)) {
    on_voted(now, *voted, actions);
  } else if (auto* failed = std::get_if<LocalsFailed>(&event)) {
    on_failed(now, std::move(*failed), actions);
  } else if (const auto* overdue = std::get_if<LocalsOverdue>(&event)) {
    if (overdue->overdue.word == word_) {
      answer_until_ = overdue->overdue.half ? answer_until_ : std::optional(now + kOverdue);
      send(now, overdue->overdue, actions);
    }
  } else if (auto* missing = std::get_if<LocalsMissing>(&event); missing != nullptr && missing->missing.word == word_) {
    send(now, std::move(missing->missing), actions);
  }
}

void MemberMachine::on_failed(TimePoint now, LocalsFailed failed, Actions& actions) {
  if (phase_ == Phase::Voted || failed.word != word_) {
    return;
  }
  if (failed.error.code == ErrorCode::NodeLost) {
    held_ = HeldFailure{std::move(failed.error), now + kCause};
  } else {
    send(now, PeerFail{word_, of_this_node(std::move(failed.error))}, actions);
  }
}

void MemberMachine::on_changed(TimePoint now, LocalsChanged changed, Actions& actions) {
  options_.identity.ranks = std::move(changed.ranks);
  if (final_) {
    actions.emplace_back(TellJob{EpochRefused{*final_}});
    return;
  }
  leave(
      make_error(
          ErrorCode::StaleEpoch,
          fmt::format("the ranks of node '{}' changed, or declared anew", options_.identity.node),
          "every rank has to call gradients.declare again"
      ),
      Declared::Counts,
      actions
  );
  epoch_ = std::max(epoch_, changed.epoch);
  take_words(changed.words);
  declared_ = std::move(changed.declared);
  if (own() || state_ == State::Joined) {
    join(now, actions);
  } else if (connection_ == Connection::None && !retry_at_) {
    open(actions);
  }
}

/// What a rank remembers of the daemon before is old once this one has stored anything itself.
void MemberMachine::take_words(const RecordWords& said) {
  if (own_record_) {
    return;
  }
  words_.known = words_.known || said.known;
  words_.done = said.done != 0 ? said.done : words_.done;
  if (said.doubt != 0 && phase_ == Phase::Idle) {
    phase_ = Phase::Doubt;
    word_ = said.doubt;
  }
}

/// Ranks of other nodes hear of it, to whom its ranks and tensors say too little.
Error MemberMachine::of_this_node(Error error) const {
  error.node = error.node.empty() ? options_.identity.node : std::move(error.node);
  return error;
}

/// The job, which says so, knows that what was declared counts no more.
void MemberMachine::on_left(TimePoint now, Error error, Actions& actions) {
  const bool counted = declared_.has_value();
  if (in_epoch()) {
    send(now, PeerLeave{epoch_, of_this_node(error)}, actions);
    leave(std::move(error), Declared::Counts, actions);
  }
  declared_.reset();
  if (state_ == State::Joined && counted) {
    join(now, actions);
  }
}

/// The epoch cannot go on here, for a reason that the job has not given.
void MemberMachine::give_up(TimePoint now, Error error, Actions& actions) {
  send(now, PeerLeave{epoch_, of_this_node(error)}, actions);
  leave_and_join(now, std::move(error), actions);
}

void MemberMachine::on_ready(TimePoint now, const LocalsReady& ready, Actions& actions) {
  const bool awaited = state_ == State::Preparing || state_ == State::Ready;
  if (awaited && planning_ && ready.epoch == epoch_) {
    state_ = State::Ready;
    send(
        now,
        PeerReady{epoch_, ready.plan_digest, ready.policy_digest, ready.policies_anew, ready.communicators},
        actions
    );
  }
}

void MemberMachine::on_policies(TimePoint now, const LocalPolicies& policies, Actions& actions) {
  if (state_ != State::Ready || policies.epoch != epoch_) {
    return;
  }
  if (policies.state.empty() || policies.state.size() > kMostPolicies) {
    give_up(
        now,
        make_error(
            ErrorCode::LimitExceeded,
            fmt::format(
                "what policies remember on node '{}' has {} bytes, and 1 to {} go to other nodes",
                options_.identity.node,
                policies.state.size(),
                kMostPolicies
            )
        ),
        actions
    );
    return;
  }
  const auto pages = static_cast<std::uint32_t>((policies.state.size() + kPolicyPage - 1) / kPolicyPage);
  for (std::uint32_t page = 0; page < pages; ++page) {
    send(now, PeerPolicies{epoch_, page, pages, policies.state.substr(page * kPolicyPage, kPolicyPage)}, actions);
  }
}

/// The roster has the other ends; the address of the coordinator is the one that this node reaches it by.
void MemberMachine::on_links_wanted(const LinksWanted& wanted, Actions& actions) {
  if (state_ != State::Connected || wanted.epoch != epoch_) {
    return;
  }
  OpenDataLinks open{epoch_, number_, options_.identity.incarnation, {}};
  for (const NodeNumber number : wanted.nodes) {
    const RosterNode& other = roster_[number];
    std::string address = number == 0 ? options_.coordinator : join_host_port(other.address, other.port);
    open.ends.push_back({number, other.node, std::move(address), other.incarnation});
  }
  actions.emplace_back(std::move(open));
}

void MemberMachine::on_asked(TimePoint now, PeerAsk ask, Actions& actions) {
  if (phase_ != Phase::Idle || ask.word != word_) {
    return;
  }
  phase_ = Phase::Asked;
  asked_ = ask.terms.kind;
  deadline_ = ask.terms.deadline;
  send(now, std::move(ask), actions);
}

void MemberMachine::on_voted(TimePoint now, const Voted& voted, Actions& actions) {
  if (phase_ == Phase::Decided && voted.word == word_) {
    phase_ = Phase::Voted;
    deadline_ = voted.deadline ? voted.deadline : deadline_;
    send(now, PeerVote{word_, voted.result_digest}, actions);
  }
}

}  // namespace gradsync::engine
