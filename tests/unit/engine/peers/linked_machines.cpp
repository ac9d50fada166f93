#include "unit/engine/peers/linked_machines.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

LinkedMachines::LinkedMachines(std::size_t nodes, std::uint64_t seed, bool travels)
    : random_(seed), nodes_(nodes), travels_(travels) {
  calm_ = 1 + below(12);
  for (std::size_t i = 0; i < nodes; ++i) {
    start(i);
  }
}

/// splitmix64.
std::uint64_t LinkedMachines::below(std::uint64_t most) {
  random_ += 0x9E3779B97F4A7C15U;
  std::uint64_t value = random_;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return (value ^ (value >> 31)) % most;
}

void LinkedMachines::disturb() {
  const std::uint64_t what = one_in(calm_) ? below(100) : 15 + below(85);
  disturbed_ = true;
  const std::size_t index = below(nodes_.size());
  Node& node = nodes_[index];
  now_ += Milliseconds(below(20));
  if (!node.up() && what < 60) {
    start(index);
  } else if (what < 2 && node.up()) {
    kill(index);
  } else if (what == 2 && one_in(3)) {
    lose(index);
  } else if (what < 5) {
    lose_rank(index);
  } else if (what < 7) {
    node.fuse = below(6);
  } else if (what < 9 && node.begun) {
    const bool lost = travels_ && one_in(2);
    local(index, LocalsFailed{node.word, make_error(lost ? ErrorCode::NodeLost : ErrorCode::StepFailed, "the lane")});
  } else if (what < 11) {
    overdue(index);
  } else if (what < 15 && !node.whole) {
    replace_rank(index);
  } else if (what < 35) {
    ask(index);
  } else {
    disturb_links(what);
  }
  tick();
}

void LinkedMachines::disturb_links(std::uint64_t what) {
  const std::vector<LinkNumber> waiting = busy();
  if (what < 38 && one_in(calm_) && !links_.empty()) {
    auto at = links_.begin();
    std::advance(at, below(links_.size()));
    cut(at->first);
  } else if (what < 40 && one_in(calm_)) {
    now_ += Milliseconds(below(7000));
  } else if (what < 50) {
    deliver_again();
  } else if (!waiting.empty()) {
    deliver(waiting[below(waiting.size())]);
  } else {
    now_ += Milliseconds(below(500));
  }
}

void LinkedMachines::go_on() {
  disturbed_ = false;
  now_ += Milliseconds(1);
  const std::vector<LinkNumber> waiting = busy();
  const auto pick = [this](auto what) {
    const auto found = std::ranges::find_if(nodes_, what);
    return found == nodes_.end() ? std::optional<std::size_t>() : static_cast<std::size_t>(found - nodes_.begin());
  };
  if (!waiting.empty()) {
    deliver(waiting[below(waiting.size())]);
  } else if (const auto down = pick([](const Node& node) { return !node.up(); })) {
    start(*down);
  } else if (const auto idle = pick([](const Node& node) { return node.begun && node.step == Step::Idle; })) {
    ask(*idle);
  } else if (const auto part = pick([](const Node& node) { return !node.whole; });
             part && (!doubts() || record_of_coordinator_lost_)) {
    replace_rank(*part);
  } else {
    pass_time();
  }
  tick();
}

bool LinkedMachines::doubts() const {
  return std::ranges::any_of(nodes_, [](const Node& node) { return node.verdict != 0; });
}

/// A new life of the daemon. Its ranks read the record of the life before, and declare.
void LinkedMachines::start(std::size_t index) {
  Node& node = nodes_[index];
  ++node.incarnation;
  if (node.waits != 0 && node.done == node.waits) {
    node.policies = node.staged;
    answer(index, node.waits, Verdict::Done);
  } else if (node.waits != 0 && node.voted == node.waits) {
    node.verdict = node.waits;
  } else if (node.waits != 0) {
    answer(index, node.waits, Verdict::Failed);
  }
  MemberMachine::Options options;
  options.identity.job = {0, "job"};
  options.identity.world_size = static_cast<std::int64_t>(2 * nodes_.size());
  options.identity.local_world_size = 2;
  options.identity.node = options.identity.node_id = fmt::format("n{}", index);
  options.identity.incarnation = std::to_string(node.incarnation);
  options.coordinator = index == 0 ? "" : "n0";
  options.version = "1";
  options.retry_seed = index;
  if (index == 0) {
    joined_.clear();
    node.coordinator = std::make_unique<CoordinatorNode>(
        CoordinatorMachine::Options{{0, "job"}, fmt::format("a{}", node.incarnation), "1", "n0", 1 + below(1U << 30)},
        std::move(options),
        declarations_
    );
  } else {
    node.member = std::make_unique<MemberMachine>(std::move(options), declarations_);
  }
  local(index, locals(index));
}

