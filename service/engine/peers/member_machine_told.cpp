// What the coordinator tells its members.

#include "engine/peers/member_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

bool is_final(ErrorCode code) {
  return code == ErrorCode::JobMismatch || code == ErrorCode::Superseded || code == ErrorCode::VersionMismatch;
}

std::vector<std::int64_t> ranks_of(const RosterNode& node) {
  std::vector<std::int64_t> ranks;
  for (const DeclaredRanks& declared : node.by_content) {
    for (const auto& [first, count] : declared.ranks) {
      for (std::int64_t rank = first; rank < first + count; ++rank) {
        ranks.push_back(rank);
      }
    }
  }
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace

MemberActions MemberMachine::on_message(TimePoint now, ToMember message) {
  Actions actions;
  if (!own() && connection_ != Connection::Open) {
    return actions;
  }
  heard_ = now;
  if (const auto* hello = std::get_if<PeerHello>(&message)) {
    on_hello(now, *hello, actions);
  } else if (const auto* refused = std::get_if<PeerRefused>(&message)) {
    on_refused(now, refused->error, actions);
  } else if (const auto* ruling = std::get_if<PeerRuling>(&message)) {
    on_ruling(ruling->word, ruling->verdict, std::nullopt, actions);
  } else if (auto* prepare = std::get_if<PeerPrepare>(&message)) {
    on_prepare(now, std::move(*prepare), actions);
  } else if (const auto* end = std::get_if<PeerEnd>(&message)) {
    on_end(now, *end, actions);
  } else if (const auto* want = std::get_if<PeerWant>(&message); want != nullptr && state_ != State::Away) {
    for (const ContentHash& hash : want->hashes) {
      for (PeerDeclaration& page : declarations_.pages_of(hash)) {
        send(now, std::move(page), actions);
      }
    }
  } else if (auto* page = std::get_if<PeerDeclaration>(&message)) {
    on_declaration(now, std::move(*page), actions);
  } else if (auto* policies = std::get_if<PeerPolicies>(&message)) {
    on_policies_told(now, std::move(*policies), actions);
  } else if (auto* connect = std::get_if<PeerConnect>(&message)) {
    if (state_ == State::Ready && connect->epoch == epoch_) {
      state_ = State::Connected;
      actions.emplace_back(TellJob{ConnectEpoch{epoch_, std::move(connect->communicators)}});
    }
  } else if (const auto* begin = std::get_if<PeerBegin>(&message)) {
    on_begin(*begin, actions);
  } else {
    on_attempt_message(now, std::move(message), actions);
  }
  return actions;
}

void MemberMachine::on_attempt_message(TimePoint now, ToMember message, Actions& actions) {
  if (const auto* done = std::get_if<PeerDone>(&message)) {
    on_done(now, done->word, actions);
  } else if (const auto* abort = std::get_if<PeerAbort>(&message)) {
    on_abort(*abort, actions);
  } else if (auto* compare = std::get_if<PeerCompare>(&message)) {
    if (phase_ == Phase::Asked && compare->word == word_) {
      actions.emplace_back(TellJob{WantRows{std::move(*compare)}});
    }
  } else if (auto* decision = std::get_if<PeerDecision>(&message)) {
    on_decision(std::move(*decision), actions);
  } else if (const auto* who = std::get_if<PeerWho>(&message)) {
    if (state_ == State::Begun && who->word == word_) {
      actions.emplace_back(TellJob{WhoIsMissing{word_}});
    }
  } else if (const auto* pause = std::get_if<PeerPause>(&message)) {
    on_pause(*pause, actions);
  }
}

void MemberMachine::on_pause(const PeerPause& pause, Actions& actions) {
  if (in_epoch() && paused_ == pause.ranks.empty()) {
    paused_ = !paused_;
    actions.emplace_back(TellJob{PeersPaused{paused_}});
  }
}

void MemberMachine::on_hello(TimePoint now, const PeerHello& hello, Actions& actions) {
  if (state_ != State::Away) {
    return;
  }
  coordinator_node_ = hello.node;
  if (hello.version != options_.version || hello.peer_protocol != kPeerProtocol) {
    const Error error = make_error(
        ErrorCode::VersionMismatch,
        fmt::format(
            "node '{}' has gradsyncd {} with peer protocol {}, and node '{}' has {} with {}",
            hello.node,
            hello.version,
            hello.peer_protocol,
            options_.identity.node,
            options_.version,
            kPeerProtocol
        ),
        "install the same release of gradsyncd on all nodes"
    );
    actions.emplace_back(DropLink{});
    on_refused(now, error, actions);
    return;
  }
  options_.identity.challenge = hello.challenge;
  join(now, actions);
}

void MemberMachine::on_refused(TimePoint now, const Error& error, Actions& actions) {
  if (is_final(error.code)) {
    final_ = error;
  }
  if (!lose_link(now, error, actions)) {
    declared_.reset();
    actions.emplace_back(TellJob{EpochRefused{error}});
  }
}

// `done` of the word, and an end that names it, are facts too: they rule on it over the link on which this node joined
// meanwhile.
void MemberMachine::on_ruling(std::uint64_t word, Verdict verdict, std::optional<Error> error, Actions& actions) {
  if (phase_ != Phase::Doubt || word != word_) {
    return;
  }
  if (verdict == Verdict::Failed && !error) {
    error = ended_ ? *ended_
                   : make_error(
                         ErrorCode::StepFailed,
                         "no node has done the attempt that this one voted for",
                         "compute the step again on every rank"
                     );
  } else if (verdict == Verdict::Unknown) {
    error = in_doubt();
  }
  settle(verdict, std::move(error), actions);
}

void MemberMachine::on_prepare(TimePoint now, PeerPrepare prepare, Actions& actions) {
  if (state_ != State::Joined || prepare.epoch < epoch_ || !declared_ || phase_ == Phase::Doubt) {
    return;
  }
  const std::int64_t world = options_.identity.world_size;
  if (!prepare.by_rank || static_cast<std::int64_t>(prepare.by_rank->node_of_rank.size()) != world) {
    prepare.by_rank = roster_by_rank(prepare.roster, world, prepare.weight_fingerprints.size());
  }
  const auto first = static_cast<std::size_t>(options_.identity.ranks.front());
  if (prepare.by_rank && prepare.roster[prepare.by_rank->node_of_rank[first]].devices != declared_->devices) {
    return;  // it was made before the last JOIN, for which END and another one follow
  }
  state_ = State::Preparing;
  epoch_ = prepare.epoch;
  retry_ = kFirstRetry;
  if (!prepare.by_rank) {
    give_up(
        now,
        make_error(
            ErrorCode::InternalError,
            fmt::format("the roster of node '{}' does not have each of {} ranks once", coordinator_node_, world)
        ),
        actions
    );
    return;
  }
  coordinator_ranks_ = ranks_of(prepare.roster[0]);
  roster_ = prepare.roster;
  number_ = prepare.by_rank->node_of_rank[first];
  want_unknown(now, prepare, actions);
  prepare_ = std::move(prepare);
  try_plan(actions);
}

void MemberMachine::want_unknown(TimePoint now, const PeerPrepare& prepare, Actions& actions) {
  PeerWant want;
  for (const RosterByRank::Content& content : prepare.by_rank->contents) {
    if (!declarations_.find(content.hash) && std::ranges::count(want.hashes, content.hash) == 0) {
      want.hashes.push_back(content.hash);
    }
  }
  if (!want.hashes.empty()) {
    send(now, std::move(want), actions);
  }
}

void MemberMachine::on_declaration(TimePoint now, PeerDeclaration page, Actions& actions) {
  if (std::optional<Error> error = declarations_.take(std::move(page)); error && prepare_) {
    give_up(now, std::move(*error), actions);
  } else {
    try_plan(actions);
  }
}

void MemberMachine::try_plan(Actions& actions) {
  if (!prepare_) {
    return;
  }
  std::vector<std::shared_ptr<const WeightFingerprints>> weights;
  for (const WeightFingerprints& list : prepare_->weight_fingerprints) {
    weights.push_back(std::make_shared<const WeightFingerprints>(list));
  }
  const RosterByRank& roster = *prepare_->by_rank;
  std::vector<std::shared_ptr<const plan::RankDeclaration>> declared;
  for (const RosterByRank::Content& content : roster.contents) {
    if (declared.emplace_back(declarations_.find(content.hash)) == nullptr) {
      return;
    }
  }
  PrepareEpoch plan;
  plan.epoch = epoch_;
  plan.node_of_rank = roster.node_of_rank;
  plan.site_of_rank = roster.site_of_rank;
  for (const RosterNode& node : roster_) {
    plan.node_names.push_back(node.node);
  }
  std::vector<std::shared_ptr<const plan::RankDeclaration>>& by_rank = plan.by_rank.own();
  std::vector<std::shared_ptr<const WeightFingerprints>>& of_rank = plan.weights.own();
  by_rank.reserve(roster.content_of_rank.size());
  of_rank.reserve(roster.content_of_rank.size());
  for (const std::uint32_t index : roster.content_of_rank) {
    const std::optional<std::uint32_t> list = roster.contents[index].weights;
    by_rank.push_back(declared[index]);
    of_rank.push_back(list ? weights[*list] : nullptr);
  }
  prepare_.reset();
  planning_ = true;
  actions.emplace_back(TellJob{std::move(plan)});
}

void MemberMachine::on_policies_told(TimePoint now, PeerPolicies page, Actions& actions) {
  if (state_ != State::Ready || page.epoch != epoch_) {
    return;
  }
  if (page.state.empty()) {
    actions.emplace_back(TellJob{PoliciesWanted{epoch_}});
    return;
  }
  if (page.page != next_page_) {
    return;
  }
  if (policy_pages_.size() + page.state.size() > kMostPolicies) {
    give_up(
        now,
        make_error(
            ErrorCode::LimitExceeded,
            fmt::format("what policies of another node remember has more than {} bytes", kMostPolicies)
        ),
        actions
    );
    return;
  }
  policy_pages_ += page.state;
  if (++next_page_ == page.pages) {
    next_page_ = 0;
    actions.emplace_back(TellJob{PoliciesGiven{epoch_, std::exchange(policy_pages_, {})}});
  }
}

void MemberMachine::on_begin(const PeerBegin& begin, Actions& actions) {
  if (state_ == State::Connected && begin.epoch == epoch_) {
    state_ = State::Begun;
    phase_ = Phase::Idle;
    own_record_ = words_.known = true;
    word_ = attempt_word({epoch_, 0});
    actions.emplace_back(TellJob{BeginEpoch{epoch_}});
  }
}

void MemberMachine::on_end(TimePoint now, const PeerEnd& end, Actions& actions) {
  if (!in_epoch()) {
    on_ruling(end.failed_word, Verdict::Failed, end.error, actions);
    if (epoch_ <= end.epoch && state_ == State::Joined) {
      // The last JOIN was on its way when this epoch was prepared, so the coordinator waits for one behind its END.
      epoch_ = end.epoch + 1;
      join(now, actions);
    }
    return;
  }
  if (end.epoch != epoch_) {
    return;
  }
  if (phase_ == Phase::Voted && end.failed_word == word_) {
    settle(Verdict::Failed, end.error, actions);
  }
  leave_and_join(now, end.error, actions);
}

void MemberMachine::on_decision(PeerDecision decision, Actions& actions) {
  // A decision of norm.compute that comes twice has sums, which a clip.apply of the same word does not ask for.
  const bool sums = asked_ == Ask::Kind::Finish || asked_ == Ask::Kind::NormOnly;
  if (phase_ != Phase::Asked || decision.word != word_ || decision.cells.has_value() != sums) {
    return;
  }
  if (asked_ == Ask::Kind::NormOnly) {
    phase_ = Phase::Idle;
    answer_until_.reset();
  } else {
    phase_ = Phase::Decided;
  }
  actions.emplace_back(TellJob{SumsKnown{std::move(decision)}});
}

void MemberMachine::on_done(TimePoint now, std::uint64_t word, Actions& actions) {
  if (phase_ == Phase::Doubt) {
    on_ruling(word, Verdict::Done, std::nullopt, actions);
  } else if (state_ == State::Begun && word == word_ && phase_ == Phase::Voted) {
    settle(Verdict::Done, std::nullopt, actions);
    ++word_;
  } else if (state_ == State::Begun && word == word_) {
    give_up(
        now,
        make_error(
            ErrorCode::InternalError,
            fmt::format("node '{}' says that an attempt is done which this node did not vote for", coordinator_node_)
        ),
        actions
    );
  }
}

void MemberMachine::on_abort(const PeerAbort& abort, Actions& actions) {
  if (phase_ == Phase::Doubt) {
    on_ruling(abort.word, Verdict::Failed, abort.error, actions);
  } else if (state_ == State::Begun && abort.word == word_) {
    held_.reset();
    if (phase_ == Phase::Voted) {
      settle(Verdict::Failed, abort.error, actions);
    } else {
      phase_ = Phase::Idle;
      deadline_.reset();
      answer_until_.reset();
      actions.emplace_back(TellJob{AttemptRefused{word_, abort.error}});
    }
    ++word_;
  }
}

}  // namespace gradsync::engine
