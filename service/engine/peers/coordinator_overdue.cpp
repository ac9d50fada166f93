// What becomes of an attempt when the time of a rank, or half of it, is over: who is missing is asked of its node, and
// a node that does not say is named itself.

#include "base/text.hpp"
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
    const bool came = under_way_.phase == Phase::Asking ? under_way_.asks.contains(number)
                      : under_way_.phase == Phase::Comparing
                          ? under_way_.rows.contains(number) || !under_way_.compared.contains(number)
                          : under_way_.votes.contains(number);
    if (!came) {
      nodes.push_back(number);
    }
  }
  return nodes;
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
  for (const NodeNumber number : waited_for()) {
    error.node = error.node.empty() ? node(number).join.node : error.node;
  }
  for (const auto& [number, missing] : under_way_.missing) {
    error.ranks.insert(error.ranks.end(), missing.ranks.begin(), missing.ranks.end());
    error.tensors.insert(error.tensors.end(), missing.tensors.begin(), missing.tensors.end());
  }
  error.tensors.resize(std::min<std::size_t>(error.tensors.size(), 20));
  return error;
}

std::string CoordinatorMachine::words_of_missing() const {
  std::string text;
  for (const NodeNumber number : waited_for()) {
    const auto said = under_way_.missing.find(number);
    text += text.empty() ? "" : "; ";
    if (said == under_way_.missing.end()) {
      text += fmt::format("node '{}' does not say what it waits for", node(number).join.node);
    } else {
      const auto& ranks = said->second.ranks;
      text += fmt::format(
          "{} on node '{}'{}{}",
          enumerate_ranks(ranks, static_cast<std::int64_t>(ranks.size())),
          node(number).join.node,
          said->second.words.empty() ? "" : ", ",
          said->second.words
      );
    }
  }
  return text;
}

}  // namespace gradsync::engine
