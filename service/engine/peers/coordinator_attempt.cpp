// One attempt, from the first ask to the verdict.

#include "engine/peers/coordinator_machine.hpp"
#include "engine/peers/sums/node_sums.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::engine {

void CoordinatorMachine::dispatch_attempt(TimePoint now, NodeNumber number, ToCoordinator message, Actions& actions) {
  if (auto* ask = std::get_if<PeerAsk>(&message)) {
    if (ask->word == word()) {
      on_ask(now, number, std::move(*ask), actions);
    }
  } else if (auto* rows = std::get_if<PeerRows>(&message)) {
    if (rows->word == word()) {
      on_rows(now, number, std::move(*rows), actions);
    }
  } else if (const auto* vote = std::get_if<PeerVote>(&message)) {
    if (vote->word == word()) {
      on_vote(now, number, *vote, actions);
    }
  } else if (auto* fail = std::get_if<PeerFail>(&message)) {
    if (fail->word == word()) {
      fail->error.node = fail->error.node.empty() ? node(number).join.node : fail->error.node;
      abort(now, std::move(fail->error), actions);
    }
  } else if (const auto* overdue = std::get_if<PeerOverdue>(&message)) {
    if (overdue->word == word()) {
      on_overdue(now, *overdue, actions);
    }
  } else if (auto* missing = std::get_if<PeerMissing>(&message); missing != nullptr && missing->word == word()) {
    on_missing(now, number, std::move(*missing), actions);
  }
}

void CoordinatorMachine::on_ask(TimePoint now, NodeNumber number, PeerAsk ask, Actions& actions) {
  const bool clip = ask.terms.kind == Ask::Kind::Clip;
  if (under_way_.phase != Phase::Asking || under_way_.asks.contains(number) || (under_way_.measured && !clip)) {
    return;
  }
  if (std::optional<Error> error = ask_difference(number, ask)) {
    abort(now, std::move(*error), actions);
    return;
  }
  under_way_.asks.emplace(number, std::move(ask));
  if (!node(number).paused.empty()) {
    tell_pauses(now, actions);  // it is not waited for any more
  }
  if (under_way_.asks.size() == course_.roster.size()) {
    all_asked(now, actions);
  }
}

/// Why the ask cannot be of one step with those before it.
std::optional<Error> CoordinatorMachine::ask_difference(NodeNumber number, const PeerAsk& ask) const {
  if (course_.plan) {
    const std::vector<SiteNumber>& sites = course_.by_rank->sites_of_node[number];
    if (const auto misfit = misfit_of(*course_.plan, *course_.comparison, sites, ask)) {
      Error error =
          make_error(ErrorCode::InternalError, fmt::format("what node '{}' asks {}", node(number).join.node, *misfit));
      error.node = node(number).join.node;
      return error;
    }
  }
  if (under_way_.asks.empty()) {
    return std::nullopt;
  }
  const auto& [other, before] = *under_way_.asks.begin();
  const auto rank = [this](NodeNumber of) { return node(of).join.ranks.front(); };
  std::optional<Error> error = mismatch(rank(number), ask.terms, rank(other), before.terms);
  if (!error && ask.policy_digest != before.policy_digest) {
    error = make_error(
        ErrorCode::StepMismatch,
        fmt::format("policies are at state {} and at {}", before.policy_digest, ask.policy_digest),
        "declare again: policies go on from one state"
    );
  }
  if (error) {
    error->message += fmt::format(" (nodes '{}' and '{}')", node(other).join.node, node(number).join.node);
    error->node = node(number).join.node;
  }
  return error;
}

const SiteSums& CoordinatorMachine::sums_of(SiteNumber number) const {
  const RosterByRank::Site& site = course_.by_rank->sites[number];
  return under_way_.asks.at(site.node).sites[site.index];
}

/// Everything that the attempt needs is here: all nodes decide by it alike.
void CoordinatorMachine::decide_attempt(TimePoint now, Actions& actions) {
  PeerDecision decision;
  decision.word = word();
  if (!under_way_.asks.begin()->second.sites.empty()) {
    std::vector<const NodeCells*> cells;
    std::vector<const NodeFindings*> findings;
    for (SiteNumber number = 0; number < course_.by_rank->sites.size(); ++number) {
      cells.push_back(&sums_of(number).cells);
      findings.push_back(&sums_of(number).findings);
    }
    decision.cells = sum_of_nodes(course_.plan ? course_.plan->options.norm_type : 2, cells);
    if (course_.plan) {
      decision.findings = join_findings(*course_.plan, course_.comparison->node_of_rank, findings);
      add_judged(under_way_.copies, decision.findings);
      count_rows(*course_.plan, under_way_.copies.uncounted, *decision.cells);
    }
  }
  course_.sums_differ = course_.sums_differ || under_way_.copies.sums_differ;
  decision.sums_differ = course_.sums_differ;
  if (under_way_.asks.begin()->second.terms.kind == Ask::Kind::NormOnly) {
    under_way_ = {};
    under_way_.measured = true;
  } else {
    under_way_.phase = Phase::Voting;
  }
  send_to_all(now, decision, actions);
  tell_pauses(now, actions);
}

void CoordinatorMachine::on_vote(TimePoint now, NodeNumber number, const PeerVote& vote, Actions& actions) {
  if (under_way_.phase != Phase::Voting) {
    return;
  }
  under_way_.votes.emplace(number, vote.result_digest);
  const auto& [first, digest] = *under_way_.votes.begin();
  const std::string& said = under_way_.votes.at(number);
  if (said != digest || under_way_.votes.rbegin()->second != digest) {
    const NodeNumber other = said != digest ? number : under_way_.votes.rbegin()->first;
    Error error = make_error(
        ErrorCode::StepMismatch,
        fmt::format(
            "node '{}' computed the result {} and node '{}' {}",
            node(first).join.node,
            digest,
            node(other).join.node,
            under_way_.votes.at(other)
        ),
        "equal sums gave other numbers: the nodes need the same release and the same kind of processor"
    );
    error.node = node(other).join.node;
    abort(now, std::move(error), actions);
  } else if (under_way_.votes.size() == course_.roster.size()) {
    commit(now, actions);
  }
}

void CoordinatorMachine::commit(TimePoint now, Actions& actions) {
  const std::uint64_t done = word();
  own_words_.done = done;
  own_words_.known = true;
  ++attempt_;
  under_way_ = {};
  actions.emplace_back(StoreDone{done});
  send_to_all(now, PeerDone{done}, actions);
  tell_pauses(now, actions);
}

/// Where gradients travel, what is half sent goes with its connections, and these are of the epoch.
void CoordinatorMachine::abort(TimePoint now, Error error, Actions& actions) {
  if (course_.plan && course_.plan->options.data_path == plan::DataPath::Arena) {
    end_epoch(now, std::move(error), actions);
    return;
  }
  const std::uint64_t failed = word();
  error.job = options_.job.second;
  error.epoch = epoch_;
  error.attempt = ++attempt_;
  under_way_ = {};
  send_to_all(now, PeerAbort{failed, std::move(error)}, actions);
  tell_pauses(now, actions);
}

}  // namespace gradsync::engine
