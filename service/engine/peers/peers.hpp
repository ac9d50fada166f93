#pragma once
// The port between one job of this daemon and the other nodes of the job. Thread: io.
//
// The job says what its own ranks have done (`LocalEvent`); what follows for it comes back as `PeerEvent`s, at once
// where nobody else has to be asked, else later through `Job::on_peer_event`. The job performs them in order and
// decides nothing about other nodes. On a node that is alone `AlonePeers` answers everything at once, so that there is
// one way through the machines, and a step on one node costs one virtual call more.
//
// Invariants: the port never calls the job. Every `Voted` is followed by exactly one verdict for its word, also across
// ends of epochs and links; so is every doubt of the daemon before this one. An attempt without a vote fails by
// `AttemptRefused` or with its epoch, and gets no verdict. Nothing of an epoch comes before its `PrepareEpoch`, or
// after its `EpochEnded` or `EpochRefused`, but for connections: these are made beside the machines, and the job drops
// those of another epoch. Nothing of a new epoch comes while a vote or a doubt has no verdict.

#include "device/lane.hpp"
#include "engine/peers/peer_message.hpp"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

struct Comparison;

// ---- what the job tells

/// Ranks of this node are attached; with `declared`, all of them have declared and none was refused. Ends an epoch that
/// stands.
struct LocalsChanged {
  std::vector<std::int64_t> ranks;
  /// What ranks have said of the record of the daemon before this one; what this daemon has stored itself is not asked
  /// for. A doubt gets its verdict whether or not the other ranks have declared.
  RecordWords words;
  std::optional<NodeDeclared> declared;
  std::vector<std::shared_ptr<const plan::RankDeclaration>> contents = {};  ///< those of `by_content`
  /// The number that ranks were told of the next epoch, which has no lower one; 0: none. It rises without the other
  /// nodes where a rank is lost before its epoch has begun.
  std::uint64_t epoch = 0;
};

/// The epoch cannot form or go on here: a rank was lost, the plan is refused, the lane cannot load it. What was
/// declared counts no more: `LocalsChanged` follows.
struct LocalsLeft {
  Error error;
};

/// The lane has the plan of this epoch, and policies are at the state with this digest. Again after `PoliciesGiven`.
struct LocalsReady {
  std::uint64_t epoch = 0;
  std::string plan_digest;
  std::string policy_digest;
  bool policies_anew = false;  ///< nothing of an earlier step was found here
  std::shared_ptr<const plan::Plan> plan = {};
  std::shared_ptr<const Comparison> comparison = {};              ///< which parts of it are on several nodes
  std::optional<device::LoadedCommunicators> communicators = {};  ///< where its sums travel by them
};

/// What `PoliciesWanted` asks for.
struct LocalPolicies {
  std::uint64_t epoch = 0;
  std::string state;
};

/// What travels in this epoch needs connections to these nodes, ascending. `LinksReady` or `LinksFailed` follows,
/// unless the epoch ends. Never on a node that is alone.
struct LinksWanted {
  std::uint64_t epoch = 0;
  std::vector<NodeNumber> nodes;
};

struct LocalsConnected {
  std::uint64_t epoch = 0;
};

/// Every local rank asked for the same, and the lane has measured. Never on a node that is alone.
struct LocalsAsked {
  PeerAsk ask;
};

struct LocalRows {
  PeerRows rows;
};

/// Everything is prepared. On several nodes texts are kept and `voted` is stored. Told by `Peers::vote`.
struct Voted {
  std::uint64_t word = 0;
  std::string result_digest;
  /// When the time of the first rank is over, where a pause has moved it since it asked. A doubt ends then at the
  /// latest.
  std::optional<TimePoint> deadline = {};
};

/// The attempt fails before its vote: a row that cannot be right, ranks of this node that disagree, the lane.
struct LocalsFailed {
  std::uint64_t word = 0;
  Error error;
};

/// The deadline of a local rank, or half of it, while no local rank is missing.
struct LocalsOverdue {
  PeerOverdue overdue;
};

struct LocalsMissing {
  PeerMissing missing;
};

struct LocalsPaused {
  std::vector<std::int64_t> ranks;
};

using LocalEvent = std::variant<
    LocalsChanged,
    LocalsLeft,
    LocalsReady,
    LocalPolicies,
    LinksWanted,
    LocalsConnected,
    LocalsAsked,
    LocalRows,
    Voted,
    LocalsFailed,
    LocalsOverdue,
    LocalsMissing,
    LocalsPaused>;