/// SIGKILL: what it sent may still arrive, and what came for it is gone.
void LinkedMachines::kill(std::size_t index) {
  Node& node = nodes_[index];
  node.member.reset();
  node.coordinator.reset();
  node.fuse.reset();
  node.prepared = node.latest = node.word = node.verdict = 0;
  node.begun = node.connected = node.measured = false;
  node.step = Step::Idle;
  for (const auto& [number, link] : Links(links_)) {
    if (index == 0) {
      close_coordinator_end(number);
    } else if (link.node == index) {
      close_member_end(number);
    }
  }
  node.link = 0;
}

/// The node burns: its ranks are new, and remember nothing.
void LinkedMachines::lose(std::size_t index) {
  kill(index);
  Node& node = nodes_[index];
  record_of_coordinator_lost_ = record_of_coordinator_lost_ || index == 0;
  node.voted = node.done = node.waits = node.policies = node.staged = 0;
  node.known = false;
}

void LinkedMachines::lose_rank(std::size_t index) {
  Node& node = nodes_[index];
  if (node.up() && node.whole) {
    node.whole = false;
    local(index, LocalsLeft{make_error(ErrorCode::RankLost, "a rank is lost")});
    local(index, locals(index));
  }
}

void LinkedMachines::replace_rank(std::size_t index) {
  nodes_[index].whole = true;
  if (nodes_[index].up()) {
    local(index, locals(index));
  }
}

LocalsChanged LinkedMachines::locals(std::size_t index) const {
  const Node& node = nodes_[index];
  const auto first = static_cast<std::int64_t>(2 * index);
  LocalsChanged changed;
  changed.ranks = {first};
  changed.words = {node.verdict, node.done, node.known};
  if (node.whole) {
    changed.ranks.push_back(first + 1);
    changed.declared.emplace();
    changed.declared->by_content.push_back({"content", {{first, 2}}, std::nullopt});
  }
  return changed;
}

void LinkedMachines::local(std::size_t index, LocalEvent event) {
  Node& node = nodes_[index];
  if (node.coordinator) {
    perform(index, node.coordinator->on_local(now_, std::move(event)));
  } else if (node.member) {
    perform(index, node.member->on_local(now_, std::move(event)));
  }
}

/// Every fifth attempt is taken in two calls.
void LinkedMachines::ask(std::size_t index) {
  Node& node = nodes_[index];
  if (!node.begun || node.step != Step::Idle || !node.whole) {
    return;
  }
  node.step = Step::Asked;
  node.waits = node.word;
  for (auto before = verdicts_.lower_bound(node.word >> 32 << 32); before != verdicts_.lower_bound(node.word);
       ++before) {
    if (travels_ && before->second == Verdict::Failed) {
      fail("an attempt begins on connections that another one has failed on");
    }
  }
  PeerAsk ask;
  ask.word = node.word;
  ask.terms.kind = node.measured ? Ask::Kind::Clip : node.word % 5 == 0 ? Ask::Kind::NormOnly : Ask::Kind::Finish;
  ask.terms.deadline = now_ + std::chrono::hours(1);
  ask.policy_digest = std::to_string(node.policies);
  if (ask.terms.kind != Ask::Kind::Clip) {
    ask.sites.emplace_back();
    asked_[node.word].insert(index);
  }
  local(index, LocalsAsked{std::move(ask)});
}

void LinkedMachines::overdue(std::size_t index) {
  const Node& node = nodes_[index];
  if (node.begun && node.step != Step::Idle) {
    local(index, LocalsOverdue{{node.word, one_in(2), 1, 1.0}});
  }
}

/// The ranks are told, or found in the record, what came of an attempt.
void LinkedMachines::answer(std::size_t index, std::uint64_t word, Verdict verdict) {
  Node& node = nodes_[index];
  node.waits = node.waits == word ? 0 : node.waits;
  node.step = Step::Idle;
  if (verdict == Verdict::Unknown) {
    ++unknown_;
    if (!record_of_coordinator_lost_) {
      fail("nobody can know, though the record of the coordinator is there");
    }
    return;
  }
  const auto [told, fresh] = verdicts_.emplace(word, verdict);
  if (told->second != verdict) {
    fail(fmt::format("word {:x} has two verdicts", word));
  }
  if (verdict == Verdict::Failed) {
    return;
  }
  if (asked_[word].size() != nodes_.size() || voted_[word].size() != nodes_.size() || !stored_.contains(word)) {
    fail(fmt::format("word {:x} is done without every contribution, every vote or the coordinator's record", word));
  }
  if (++answered_[word] == nodes_.size()) {
    ++done_by_all_;
  }
}

std::string LinkedMachines::state() const {
  std::string text;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const MemberMachine* member = node.coordinator ? &node.coordinator->member() : node.member.get();
    text += fmt::format(
        "node {}: {}, {} of 2 ranks, word {:x}, waits {:x}, verdict due {:x}, '{}'; ",
        i,
        member == nullptr ? "down"
                          : fmt::format("state {}, {}", static_cast<int>(member->state()), member->waits_for()),
        node.whole ? 2 : 1,
        node.word,
        node.waits,
        node.verdict,
        node.why
    );
  }
  return nodes_[0].coordinator ? text + "coordinator: " + nodes_[0].coordinator->coordinator().waits_for() : text;
}

}  // namespace gradsync::engine
