// How an epoch forms: rulings on what is in doubt, and PREPARE when every node has joined and declared.

#include "engine/peers/coordinator_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace gradsync::engine {

/// Also for nodes whose ranks have not all declared: what a record says does not change by that.
void CoordinatorMachine::rule(TimePoint now, Actions& actions) {
  std::vector<std::pair<std::uint64_t, Verdict>> verdicts;
  for (const auto& [doubt, nodes] : roll_.doubts()) {
    std::vector<RecordWords> words{own_words_};
    if (roll_.has_done(doubt)) {
      words.push_back({0, doubt, true});
    }
    if (const std::optional<Verdict> verdict = verdict_of(doubt, words, all_joined())) {
      verdicts.emplace_back(doubt, *verdict);
    }
  }
  for (const auto& [doubt, verdict] : verdicts) {
    for (const std::string& id : std::set(roll_.doubts().at(doubt))) {
      Member& member = members_.at(id);
      RecordWords& said = member.join.words;
      send(now, member, PeerRuling{doubt, verdict}, actions);
      change(member, [&] {
        said.done = verdict == Verdict::Done ? doubt : said.done;
        said.doubt = 0;
      });
      own_words_.done = member.own ? said.done : own_words_.done;
    }
  }
}

/// All ranks of the job are attached, and have declared.
bool CoordinatorMachine::all_joined() const {
  const auto own = members_.find(roll_.own());
  return own != members_.end() && own->second.declared() &&
         static_cast<std::int64_t>(roll_.declared_ranks()) == own->second.join.world_size;
}

void CoordinatorMachine::try_prepare(TimePoint now, Actions& actions) {
  if (state_ != State::Gathering || !all_joined()) {
    return;
  }
  for (const auto& [id, member] : members_) {
    if (!member.declared()) {
      continue;
    }
    for (const DeclaredRanks& declared : member.join.declared->by_content) {
      if (!declarations_.find(declared.hash)) {
        return;
      }
    }
  }
  prepare(now, actions);
}

void CoordinatorMachine::prepare(TimePoint now, Actions& actions) {
  std::vector<std::pair<std::int64_t, std::string>> order;
  std::uint64_t least = 0;
  for (const auto& [id, member] : members_) {
    least = member.joined ? std::max(least, member.join.epoch) : least;
  }
  epoch_ = least == 0 ? options_.first_epoch : least;
  for (auto& [id, member] : members_) {
    member.number.reset();
    member.told_paused = false;
    member.told = epoch_;
    if (member.declared()) {
      order.emplace_back(*std::ranges::min_element(member.join.ranks), id);
    }
  }
  std::ranges::sort(order);
  attempt_ = 0;
  course_ = {};
  under_way_ = {};
  state_ = State::Preparing;
  course_.late = now + kReady;
  wake_at(*course_.late);
  for (const auto& [rank, id] : order) {
    members_.at(id).number = static_cast<NodeNumber>(course_.roster.size());
    course_.roster.push_back(id);
  }
  PeerPrepare message = prepare_message();
  std::size_t characters = 0;
  for (const WeightFingerprints& list : message.weight_fingerprints) {
    for (const std::string& fingerprint : list) {
      characters += fingerprint.size() + 3;
    }
  }
  std::optional<Error> error = settings_difference();
  if (!error && characters > kMostFingerprints) {
    error = make_error(
        ErrorCode::LimitExceeded,
        fmt::format("fingerprints of weights have {} characters, and {} go to a node", characters, kMostFingerprints),
        "declare without fingerprints of weights"
    );
  }
  if (error) {
    message.weight_fingerprints.clear();
    for (RosterNode& each : message.roster.own()) {
      for (DeclaredRanks& declared : each.by_content) {
        declared.weights.reset();
      }
    }
  }
  message.by_rank = roster_by_rank(message.roster, node(0).join.world_size, message.weight_fingerprints.size());
  course_.by_rank = message.by_rank;
  send_to_all(now, message, actions);
  if (error) {
    end_epoch(now, std::move(*error), actions);  // which only nodes in the epoch hear
  }
}

