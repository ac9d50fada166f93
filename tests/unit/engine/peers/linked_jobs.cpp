// The job of a node: what follows for its ranks, its record and its policies, and what must not.

#include "base/text/hash.hpp"
#include "unit/engine/peers/linked_machines.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

void LinkedMachines::on_event(std::size_t index, PeerEvent& event) {
  Node& node = nodes_[index];
  if (const auto* prepare = std::get_if<PrepareEpoch>(&event)) {
    on_prepare(index, *prepare);
  } else if (const auto* wanted = std::get_if<PoliciesWanted>(&event)) {
    if (wanted->epoch != node.prepared || node.begun) {
      fail("policies are asked for by another epoch");
    }
    local(index, LocalPolicies{wanted->epoch, std::to_string(node.policies)});
  } else if (const auto* given = std::get_if<PoliciesGiven>(&event)) {
    if (given->epoch != node.prepared || node.begun) {
      fail("policies come from another epoch");
    }
    node.policies = std::stoull(given->state);
    say_ready(index);
  } else if (const auto* connect = std::get_if<ConnectEpoch>(&event)) {
    on_connect(index, *connect);
  } else if (const auto* begin = std::get_if<BeginEpoch>(&event)) {
    on_begin(index, *begin);
  } else if (const auto* sums = std::get_if<SumsKnown>(&event)) {
    on_sums(index, *sums);
  } else if (const auto* verdict = std::get_if<VerdictReached>(&event)) {
    on_verdict(index, *verdict);
  } else if (const auto* refused = std::get_if<AttemptRefused>(&event)) {
    on_refused(index, *refused);
  } else if (const auto* ended = std::get_if<EpochEnded>(&event)) {
    node.why = ended->error.message;
    if (node.prepared == 0) {
      fail("an epoch ends that this node was not told of");
    }
    on_epoch_over(index);
  } else if (const auto* refused_epoch = std::get_if<EpochRefused>(&event)) {
    node.why = refused_epoch->error.message;
    on_epoch_over(index);
    local(index, locals(index));  // the ranks declare again
  } else if (std::holds_alternative<WhoIsMissing>(event)) {
    local(index, LocalsMissing{{node.word, {static_cast<std::int64_t>(2 * index)}, {}, "asleep"}});
  }
}

void LinkedMachines::on_prepare(std::size_t index, const PrepareEpoch& prepare) {
  Node& node = nodes_[index];
  if (node.verdict != 0) {
    fail("an epoch is prepared while an attempt has no verdict");
  }
  if (node.prepared != 0 || prepare.epoch <= node.latest) {
    fail("an epoch is prepared that is not later than the last one, or before that ended");
  }
  if (!node.whole || prepare.by_rank.size() != 2 * nodes_.size() || prepare.node_of_rank[2 * index] != index) {
    fail("an epoch is prepared without a rank");
  }
  node.prepared = node.latest = prepare.epoch;
  say_ready(index);
}

void LinkedMachines::on_connect(std::size_t index, const ConnectEpoch& connect) {
  Node& node = nodes_[index];
  if (connect.epoch != node.prepared || node.connected) {
    fail("a node is to connect in another epoch, or twice");
  }
  node.connected = true;
  if (!travels_) {
    say_connected(index, connect.epoch);
    return;
  }
  LinksWanted wanted{connect.epoch, {}};
  for (NodeNumber other = 0; other < nodes_.size(); ++other) {
    if (other != index) {
      wanted.nodes.push_back(other);
    }
  }
  local(index, std::move(wanted));
}

/// They are made, or one of them cannot be.
void LinkedMachines::on_data(std::size_t index, const OpenDataLinks& open) {
  const Node& node = nodes_[index];
  if (open.epoch != node.prepared || open.own != index || open.own_incarnation != std::to_string(node.incarnation)) {
    fail("data connections are wanted for another epoch, or as another node");
  }
  if (open.ends.size() + 1 != nodes_.size()) {
    fail("not every node has a data connection");
  }
  for (const DataEnd& end : open.ends) {
    if (end.name != fmt::format("n{}", end.node) || std::stoull(end.incarnation) > nodes_[end.node].incarnation) {
      fail("a data connection is wanted to another node than that of the number");
    }
  }
  if (disturbed_ && one_in(8)) {
    local(index, LocalsLeft{make_error(ErrorCode::NodeRefused, "no data connection")});
    local(index, locals(index));
  } else {
    say_connected(index, open.epoch);
  }
}

