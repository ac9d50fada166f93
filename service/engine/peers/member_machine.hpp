#pragma once
// A node's side of one job, as a sans-I/O machine between the job of this daemon and the coordinator: what the `Peers`
// port does on several nodes. The daemon of rank 0 has one too, beside its coordinator (coordinator_node.hpp).
//
//   Away ──link, hello──▶ Joined ──PREPARE──▶ Preparing ──READY──▶ Ready ──CONNECT──▶ Connected ──BEGIN──▶ Begun
//     ▲  ▲                   ▲ ◀─────────────────── END, or a rank of this node was lost ─────────────────────┘
//     │  └── link ended: also from here ──┘
//
// Invariants: it has one link at most, and reads no other; an attempt that it voted for is in doubt from the end of its
// epoch until a ruling, and nothing of this node calls it failed meanwhile; every JOIN says what the record says at
// that moment, whether or not all ranks have declared, and nothing of an earlier epoch is obeyed after it; a rank's
// wait is bounded by its own deadline, which ends a doubt with `step_in_doubt`. A doubt of the daemon before this one
// has no deadline here: the calls of the ranks that wait for it have theirs.

#include "base/clock.hpp"
#include "engine/peers/declarations/declarations_by_hash.hpp"
#include "engine/peers/peer_message.hpp"
#include "engine/peers/peers.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

struct SendToCoordinator {
  ToCoordinator message;
};

/// Connect to the coordinator; `on_link` or `on_link_ended` follows. Names are resolved off the io thread, anew each
/// time.
struct OpenLink {
  std::string address;  ///< HOST or HOST:PORT
};

struct DropLink {};

/// The other end of two data connections.
struct DataEnd {
  NodeNumber node = 0;
  std::string name;
  std::string address;  ///< of the peer listener there: HOST:PORT, or for the coordinator what `OpenLink` has
  std::string incarnation;
};

/// Make data connections to these nodes, ascending; the higher number of two dials. `LinksReady` or `LinksFailed`
/// follows for the job, which closes what comes too late.
struct OpenDataLinks {
  std::uint64_t epoch = 0;
  NodeNumber own = 0;
  std::string own_incarnation;
  std::vector<DataEnd> ends;
};

/// For the job, in order.
struct TellJob {
  PeerEvent event;
};

using MemberAction = std::variant<SendToCoordinator, OpenLink, DropLink, OpenDataLinks, TellJob>;
using MemberActions = std::vector<MemberAction>;

class MemberMachine {
 public:
  enum class State : std::uint8_t { Away, Joined, Preparing, Ready, Connected, Begun };
  enum class Phase : std::uint8_t { Idle, Asked, Decided, Voted, Doubt };

