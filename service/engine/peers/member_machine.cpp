// The member's link, how it joins and leaves, and its deadlines.

#include "engine/peers/member_machine.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradsync::engine {

namespace {

/// splitmix64: one step.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  std::uint64_t value = state;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

/// 0.5 to 1 times as long, so that the members of a coordinator that is back do not all come at once.
Milliseconds jittered(Milliseconds retry, std::uint64_t& seed) {
  const auto half = static_cast<std::uint64_t>(retry.count() / 2);
  return Milliseconds(static_cast<std::int64_t>(half + next_random(seed) % (half + 1)));
}

}  // namespace

MemberMachine::MemberMachine(Options options, DeclarationsByHash& declarations)
    : options_(std::move(options)), declarations_(declarations) {}

MemberActions MemberMachine::on_link(TimePoint now, std::string local_address) {
  connection_ = Connection::Open;
  options_.identity.address = std::move(local_address);
  heard_ = sent_ = now;
  return {};
}

MemberActions MemberMachine::on_link_ended(TimePoint now, const std::string& why) {
  Actions actions;
  if (connection_ != Connection::None) {
    Error error = make_error(
        ErrorCode::NodeLost,
        fmt::format("the link to the coordinator, {}, ended: {}", coordinator_node_or_address(), why),
        "the epoch forms again when the node is back"
    );
    error.node = coordinator_node_;
    error.ranks = coordinator_ranks_;
    lose_link(now, std::move(error), actions);
  }
  return actions;
}

bool MemberMachine::lose_link(TimePoint now, Error error, Actions& actions) {
  const Declared declared = after(error);
  const bool told = leave(std::move(error), declared, actions);
  state_ = State::Away;
  connection_ = Connection::None;
  options_.identity.count = 0;
  if (!final_ && !own()) {
    retry_at_ = now + jittered(retry_, options_.retry_seed);
    retry_ = std::min(2 * retry_, kLongestRetry);
  }
  return told;
}

void MemberMachine::drop_link(TimePoint now, const std::string& why, Actions& actions) {
  actions.emplace_back(DropLink{});
  auto lost = on_link_ended(now, why);
  std::move(lost.begin(), lost.end(), std::back_inserter(actions));
}

std::string MemberMachine::coordinator_node_or_address() const {
  return coordinator_node_.empty() ? options_.coordinator : fmt::format("node '{}'", coordinator_node_);
}

void MemberMachine::open(Actions& actions) {
  retry_at_.reset();
  connection_ = Connection::Opening;
  actions.emplace_back(OpenLink{options_.coordinator});
}

void MemberMachine::send(TimePoint now, ToCoordinator message, Actions& actions) {
  sent_ = now;
  actions.emplace_back(SendToCoordinator{std::move(message)});
}

void MemberMachine::join(TimePoint now, Actions& actions) {
  state_ = State::Joined;
  ++options_.identity.count;
  PeerJoin join = options_.identity;
  join.epoch = epoch_;
  join.words = words_;
  join.words.doubt = doubt();
  join.declared = declared_;
  send(now, std::move(join), actions);
  if (!local_paused_.empty()) {
    send(now, PeerPause{local_paused_}, actions);  // a JOIN says of nobody that it is paused
  }
}

/// What was declared is not why an epoch ends that had begun, or that lost a node or a rank. Where a rank declared
/// anew, another plan may come of it.
MemberMachine::Declared MemberMachine::after(const Error& error) const {
  if (error.code == ErrorCode::StaleEpoch && error.rank) {
    return Declared::ToBeSaidAgain;
  }
  const bool counts = state_ == State::Begun || error.code == ErrorCode::NodeLost ||
                      error.code == ErrorCode::RankLost || error.code == ErrorCode::StaleEpoch;
  return counts ? Declared::Counts : Declared::Forgotten;
}

