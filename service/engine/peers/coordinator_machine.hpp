#pragma once
// The coordinator's side of one job, as a sans-I/O machine: messages and times in, messages out; no link, no clock and
// no reply of its own. It runs in the daemon of rank 0's node, whose member has no link and number 0;
// coordinator_node.hpp has both. docs/peer-protocol.md has the table of states and events; tests/model tries every
// order of them.
//
//   Gathering ──all nodes joined, all ranks declared──▶ Preparing ──all ready──▶ Connecting ──all connected──▶ Begun
//       ▲                                                  │                        │                           │
//       └──────────────── a link ended, a node joined anew or left, the plans differ ───────────────────────────┘
//
// Invariants: what a node sends counts once and only over its newest link, in the epoch and attempt that stand, and is
// checked against the plan before it is read; BEGIN
// goes out when every node of the roster is connected in this epoch; an attempt is decided when every node contributed,
// and done when every node voted for one and the same result; `StoreDone` is performed before `done` is sent to any
// node; an attempt that is done is never aborted; one that fails where gradients travel ends its epoch; an epoch that
// ended makes every node join anew behind everything that it sent before; a node in doubt is ruled on as soon as the
// record of this node is known.

#include "base/clock.hpp"
#include "engine/peers/coordinator_roll.hpp"
#include "engine/peers/declarations/declarations_by_hash.hpp"
#include "engine/peers/peer_message.hpp"
#include "engine/peers/sums/comparison.hpp"
#include "engine/peers/sums/copies_of_nodes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// Send to the node with this link.
struct SendToMember {
  LinkNumber link = 0;
  ToMember message;
};

/// The same for the node of the coordinator: `MemberMachine::on_message`. What that member says goes to `on_own` when
/// the actions at hand are performed, or PREPARE would overtake a ruling. `CoordinatorNode` does it so.
struct TellOwnMember {
  ToMember message;
};

/// Nothing that this link still brings is read any more.
struct CloseLink {
  LinkNumber link = 0;
};

/// The commit point: the record of this node says `done` before the next action is performed.
struct StoreDone {
  std::uint64_t word = 0;
};

/// Half of a rank's time is over, and these are missing: an alert of this daemon, `PeersHalfTime` for its job.
struct WarnHalfTime {
  std::string waits_for;
};

using CoordinatorAction = std::variant<SendToMember, TellOwnMember, CloseLink, StoreDone, WarnHalfTime>;
using CoordinatorActions = std::vector<CoordinatorAction>;

class CoordinatorMachine {
 public:
  enum class State : std::uint8_t { Gathering, Preparing, Connecting, Begun };
  /// How far the attempt is, in Begun.
  enum class Phase : std::uint8_t { Asking, Comparing, Voting };