  static constexpr Milliseconds kBeat{1'000};
  static constexpr Milliseconds kDead{5'000};
  static constexpr Milliseconds kOverdue{2'000};  ///< the coordinator has this long to answer `overdue`
  /// A connection that broke says little of why: what its other end says of the attempt is waited for so long.
  static constexpr Milliseconds kCause{500};
  static constexpr std::size_t kPolicyPage = 2u << 20;  ///< bytes of a page of policies, which are twice as many digits
  static constexpr std::size_t kMostPolicies = 60u << 20;  ///< bytes of all pages together
  static constexpr Milliseconds kFirstRetry{50};
  static constexpr Milliseconds kLongestRetry{1'000};  ///< doubles up to it, times 0.5 to 1

  struct Options {
    PeerJoin identity;        ///< all but challenge, count, epoch, ranks, words and what was declared
    std::string coordinator;  ///< empty: it is in this daemon
    std::string version;
    std::uint64_t retry_seed = 0;
  };

  /// `declarations` is that of the daemon, and outlives the machine.
  MemberMachine(Options options, DeclarationsByHash& declarations);

  // the job of this daemon
  [[nodiscard]] MemberActions on_local(TimePoint now, LocalEvent event);

  // the link
  [[nodiscard]] MemberActions on_link(TimePoint now, std::string local_address);
  [[nodiscard]] MemberActions on_message(TimePoint now, ToMember message);
  [[nodiscard]] MemberActions on_link_ended(TimePoint now, const std::string& why);

  [[nodiscard]] MemberActions on_time(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  [[nodiscard]] State state() const { return state_; }

  [[nodiscard]] Phase phase() const { return phase_; }

  /// The attempt that this node voted for and does not know the outcome of; 0: none.
  [[nodiscard]] std::uint64_t doubt() const { return phase_ == Phase::Doubt ? word_ : 0; }

  [[nodiscard]] std::string waits_for() const;

 private:
  enum class Connection : std::uint8_t { None, Opening, Open };

  /// That the attempt fails here, for a reason that another node may know better.
  struct HeldFailure {
    Error error;
    TimePoint until;
  };

  /// What the end of an epoch does to what the ranks of this node declared.
  enum class Declared : std::uint8_t { Counts, ToBeSaidAgain, Forgotten };

  using Actions = MemberActions;

  [[nodiscard]] bool own() const { return options_.coordinator.empty(); }

  [[nodiscard]] bool in_epoch() const { return state_ >= State::Preparing; }

  // the job (member_machine_local.cpp)
  void on_in_attempt(TimePoint now, LocalEvent event, Actions& actions);
  void on_changed(TimePoint now, LocalsChanged changed, Actions& actions);
  void take_words(const RecordWords& said);
  void on_left(TimePoint now, Error error, Actions& actions);
  void give_up(TimePoint now, Error error, Actions& actions);
  [[nodiscard]] Error of_this_node(Error error) const;
  void on_ready(TimePoint now, const LocalsReady& ready, Actions& actions);
  void on_policies(TimePoint now, const LocalPolicies& policies, Actions& actions);
  void on_links_wanted(const LinksWanted& wanted, Actions& actions);
  void on_failed(TimePoint now, LocalsFailed failed, Actions& actions);
  void on_asked(TimePoint now, PeerAsk ask, Actions& actions);
  void on_voted(TimePoint now, const Voted& voted, Actions& actions);

  // the link and the epoch (member_machine.cpp)
  void open(Actions& actions);
  void send(TimePoint now, ToCoordinator message, Actions& actions);
  void join(TimePoint now, Actions& actions);
  bool leave(Error error, Declared declared, Actions& actions);  ///< whether the job was told of it
  void leave_and_join(TimePoint now, Error error, Actions& actions);
  bool lose_link(TimePoint now, Error error, Actions& actions);  ///< likewise
  void drop_link(TimePoint now, const std::string& why, Actions& actions);
  [[nodiscard]] Declared after(const Error& error) const;
  [[nodiscard]] std::string coordinator_node_or_address() const;
  [[nodiscard]] Error in_doubt() const;
  void settle(Verdict verdict, std::optional<Error> error, Actions& actions);

  // what the coordinator says (member_machine_told.cpp)
  void on_hello(TimePoint now, const PeerHello& hello, Actions& actions);
  void on_refused(TimePoint now, const Error& error, Actions& actions);
  void on_ruling(std::uint64_t word, Verdict verdict, std::optional<Error> error, Actions& actions);
  void on_prepare(TimePoint now, PeerPrepare prepare, Actions& actions);
  void want_unknown(TimePoint now, const PeerPrepare& prepare, Actions& actions);
  void try_plan(Actions& actions);
  void on_end(TimePoint now, const PeerEnd& end, Actions& actions);
  void on_declaration(TimePoint now, PeerDeclaration page, Actions& actions);
  void on_policies_told(TimePoint now, PeerPolicies page, Actions& actions);
  void on_begin(const PeerBegin& begin, Actions& actions);
  void on_attempt_message(TimePoint now, ToMember message, Actions& actions);
  void on_decision(PeerDecision decision, Actions& actions);
  void on_done(TimePoint now, std::uint64_t word, Actions& actions);
  void on_pause(const PeerPause& pause, Actions& actions);
  void on_abort(const PeerAbort& abort, Actions& actions);

  Options options_;
  DeclarationsByHash& declarations_;
  State state_ = State::Away;
  Phase phase_ = Phase::Idle;
  Connection connection_ = Connection::None;
  std::string coordinator_node_;
  std::vector<std::int64_t> coordinator_ranks_;  ///< as the last roster has them
  std::uint64_t epoch_ = 0;                      ///< the one it is in, or the least that the next may have
  std::uint64_t word_ = 0;                       ///< the attempt under way, or in doubt
  Ask::Kind asked_ = Ask::Kind::Finish;
  RecordWords words_;        ///< but for a doubt, which `phase_` and `word_` are
  bool own_record_ = false;  ///< this daemon has stored more than the one before it, whose ranks tell the words
  std::optional<NodeDeclared> declared_;
  std::optional<PeerPrepare> prepare_;  ///< Preparing, while declarations are on their way
  SharedList<RosterNode> roster_;       ///< of the epoch that it is in
  NodeNumber number_ = 0;               ///< of this node in it
  bool planning_ = false;               ///< the job was told of the epoch
  std::vector<std::int64_t> local_paused_;
  bool paused_ = false;  ///< a rank of another node that is waited for
  std::string policy_pages_;
  std::uint32_t next_page_ = 0;
  std::optional<Error> ended_;             ///< why the last epoch ended
  std::optional<TimePoint> deadline_;      ///< of the rank that asked
  std::optional<TimePoint> answer_until_;  ///< after `overdue`
  std::optional<HeldFailure> held_;        ///< of the attempt under way
  TimePoint heard_;
  TimePoint sent_;
  std::optional<TimePoint> retry_at_;
  Milliseconds retry_{kFirstRetry};
  std::optional<Error> final_;  ///< why it was refused, where nothing that this machine can do will change it
};

}  // namespace gradsync::engine