void LinkedMachines::say_connected(std::size_t index, std::uint64_t epoch) {
  connected_[epoch].insert(index);
  local(index, LocalsConnected{epoch});
}

void LinkedMachines::say_ready(std::size_t index) {
  const Node& node = nodes_[index];
  if (travels_ && node.coordinator) {
    auto comparison = std::make_shared<Comparison>();
    comparison->of_node.resize(nodes_.size());
    node.coordinator->on_comparison(node.prepared, std::make_shared<const plan::Plan>(), std::move(comparison));
  }
  local(index, LocalsReady{node.prepared, "plan", std::to_string(node.policies), node.policies == 0});
}

void LinkedMachines::on_begin(std::size_t index, const BeginEpoch& begin) {
  Node& node = nodes_[index];
  if (begin.epoch != node.prepared || !node.connected || node.begun) {
    fail("another epoch begins than this node is connected in");
  }
  if (connected_[begin.epoch].size() != nodes_.size()) {
    fail(fmt::format("epoch {} begins, and {} nodes are connected in it", begin.epoch, connected_[begin.epoch].size()));
  }
  node.begun = node.known = true;
  node.measured = false;
  node.word = attempt_word({begin.epoch, 0});
}

/// The vote: the texts are kept and the state is staged, then the record says so, then the coordinator hears of it.
/// Some node may compute something else.
void LinkedMachines::on_sums(std::size_t index, const SumsKnown& sums) {
  Node& node = nodes_[index];
  const std::uint64_t word = sums.decision.word;
  if (!node.begun || node.step != Step::Asked || word != node.word) {
    fail("a decision comes for another attempt");
    return;
  }
  if (asked_[word].size() != nodes_.size()) {
    fail("a decision is taken without every node");
  }
  if (word % 5 == 0 && !node.measured) {
    node.measured = true;
    node.step = Step::Idle;
    return;
  }
  node.step = Step::Voted;
  node.staged = hash64(fmt::format("{} {}", node.policies, word)) | 1U;
  node.voted = node.verdict = word;
  std::string digest = fmt::format("{}{}", node.staged, one_in(60) ? ", computed elsewhere" : "");
  voted_[word][index] = digest;
  local(index, Voted{word, std::move(digest), std::nullopt});
}

void LinkedMachines::store_done(std::uint64_t word) {
  const auto& votes = voted_[word];
  if (votes.size() != nodes_.size()) {
    fail("an attempt is done without every vote");
  }
  for (const auto& [index, digest] : votes) {
    if (digest != votes.begin()->second) {
      fail("an attempt is done that nodes have different results of");
    }
  }
  stored_.insert(word);
  nodes_[0].done = word;
}

void LinkedMachines::on_verdict(std::size_t index, const VerdictReached& verdict) {
  Node& node = nodes_[index];
  if (verdict.word != node.verdict) {
    fail(fmt::format("a verdict of word {:x} comes, and one of {:x} is awaited", verdict.word, node.verdict));
  }
  if ((verdict.verdict == Verdict::Done) == verdict.error.has_value()) {
    fail("a verdict has an error where it is done, or none where it is not");
  }
  node.verdict = 0;
  if (verdict.verdict == Verdict::Done) {
    node.done = verdict.word;
    node.policies = node.staged;
  }
  if (verdict.word == node.word) {
    ++node.word;
    node.measured = false;
  }
  answer(index, verdict.word, verdict.verdict);
}

void LinkedMachines::on_refused(std::size_t index, const AttemptRefused& refused) {
  Node& node = nodes_[index];
  if (!node.begun || refused.word != node.word || node.step == Step::Voted) {
    fail("an attempt is refused that is not under way here, or was voted for");
  }
  if (travels_) {
    fail("an attempt fails where gradients travel, and its epoch goes on");
  }
  ++node.word;
  node.measured = false;
  if (node.waits == refused.word) {
    answer(index, refused.word, Verdict::Failed);
  }
}

/// What was not voted for has failed; what was waits for its verdict.
void LinkedMachines::on_epoch_over(std::size_t index) {
  Node& node = nodes_[index];
  node.prepared = 0;
  node.begun = node.connected = node.measured = false;
  if (node.waits != 0 && node.verdict == 0) {
    answer(index, node.waits, Verdict::Failed);
  }
  node.step = Step::Idle;
}

}  // namespace gradsync::engine