// What was voted for is in doubt from here on; nothing but a ruling, or the deadline of its rank, ends that.
bool MemberMachine::leave(Error error, Declared declared, Actions& actions) {
  if (!in_epoch()) {
    return false;
  }
  const bool told = std::exchange(planning_, false);
  error.job = options_.identity.job.second;
  error.epoch = ++epoch_;
  error.attempt = 0;
  state_ = State::Joined;
  phase_ = phase_ == Phase::Voted ? Phase::Doubt : Phase::Idle;
  prepare_.reset();
  roster_ = {};
  policy_pages_.clear();
  next_page_ = 0;
  answer_until_.reset();
  held_.reset();
  ended_ = error;
  if (std::exchange(paused_, false)) {
    actions.emplace_back(TellJob{PeersPaused{false}});
  }
  if (declared == Declared::Forgotten) {
    declared_.reset();
    actions.emplace_back(TellJob{EpochRefused{std::move(error)}});
    return true;
  }
  if (declared == Declared::ToBeSaidAgain) {
    declared_.reset();
    actions.emplace_back(TellJob{EpochEnded{std::move(error), true}});
  } else if (told) {
    actions.emplace_back(TellJob{EpochEnded{std::move(error)}});
  }
  return told;
}

void MemberMachine::leave_and_join(TimePoint now, Error error, Actions& actions) {
  const Declared declared = after(error);
  leave(std::move(error), declared, actions);
  join(now, actions);
}

/// The one verdict of an attempt that was voted for.
void MemberMachine::settle(Verdict verdict, std::optional<Error> error, Actions& actions) {
  own_record_ = words_.known = true;
  words_.done = verdict == Verdict::Done ? word_ : words_.done;
  phase_ = Phase::Idle;
  deadline_.reset();
  answer_until_.reset();
  actions.emplace_back(TellJob{VerdictReached{word_, verdict, std::move(error)}});
}

MemberActions MemberMachine::on_time(TimePoint now) {
  Actions actions;
  if (retry_at_ && *retry_at_ <= now) {
    open(actions);
  }
  if (connection_ == Connection::Open && heard_ + kDead <= now) {
    drop_link(now, fmt::format("nothing came over it for {:.1f} s", seconds(now - heard_)), actions);
  } else if (connection_ == Connection::Open && answer_until_ && *answer_until_ <= now) {
    drop_link(now, "it did not say what becomes of a step whose time is over", actions);
  } else if (connection_ == Connection::Open && sent_ + kBeat <= now) {
    send(now, PeerBeat{}, actions);
  }
  if (held_ && held_->until <= now) {
    send(now, PeerFail{word_, std::move(held_->error)}, actions);
    held_.reset();
  }
  if (phase_ == Phase::Doubt && deadline_ && *deadline_ <= now) {
    settle(Verdict::Unknown, in_doubt(), actions);
  }
  return actions;
}

Error MemberMachine::in_doubt() const {
  Error error = make_error(
      ErrorCode::StepInDoubt,
      fmt::format(
          "nobody can say whether attempt {} of epoch {} was done: {}",
          (word_ & 0xFFFFFFFFu) - 1,
          word_ >> 32,
          state_ == State::Away ? fmt::format("{} is not reached", coordinator_node_or_address())
                                : "the node that knew is gone"
      ),
      "go on from a checkpoint"
  );
  error.job = options_.identity.job.second;
  return error;
}

std::optional<TimePoint> MemberMachine::next_deadline() const {
  std::optional<TimePoint> earliest = retry_at_;
  const auto lower = [&earliest](TimePoint other) { earliest = std::min(earliest.value_or(other), other); };
  if (connection_ == Connection::Open) {
    lower(heard_ + kDead);
    lower(sent_ + kBeat);
    lower(answer_until_.value_or(heard_ + kDead));
  }
  if (held_) {
    lower(held_->until);
  }
  if (phase_ == Phase::Doubt && deadline_) {
    lower(*deadline_);
  }
  return earliest;
}

std::string MemberMachine::waits_for() const {
  switch (state_) {
    case State::Away:
      return fmt::format("no link to the coordinator, {}", coordinator_node_or_address());
    case State::Joined:
      return declared_ ? "other nodes have not joined or declared" : "not all ranks of this node have declared";
    case State::Preparing:
      return prepare_ ? "declarations of other nodes are on their way" : "the plan is being loaded";
    case State::Ready:
      return "other nodes load the plan";
    case State::Connected:
      return "nodes connect to each other";
    case State::Begun:
      return phase_ == Phase::Idle ? "" : "other nodes take part in the step";
  }
  GRADSYNC_ASSERT(false, "a member without a state");
}

}  // namespace gradsync::engine