// ---- what follows for the job

/// Plan from these declarations, one per rank of the job; `LocalsReady` or `LocalsLeft` follows. No attempt of this
/// node is in doubt then.
struct PrepareEpoch {
  std::uint64_t epoch = 0;
  SharedList<std::shared_ptr<const plan::RankDeclaration>> by_rank;  ///< without fingerprints of weights
  SharedList<std::shared_ptr<const WeightFingerprints>> weights;     ///< by rank; null: they are not compared
  std::vector<NodeNumber> node_of_rank;
  std::vector<std::string> node_names = {};   ///< by NodeNumber
  std::vector<SiteNumber> site_of_rank = {};  ///< empty: each node is one
};

/// `LocalPolicies` follows.
struct PoliciesWanted {
  std::uint64_t epoch = 0;
};

/// Go on from this state of another node; `LocalsReady` follows.
struct PoliciesGiven {
  std::uint64_t epoch = 0;
  std::string state;
};

/// Build what carries gradients between nodes, where any travel. `LocalsConnected` follows.
struct ConnectEpoch {
  std::uint64_t epoch = 0;
  std::vector<device::CommunicatorId> communicators = {};  ///< one for each that was offered
};

/// Two connections to each node that was asked for. It may come when the epoch is over, and is closed then.
struct LinksReady {
  std::uint64_t epoch = 0;
  std::vector<device::NodeConnection> connections;
};

/// One of them cannot be made. `error` names node and address.
struct LinksFailed {
  std::uint64_t epoch = 0;
  Error error;
};

/// Steps may be launched.
struct BeginEpoch {
  std::uint64_t epoch = 0;
};

/// What was not voted for has failed; what was is in doubt. `error` names rank or node.
struct EpochEnded {
  Error error;
  bool declared_elsewhere = false;  ///< a rank declared anew, so all have to; else what was declared counts on
};

/// The epoch does not form, for a reason that ranks which wait have to hear; they declare again. Comes in place of
/// `EpochEnded`, or where no epoch stands.
struct EpochRefused {
  Error error;
};

struct WantRows {
  PeerCompare compare;
};

/// Decide by these sums; `Voted` follows.
struct SumsKnown {
  PeerDecision decision;
};

/// The attempt, which this node has not voted for, fails on all nodes; the epoch goes on with the next one.
struct AttemptRefused {
  std::uint64_t word = 0;
  Error error;
};

/// What came of an attempt that this node voted for, or that ranks are in doubt about.
struct VerdictReached {
  std::uint64_t word = 0;
  Verdict verdict = Verdict::Done;
  std::optional<Error> error = {};  ///< why, unless it is done
};

/// Say which local ranks the attempt waits for.
struct WhoIsMissing {
  std::uint64_t word = 0;
};

/// Another node says that half of its ranks' time is over.
struct PeersHalfTime {
  std::string waits_for;
};

/// Whether a paused rank of another node is waited for.
struct PeersPaused {
  bool paused = false;
};

using PeerEvent = std::variant<
    PrepareEpoch,
    PoliciesWanted,
    PoliciesGiven,
    ConnectEpoch,
    LinksReady,
    LinksFailed,
    BeginEpoch,
    EpochEnded,
    EpochRefused,
    WantRows,
    SumsKnown,
    AttemptRefused,
    VerdictReached,
    WhoIsMissing,
    PeersHalfTime,
    PeersPaused>;
using PeerEvents = boost::container::small_vector<PeerEvent, 1>;

class Peers {
 public:
  virtual ~Peers() = default;
  [[nodiscard]] virtual PeerEvents tell(LocalEvent event) = 0;

  /// Tells `Voted`, which every step does. True: the attempt is done, and no `VerdictReached` follows. Whatever else
  /// follows comes later.
  [[nodiscard]] virtual bool vote(const Voted& voted) = 0;

  /// Nobody else takes part: the lane decides, and no cells are asked of it.
  [[nodiscard]] virtual bool alone() const = 0;

  /// The name of this node, for errors that ranks of all nodes may read; empty where there is one node.
  [[nodiscard]] virtual std::string node() const { return {}; }

  /// What an epoch lacks beyond this node, for people; empty: nothing, or nobody knows.
  [[nodiscard]] virtual std::string waits_for() const = 0;
};

}  // namespace gradsync::engine
