// What becomes of an attempt when the time of a rank, or half of it, is over: who is missing is asked of its node, and
// a node that does not say is named itself.

#include "base/text/text.hpp"
#include "engine/peers/coordinator_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

void CoordinatorMachine::on_overdue(TimePoint now, const PeerOverdue& overdue, Actions& actions) {
  if (under_way_.overdue && (overdue.half || !under_way_.overdue->half)) {
    return;
  }
  under_way_.overdue = overdue;
  under_way_.missing.clear();
  under_way_.who_until = now + kWho;
  wake_at(*under_way_.who_until);
  for (const NodeNumber number : waited_for()) {
    send(now, node(number), PeerWho{word()}, actions);
  }
}

std::vector<NodeNumber> CoordinatorMachine::waited_for() const {
  std::vector<NodeNumber> nodes;
  for (NodeNumber number = 0; number < course_.roster.size(); ++number) {
    const bool came = under_way_.phase == Phase::Asking      ? under_way_.asks.contains(number)
                      : under_way_.phase == Phase::Comparing ? has_said_rows(number)
                                                             : under_way_.votes.contains(number);
    if (!came) {
      nodes.push_back(number);
    }
  }
  return nodes;
}

bool CoordinatorMachine::has_said_rows(NodeNumber number) const {
  return std::ranges::all_of(under_way_.compared, [&](SiteNumber site) {
    return course_.by_rank->sites[site].node != number || under_way_.rows.contains(site);
  });
}

void CoordinatorMachine::on_missing(TimePoint now, NodeNumber number, PeerMissing missing, Actions& actions) {
  if (!under_way_.who_until) {
    return;
  }
  under_way_.missing.emplace(number, std::move(missing));
  if (std::ranges::all_of(waited_for(), [this](NodeNumber of) { return under_way_.missing.contains(of); })) {
    who_is_over(now, actions);
  }
}

void CoordinatorMachine::who_is_over(TimePoint now, Actions& actions) {
  under_way_.who_until.reset();
  if (under_way_.overdue->half) {
    actions.emplace_back(WarnHalfTime{words_of_missing()});
  } else {
    abort(now, timed_out(), actions);
  }
}

Error CoordinatorMachine::timed_out() const {
  Error error = make_error(
      ErrorCode::StepTimeout,
      fmt::format(
          "step {} was not finished within {:.1f} s: {}",
          under_way_.overdue->step,
          under_way_.overdue->waited_s,
          words_of_missing()
      ),
      "see what these ranks do, or use job.pause during long work"
  );
  error.step = under_way_.overdue->step;
  error.waited_s = under_way_.overdue->waited_s;
  const std::vector<NodeNumber> nodes = waited_for();
  const auto first = std::ranges::find_if(nodes, [this](NodeNumber of) { return ranks_are_missing(of); });
  if (!nodes.empty()) {  // a node whose lane waits, because a bucket of a late rank does not come, is not to blame
    error.node = node(first == nodes.end() ? nodes.front() : *first).join.node;
  }
  for (const auto& [number, missing] : under_way_.missing) {
    error.ranks.insert(error.ranks.end(), missing.ranks.begin(), missing.ranks.end());
    error.tensors.insert(error.tensors.end(), missing.tensors.begin(), missing.tensors.end());
  }
  error.tensors.resize(std::min<std::size_t>(error.tensors.size(), 20));
  return error;
}

bool CoordinatorMachine::ranks_are_missing(NodeNumber number) const {
  const auto said = under_way_.missing.find(number);
  return said != under_way_.missing.end() && !said->second.ranks.empty();
}

std::string CoordinatorMachine::words_of_missing() const {
  std::string text;
  for (const NodeNumber number : waited_for()) {
    const auto said = under_way_.missing.find(number);
    text += text.empty() ? "" : "; ";
    if (said == under_way_.missing.end()) {
      text += fmt::format("node '{}' does not say what it waits for", node(number).join.node);
    } else {
      const auto& [word, ranks, tensors, words] = said->second;
      const std::string late = ranks.empty() ? "" : enumerate_ranks(ranks, static_cast<std::int64_t>(ranks.size()));
      text += fmt::format("{}node '{}'", late.empty() ? "" : late + " on ", node(number).join.node);
      text += words.empty() || words == late ? "" : ", " + words;
    }
  }
  return text;
}

}  // namespace gradsync::engine