  static constexpr Milliseconds kBeat{1'000};
  static constexpr Milliseconds kBeatsTogether{250};  ///< a beat that is due so soon goes out with one that is due
  static constexpr Milliseconds kDead{5'000};
  static constexpr Milliseconds kWho{1'000};          ///< a node that is asked who is missing has this long to answer
  static constexpr Milliseconds kJoinWithin{10'000};  ///< a link over which nothing joins is closed
  static constexpr Milliseconds kReady{120'000};      ///< for READY, and for CONNECTED
  static constexpr Milliseconds kBuilt{150'000};  ///< for CONNECTED where communicators are built, whose lanes say why
  static constexpr Milliseconds kHolder{6'000};   ///< a silent holder of a rank has this long until it counts as live
  static constexpr std::size_t kMostBoxes = 64;   ///< whose rows are asked for at a time
  /// Characters of fingerprints that a roster may have: the message has 16 MiB, and each is quoted.
  static constexpr std::size_t kMostFingerprints = 14u << 20;

  struct Options {
    JobKey job;
    std::string incarnation;
    std::string version;
    std::string node;
    std::uint64_t first_epoch = 1;  ///< where no node has been in any
    std::size_t most_nodes = 256;   ///< this bounds memory; docs/operate/operations-nodes.md: where a star ends
  };

  /// `declarations` is that of the daemon, and outlives the machine.
  CoordinatorMachine(Options options, DeclarationsByHash& declarations);

  // links
  /// `seen_address`: the other end, as the kernel says. The hello goes out.
  [[nodiscard]] CoordinatorActions on_link(TimePoint now, LinkNumber link, std::string seen_address);
  [[nodiscard]] CoordinatorActions on_message(TimePoint now, LinkNumber link, ToCoordinator message);
  [[nodiscard]] CoordinatorActions on_link_ended(TimePoint now, LinkNumber link, const std::string& why);

  // the member of this node
  [[nodiscard]] CoordinatorActions on_own(TimePoint now, ToCoordinator message);

  /// What the planner of this node made of the epoch, and which boxes are on several nodes. Comes before its READY.
  void on_comparison(
      std::uint64_t epoch, std::shared_ptr<const plan::Plan> plan, std::shared_ptr<const Comparison> comparison
  );

  [[nodiscard]] CoordinatorActions on_time(TimePoint now);

  /// No later than anything that is due; `on_time` may find nothing to do then, and give the next.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return wake_; }

  [[nodiscard]] State state() const { return state_; }

  /// In words: which nodes are missing.
  [[nodiscard]] std::string waits_for() const;

  /// Those that were accepted and have not ended.
  [[nodiscard]] std::vector<LinkNumber> links() const;

  /// Whether the roll is that of the members, for tests: it takes as long as all JOINs.
  [[nodiscard]] bool counts_right() const;

 private:
  /// A connection that was accepted and has not ended.
  struct Link {
    std::string seen_address;
    std::string node_id = {};  ///< of the JOIN that was taken over it; empty: none was
    TimePoint since;
    TimePoint heard;
    TimePoint sent;
  };

  /// A JOIN for a rank that a silent node holds.
  struct Deferred {
    PeerJoin join;
    TimePoint until;
  };

  /// Everything that ends with an epoch. It is replaced as a whole.
  struct Course {
    std::vector<std::string> roster = {};  ///< node_id by NodeNumber
    std::map<NodeNumber, PeerReady> ready = {};
    std::set<NodeNumber> connected = {};
    std::optional<NodeNumber> policies_of = {};          ///< the node that was asked for its policies' state
    std::map<NodeNumber, std::string> policies_to = {};  ///< those that get it, and the digests that they had
    std::optional<TimePoint> late = {};                  ///< READY or CONNECTED is due
    std::shared_ptr<const plan::Plan> plan = {};
    std::shared_ptr<const Comparison> comparison = {};
    std::shared_ptr<const RosterByRank> by_rank = {};  ///< null: the roster is not right, and no epoch begins
    bool sums_differ = false;
  };

  /// Everything that ends with an attempt. It is replaced as a whole.
  struct Attempt {
    Phase phase = Phase::Asking;
    bool measured = false;  ///< norm.compute had its decision: clip.apply follows
    std::map<NodeNumber, PeerAsk> asks = {};
    std::map<SiteNumber, PeerRows> rows = {};      ///< of this round
    std::vector<std::uint32_t> classes = {};       ///< whose boxes are compared
    std::vector<Comparison::Box> boxes = {};       ///< whose rows this round asks for, ascending; none: for hashes
    std::vector<Comparison::Box> later = {};       ///< whose rows the next rounds ask for
    std::set<SiteNumber> compared = {};            ///< the sites that this round asks
    JudgedCopies copies = {};                      ///< of the rounds before
    std::map<NodeNumber, std::string> votes = {};  ///< result digests
    std::optional<PeerOverdue> overdue = {};
    std::map<NodeNumber, PeerMissing> missing = {};
    std::optional<TimePoint> who_until = {};
  };

  using Actions = CoordinatorActions;
  using Member = CoordinatorMember;
  using Members = std::map<std::string, Member>;

  // links and times (coordinator_links.cpp)
  void send(TimePoint now, const Member& member, ToMember message, Actions& actions);
  void send_over(TimePoint now, LinkNumber link, ToMember message, Actions& actions);
  void send_to_all(TimePoint now, const ToMember& message, Actions& actions);
  void close(LinkNumber link, Actions& actions);
  void lose(TimePoint now, LinkNumber link, const std::string& why, Actions& actions);
  void refuse(TimePoint now, LinkNumber link, const Error& error, Actions& actions);
  void check_links(TimePoint now, Actions& actions);

  void wake_at(TimePoint at) { wake_ = std::min(wake_.value_or(at), at); }

  [[nodiscard]] std::optional<TimePoint> earliest() const;
  [[nodiscard]] Members::iterator member_of(LinkNumber link);

  /// The only way to change what the roll counts of a member.
  template <typename How>
  void change(Member& member, How how) {
    roll_.remove(member);
    how();
    roll_.add(member);
  }

  // which nodes may take part (coordinator_joins.cpp)
  void on_join(TimePoint now, LinkNumber link, PeerJoin join, Actions& actions);
  void on_own_join(TimePoint now, PeerJoin join, Actions& actions);
  void take_join(TimePoint now, LinkNumber link, PeerJoin join, Actions& actions);
  void retry_deferred(TimePoint now, Actions& actions);
  [[nodiscard]] std::optional<Error> refusal_of(LinkNumber link, const PeerJoin& join) const;
  [[nodiscard]] std::optional<Error> difference_of(const PeerJoin& join, const Member& other) const;
  [[nodiscard]] const Member* holder_of(const PeerJoin& join) const;
  [[nodiscard]] std::vector<const Member*> compared_with(const PeerJoin& join) const;
  void forget_dead();
  void refuse_others(TimePoint now, const PeerJoin& own, Actions& actions);
  void supersede(TimePoint now, const PeerJoin& join, Actions& actions);
  void want_unknown(TimePoint now, const Member& member, Actions& actions);

  // how an epoch forms (coordinator_form.cpp)
  void rule(TimePoint now, Actions& actions);
  void try_prepare(TimePoint now, Actions& actions);
  [[nodiscard]] bool all_joined() const;
  [[nodiscard]] std::optional<Error> settings_difference() const;
  void prepare(TimePoint now, Actions& actions);
  [[nodiscard]] PeerPrepare prepare_message() const;
  [[nodiscard]] std::string waits_for_joins() const;

  // how it begins and ends (coordinator_epoch.cpp)
  void dispatch(TimePoint now, Member& member, ToCoordinator message, Actions& actions);
  void dispatch_forming(TimePoint now, NodeNumber number, ToCoordinator message, Actions& actions);
  void on_ready(TimePoint now, NodeNumber number, PeerReady ready, Actions& actions);
  void all_ready(TimePoint now, Actions& actions);
  void settle_policies(TimePoint now, NodeNumber source, Actions& actions);
  void connect(TimePoint now, Actions& actions);
  void on_policies(TimePoint now, NodeNumber number, PeerPolicies page, Actions& actions);
  void on_connected(TimePoint now, NodeNumber number, Actions& actions);
  void end_epoch(TimePoint now, Error error, Actions& actions);
  void tell_pauses(TimePoint now, Actions& actions);

  // one attempt (coordinator_attempt.cpp)
  void dispatch_attempt(TimePoint now, NodeNumber number, ToCoordinator message, Actions& actions);
  void on_ask(TimePoint now, NodeNumber number, PeerAsk ask, Actions& actions);
  [[nodiscard]] std::optional<Error> ask_difference(NodeNumber number, const PeerAsk& ask) const;
  /// What the site measured; only where all nodes have asked for a norm.
  [[nodiscard]] const SiteSums& sums_of(SiteNumber number) const;
  void decide_attempt(TimePoint now, Actions& actions);
  void on_vote(TimePoint now, NodeNumber number, const PeerVote& vote, Actions& actions);
  void commit(TimePoint now, Actions& actions);
  void abort(TimePoint now, Error error, Actions& actions);

  // copies on several nodes (coordinator_compare.cpp)
  void all_asked(TimePoint now, Actions& actions);
  void compare(TimePoint now, PeerCompare wanted, Actions& actions);
  void on_rows(TimePoint now, NodeNumber from, PeerRows rows, Actions& actions);
  [[nodiscard]] bool fits(SiteNumber number, const PeerRows& rows) const;
  void find_boxes();
  void next_boxes(TimePoint now, Actions& actions);
  void judge_round();
  [[nodiscard]] std::set<SiteNumber> sites_of(const PeerCompare& wanted) const;

  // when time is over (coordinator_overdue.cpp)
  void on_overdue(TimePoint now, const PeerOverdue& overdue, Actions& actions);
  void on_missing(TimePoint now, NodeNumber number, PeerMissing missing, Actions& actions);
  void who_is_over(TimePoint now, Actions& actions);
  [[nodiscard]] std::vector<NodeNumber> waited_for() const;
  /// Those of all its sites that are asked in this round.
  [[nodiscard]] bool has_said_rows(NodeNumber number) const;
  [[nodiscard]] Error timed_out() const;
  [[nodiscard]] bool ranks_are_missing(NodeNumber number) const;  ///< as the node says
  [[nodiscard]] std::string words_of_missing() const;

  [[nodiscard]] std::uint64_t word() const { return attempt_word({epoch_, attempt_}); }

  [[nodiscard]] Member& node(NodeNumber number) { return members_.at(course_.roster[number]); }

  [[nodiscard]] const Member& node(NodeNumber number) const { return members_.at(course_.roster[number]); }

  Options options_;
  DeclarationsByHash& declarations_;
  State state_ = State::Gathering;
  std::map<LinkNumber, Link> links_;
  std::map<LinkNumber, Deferred> deferred_;
  Members members_;          ///< by node_id
  CoordinatorRoll roll_;     ///< of them
  RecordWords own_words_;    ///< of the record of this node, as far as it is known; without a doubt
  std::uint64_t epoch_ = 0;  ///< the one that stands, or stood last
  std::uint64_t attempt_ = 0;
  Course course_;
  Attempt under_way_;
  std::optional<TimePoint> wake_;
  bool pausing_ = false;  ///< some node may have paused ranks, or have been told of some
};

}  // namespace gradsync::engine
