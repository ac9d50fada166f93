#pragma once
// A member and a coordinator that were led into one of their states, and declarations that are there or not.

#include "unit/engine/peers/peer_words.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

/// Every content but "absent" is here; "absent" comes with one page, and "false" is not what its hash says.
class SomeDeclarations final : public DeclarationsByHash {
 public:
  [[nodiscard]] std::shared_ptr<const plan::RankDeclaration> find(const ContentHash& hash) const override {
    return hash == "absent" && !came_ ? nullptr : one_;
  }

  [[nodiscard]] std::vector<PeerDeclaration> pages_of(const ContentHash& hash) const override {
    std::vector<PeerDeclaration> pages(1);
    pages.front().hash = hash;
    return pages;
  }

  [[nodiscard]] std::optional<Error> take(PeerDeclaration page) override {
    if (page.hash == "false") {
      return make_error(ErrorCode::InvalidDeclaration, "what came has another hash");
    }
    came_ = came_ || page.hash == "absent";
    return std::nullopt;
  }

 private:
  bool came_ = false;
  std::shared_ptr<const plan::RankDeclaration> one_ = std::make_shared<plan::RankDeclaration>();
};

inline const TimePoint kNow{std::chrono::seconds(1000)};
inline constexpr std::uint64_t kEpoch = 7;
inline constexpr std::uint64_t kWord = (kEpoch << 32) + 1;

inline NodeDeclared declared_of(std::int64_t rank, const ContentHash& hash = "content") {
  NodeDeclared declared;
  declared.by_content.push_back({hash, {{rank, 1}}, std::nullopt});
  return declared;
}

inline PeerAsk ask_of(std::uint64_t word, Ask::Kind kind = Ask::Kind::Finish) {
  PeerAsk ask;
  ask.word = word;
  ask.terms.kind = kind;
  ask.terms.deadline = kNow + std::chrono::seconds(60);
  ask.policy_digest = "policies";
  if (kind == Ask::Kind::Finish || kind == Ask::Kind::NormOnly) {
    ask.sites.emplace_back();
  }
  return ask;
}

inline PeerDecision decision_of(std::uint64_t word) {
  PeerDecision decision;
  decision.word = word;
  decision.cells.emplace();
  return decision;
}

/// The roster has two nodes with a rank each.
inline PeerPrepare prepare_of(std::uint64_t epoch, const ContentHash& other = "content") {
  PeerPrepare prepare;
  prepare.epoch = epoch;
  prepare.roster.own().push_back({"n0", "", "a", declared_of(0, other).by_content});
  prepare.roster.own().push_back({"n1", "10.0.0.1", "b", declared_of(1).by_content});
  return prepare;
}

/// Node 1, with rank 1, of a job of two ranks.
struct LedMember {
  using State = MemberMachine::State;
  using Phase = MemberMachine::Phase;

  static MemberMachine::Options options() {
    MemberMachine::Options options;
    options.identity.job = {0, "job"};
    options.identity.world_size = 2;
    options.identity.node = options.identity.node_id = "n1";
    options.identity.incarnation = "b";
    options.coordinator = "n0";
    options.version = "1";
    return options;
  }

  explicit LedMember(State state = State::Away, Phase phase = Phase::Idle) {
    local(LocalsChanged{{1}, {}, declared_of(1)});
    (void)machine.on_link(kNow, "10.0.0.1");
    if (state >= State::Joined) {
      told_by(PeerHello{3, "a", "1", kPeerProtocol, "n0", "10.0.0.1"});
    }
    if (state >= State::Preparing) {
      told_by(prepare_of(kEpoch));
    }
    if (state >= State::Ready) {
      local(LocalsReady{kEpoch, "plan", "policies", false});
    }
    if (state >= State::Connected) {
      told_by(PeerConnect{kEpoch});
    }
    if (state >= State::Begun) {
      local(LocalsConnected{kEpoch});
      told_by(PeerBegin{kEpoch});
    }
    lead(phase);
  }

  void lead(Phase phase) {
    if (phase >= Phase::Asked) {
      local(LocalsAsked{ask_of(kWord)});
    }
    if (phase >= Phase::Decided) {
      told_by(decision_of(kWord));
    }
    if (phase >= Phase::Voted) {
      local(Voted{kWord, "result", std::nullopt});
    }
    if (phase == Phase::Doubt) {
      told_by(PeerEnd{kEpoch, 0, make_error(ErrorCode::NodeLost, "n2 is lost")});
    }
  }

  MemberActions local(LocalEvent event) { return machine.on_local(kNow, std::move(event)); }

  MemberActions told_by(ToMember message) { return machine.on_message(kNow, std::move(message)); }

  SomeDeclarations declarations;
  MemberMachine machine{options(), declarations};
};

/// The coordinator of a job of three nodes with a rank each: its own, and those of links 1 and 2.
struct LedCoordinator {
  using State = CoordinatorMachine::State;
  using Phase = CoordinatorMachine::Phase;

  static PeerJoin join_of(NodeNumber node, std::uint64_t link, std::uint32_t count = 1) {
    PeerJoin join;
    join.challenge = link;
    join.count = count;
    join.job = {0, "job"};
    join.world_size = 3;
    join.node = join.node_id = "n" + std::to_string(node);
    join.incarnation = "1";
    join.address = node == 0 ? "" : "10.0.0." + std::to_string(node);
    join.epoch = kEpoch;
    join.ranks = {static_cast<std::int64_t>(node)};
    join.words.known = true;
    join.declared = declared_of(static_cast<std::int64_t>(node));
    return join;
  }

  explicit LedCoordinator(State state = State::Gathering, Phase phase = Phase::Asking) {
    if (state == State::Gathering) {
      own(join_of(0, 0));
      join(1, 1);
      return;
    }
    own(join_of(0, 0));
    join(1, 1);
    join(2, 2);
    if (state >= State::Connecting) {
      all(PeerReady{kEpoch, "plan", "policies", false});
    }
    if (state >= State::Begun) {
      all(PeerConnected{kEpoch});
    }
    if (phase == Phase::Voting) {
      all(ask_of(kWord));
    }
  }

  CoordinatorActions own(ToCoordinator message) { return machine.on_own(now, std::move(message)); }

  CoordinatorActions by(LinkNumber link, ToCoordinator message) {
    return link == 0 ? own(std::move(message)) : machine.on_message(now, link, std::move(message));
  }

  /// From node 0, 1 and 2; what the last one leads to.
  CoordinatorActions all(const ToCoordinator& message) {
    (void)by(0, message);
    (void)by(1, message);
    return by(2, message);
  }

  CoordinatorActions join(NodeNumber node, LinkNumber link) {
    (void)machine.on_link(now, link, "10.0.0." + std::to_string(node));
    return by(link, join_of(node, link));
  }

  TimePoint now = kNow;
  SomeDeclarations declarations;
  CoordinatorMachine machine{{{0, "job"}, "a", "1", "n0", 1}, declarations};
};

}  // namespace gradsync::engine