/// Equal lists of fingerprints, as replicas have them, go out once.
PeerPrepare CoordinatorMachine::prepare_message() const {
  PeerPrepare prepare{epoch_, options_.incarnation, {}, {}, node(0).join.declared->settings};
  std::vector<RosterNode>& roster = prepare.roster.own();
  std::map<WeightFingerprints, std::uint32_t> places;
  for (NodeNumber number = 0; number < course_.roster.size(); ++number) {
    const PeerJoin& join = node(number).join;
    RosterNode& entry = roster.emplace_back(RosterNode{
        join.node,
        join.listen.empty() ? join.address : join.listen,
        join.incarnation,
        {},
        join.port,
        join.declared->devices});
    for (DeclaredRanks declared : join.declared->by_content) {
      if (declared.weights) {
        const WeightFingerprints& list = join.declared->weight_fingerprints[*declared.weights];
        const auto [place, fresh] = places.emplace(list, static_cast<std::uint32_t>(places.size()));
        declared.weights = place->second;
        if (fresh) {
          prepare.weight_fingerprints.push_back(list);
        }
      }
      entry.by_content.push_back(std::move(declared));
    }
  }
  return prepare;
}

namespace {

/// The first one that differs, with both values.
std::optional<std::tuple<const char*, std::string, std::string>> settings_that_differ(
    const PeerSettings& first, const PeerSettings& other
) {
  const auto number = [](auto value) { return std::to_string(value); };
  const auto transport = [](const PeerSettings& settings) {
    return settings.cpu_gradients.empty() ? std::string("sockets") : settings.cpu_gradients;
  };
  const std::tuple<const char*, std::string, std::string> pairs[] = {
      {"first_bucket_bytes", number(first.first_bucket_bytes), number(other.first_bucket_bytes)},
      {"bucket_bytes", number(first.bucket_bytes), number(other.bucket_bytes)},
      {"check_every", number(first.check_every), number(other.check_every)},
      {"encoded_bytes", number(first.encoded_bytes), number(other.encoded_bytes)},
      {"cpu_gradients", transport(first), transport(other)}};
  for (const auto& pair : pairs) {
    if (std::get<1>(pair) != std::get<2>(pair)) {
      return pair;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> CoordinatorMachine::settings_difference() const {
  for (NodeNumber number = 1; number < course_.roster.size(); ++number) {
    if (const auto found =
            settings_that_differ(node(0).join.declared->settings, node(number).join.declared->settings)) {
      const auto& [name, a, b] = *found;
      Error error = make_error(
          ErrorCode::PlanMismatch,
          fmt::format(
              "{} is {} on node '{}' and {} on node '{}'", name, a, node(0).join.node, b, node(number).join.node
          ),
          "all nodes of a job need equal settings"
      );
      error.node = node(number).join.node;
      return error;
    }
  }
  return std::nullopt;
}

std::string CoordinatorMachine::waits_for_joins() const {
  std::size_t ranks = 0;
  std::int64_t world = 0;
  std::string undeclared;
  for (const auto& [id, member] : members_) {
    world = member.own ? member.join.world_size : world;
    if (member.joined) {
      ranks += member.join.ranks.size();
    }
    if (member.joined && !member.join.declared) {
      undeclared += fmt::format(", node '{}' has not declared", member.join.node);
    }
  }
  return fmt::format("{} of {} ranks have joined{}", ranks, world, undeclared);
}

std::string CoordinatorMachine::waits_for() const {
  if (state_ == State::Gathering) {
    return waits_for_joins();
  }
  std::string text;
  for (NodeNumber number = 0; number < course_.roster.size(); ++number) {
    const bool there = state_ == State::Preparing    ? course_.ready.contains(number)
                       : state_ == State::Connecting ? course_.connected.contains(number)
                                                     : under_way_.asks.contains(number);
    if (!there) {
      text += fmt::format("{}node '{}'", text.empty() ? "" : ", ", node(number).join.node);
    }
  }
  return text.empty() ? text : text + (state_ == State::Begun ? " has not asked" : " is not ready");
}

}  // namespace gradsync::engine
