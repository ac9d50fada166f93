#pragma once
// What daemons of one job tell each other, as values. rpc/peer has their JSON, docs/peer-protocol.md their fields and
// bounds. All are notifications, in order on one link; none has an answer of its own.
//
// Fences: a link belongs to one incarnation at each end, and what comes over another link than the one that counts is
// not read. Whatever belongs to an epoch says which, and whatever belongs to an attempt says its word.

#include "base/error.hpp"
#include "base/shared_list.hpp"
#include "device/lane.hpp"
#include "device/stats/stats_plan.hpp"
#include "device/step_math.hpp"
#include "engine/peers/record_words.hpp"
#include "engine/peers/roster_by_rank.hpp"
#include "engine/step/ask.hpp"
#include "engine/types.hpp"
#include "plan/declaration.hpp"
#include "plan/mesh/mesh.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::engine {

inline constexpr std::int64_t kPeerProtocol = 1;
inline constexpr std::size_t kPeerTextBytes = 16u << 20;  ///< no message has a longer text
inline constexpr std::size_t kMostOffers = 80;            ///< of communicators, of all sites of a node
using NodeNumber = std::uint32_t;  ///< by lowest rank, ascending: 0 has rank 0, and is the coordinator's
/// A site is where gradients of some ranks of a node are summed: a node has one, or one for each of its GPUs whose sums
/// travel (docs/adr/0045). By lowest rank, ascending: where each node has one, its number is that of the node.
using SiteNumber = NodeNumber;
using ContentHash = std::string;  ///< 32 hex digits: XXH3-128 of the canonical text of one rank's declaration
using RankSpan = std::pair<std::int64_t, std::int64_t>;  ///< first rank and how many follow each other

using WeightFingerprints = std::vector<std::string>;  ///< of the tensors of one declaration

/// The ranks of a node that declared the same, and have equal weights as far as these are compared.
struct DeclaredRanks {
  ContentHash hash;
  std::vector<RankSpan> ranks;
  std::optional<std::uint32_t> weights;  ///< index into the fingerprints of this message; none: they are not compared
};

/// Settings that must be equal on all nodes. The first that differs is named with both values.
struct PeerSettings {
  std::uint64_t first_bucket_bytes = 0;
  std::uint64_t bucket_bytes = 0;
  std::int64_t check_every = 0;
  std::uint64_t encoded_bytes = 0;
  std::string cpu_gradients = {};  ///< by what they travel; empty: sockets
};

struct NodeDeclared {
  std::vector<DeclaredRanks> by_content;
  std::vector<WeightFingerprints> weight_fingerprints;  ///< each list once
  PeerSettings settings;
  std::vector<std::uint32_t> devices = {};  ///< of its ranks, ascending: which of its devices; empty: one has all
};

using NodeCells = device::NodeCells;

using TensorSpans = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  ///< first tensor and how many follow it

/// What was found in the gradients of a node, by tensors of the plan and ranks of the job.
struct NodeFindings {
  /// At most kMaxFindings of each. Counts, and their total, are those of boxes that the node owns.
  std::vector<device::NonfiniteFinding> nonfinite;
  std::vector<device::DivergenceFinding> divergence;
  std::vector<device::MissingFinding> missing;
  std::uint64_t nonfinite_total = 0;
  TensorSpans absent;  ///< tensors of which this node holds parts, and none of its ranks has a gradient
};

// ---- member → coordinator

/// Who the node is and how far its ranks are. The last one counts; one that comes while an epoch stands ends it.
struct PeerJoin {
  std::uint64_t challenge = 0;  ///< of the coordinator's hello on this link
  std::uint32_t count = 0;      ///< 1, 2, … on this link
  JobKey job;
  std::int64_t restart_count = 0;
  std::int64_t world_size = 1;
  std::vector<plan::Mesh> meshes;
  std::string node;                 ///< host name
  std::string node_id;              ///< 32 hex digits, equal before and after a restart of the daemon
  std::string incarnation;          ///< 16 hex digits, new at every start of the daemon
  std::string address;              ///< local address of this link, as the member sees it
  std::uint64_t epoch = 0;          ///< the least that the next epoch may have; 0: this incarnation has been in none
  std::vector<std::int64_t> ranks;  ///< attached
  std::int64_t local_world_size = 1;
  RecordWords words;                     ///< also before all ranks have declared: a doubt does not wait for a new rank
  std::optional<NodeDeclared> declared;  ///< all of them have declared
  std::string listen;      ///< numeric address of its listener for other daemons; empty: that of this link
  std::uint16_t port = 0;  ///< of that listener
};

struct PeerReady {
  std::uint64_t epoch = 0;
  std::string plan_digest;
  std::string policy_digest;
  bool policies_anew = false;                                     ///< nothing of an earlier step was found here
  std::optional<device::LoadedCommunicators> communicators = {};  ///< of all sites, where sums travel by them
};

struct PeerConnected {
  std::uint64_t epoch = 0;
};

/// The node cannot go on with the epoch, and why: a rank was lost, the plan is refused, the lane cannot load it.
struct PeerLeave {
  std::uint64_t epoch = 0;
  Error error;
};

/// What a site has measured.
struct SiteSums {
  NodeCells cells;
  NodeFindings findings;
  std::vector<std::uint64_t> row_hashes;  ///< by comparison class of this site (engine/peers/sums/comparison.hpp)
};

struct PeerAsk {
  std::uint64_t word = 0;
  Ask terms;  ///< its times are not sent
  std::string policy_digest;
  std::vector<SiteSums> sites;  ///< of the node, ascending; none for clip.apply and policy.import
};

/// The rows that the coordinator asked for, of all ranks of one site of this node, by box.
struct PeerRows {
  using Row = device::HeldRow;

  std::uint64_t word = 0;
  std::vector<std::uint64_t> box_hashes;  ///< of the classes that were asked for, box by box; or
  std::vector<Row> rows;                  ///< of the boxes that were asked for
  std::uint32_t site = 0;                 ///< which of the node's sites
};

/// The node is prepared: report texts kept, then `voted` stored, then this.
struct PeerVote {
  std::uint64_t word = 0;
  std::string result_digest;  ///< over norm bits, outcomes and the policies' state after the step
};

/// The attempt cannot be voted for on this node. Never after its vote.
struct PeerFail {
  std::uint64_t word = 0;
  Error error;
};

/// A rank's time is over (or half of it), and its node has done what it can.
struct PeerOverdue {
  std::uint64_t word = 0;
  bool half = false;
  std::int64_t step = 0;
  double waited_s = 0;
};

/// The answer to PeerWho.
struct PeerMissing {
  std::uint64_t word = 0;
  std::vector<std::int64_t> ranks;
  std::vector<std::string> tensors;  ///< at most 20
  std::string words;
};

// ---- coordinator → member

/// The first message on a link.
struct PeerHello {
  std::uint64_t challenge = 0;  ///< rises with every link of this incarnation
  std::string incarnation;
  std::string version;
  std::int64_t peer_protocol = kPeerProtocol;
  std::string node;
  std::string seen_address;  ///< the other end of this link, as the coordinator sees it
};

/// The node may not take part. The link is closed behind it.
struct PeerRefused {
  Error error;
};

struct RosterNode {
  std::string node;
  std::string address;
  std::string incarnation;
  std::vector<DeclaredRanks> by_content;
  std::uint16_t port = 0;                   ///< of its listener for other daemons
  std::vector<std::uint32_t> devices = {};  ///< as in NodeDeclared
};

struct PeerPrepare {
  std::uint64_t epoch = 0;
  std::string coordinator;                              ///< incarnation
  SharedList<RosterNode> roster;                        ///< by NodeNumber; one for all nodes that it goes to
  std::vector<WeightFingerprints> weight_fingerprints;  ///< of all nodes, each list once
  PeerSettings settings;
  /// What this roster says, where that was made already. It is not sent.
  std::shared_ptr<const RosterByRank> by_rank = {};
};

/// What came of the attempt that the node is in doubt about. It comes before the next PeerPrepare.
struct PeerRuling {
  std::uint64_t word = 0;
  Verdict verdict = Verdict::Unknown;
};

struct PeerConnect {
  std::uint64_t epoch = 0;
  std::vector<device::CommunicatorId> communicators = {};  ///< one for each that the node offered, by name
};

struct PeerBegin {
  std::uint64_t epoch = 0;
};

/// The epoch is over, and the member joins again. What the coordinator has not said to be done has failed.
struct PeerEnd {
  std::uint64_t epoch = 0;
  std::uint64_t failed_word = 0;  ///< the attempt under way; 0: none
  Error error;
};

/// Boxes whose hashes, or rows, are wanted before anything is decided.
struct PeerCompare {
  std::uint64_t word = 0;
  std::vector<std::uint32_t> classes;   ///< hash each box; or
  std::vector<device::StatsBox> boxes;  ///< send the rows of all ranks
};

/// The sums of all nodes, added in the order of nodes, and all findings. Every node decides by them alike.
struct PeerDecision {
  std::uint64_t word = 0;
  std::optional<NodeCells> cells;
  NodeFindings findings;
  bool sums_differ = false;  ///< copies agree but for rounding: hashes leave sums out for the rest of the epoch
};

struct PeerDone {
  std::uint64_t word = 0;
};

/// The attempt failed on all nodes; the epoch goes on with the next. Never after PeerDone.
struct PeerAbort {
  std::uint64_t word = 0;
  Error error;
};

struct PeerWho {
  std::uint64_t word = 0;
};

// ---- both ways

/// What policies remember, of the lowest node that remembers anything: asked for without a state, and sent with one, to
/// nodes that have another. Between READY and CONNECT.
struct PeerPolicies {
  std::uint64_t epoch = 0;
  std::uint32_t page = 0;
  std::uint32_t pages = 1;
  std::string state;  ///< empty: send yours
};

/// Declarations that the other side has not seen, by their hashes.
struct PeerWant {
  std::vector<ContentHash> hashes;
};

struct PeerDeclaration {
  ContentHash hash;
  std::uint32_t page = 0;
  std::uint32_t pages = 1;
  plan::DeclareOptions options;
  std::vector<plan::TensorDeclaration> tensors;
};

/// Ranks that are paused from now on; other nodes' deadlines stand still while one of them is waited for.
struct PeerPause {
  std::vector<std::int64_t> ranks;
};

struct PeerBeat {};

using ToCoordinator = std::variant<
    PeerJoin,
    PeerReady,
    PeerConnected,
    PeerLeave,
    PeerAsk,
    PeerRows,
    PeerVote,
    PeerFail,
    PeerOverdue,
    PeerMissing,
    PeerWant,
    PeerPolicies,
    PeerDeclaration,
    PeerPause,
    PeerBeat>;
using ToMember = std::variant<
    PeerHello,
    PeerRefused,
    PeerRuling,
    PeerPrepare,
    PeerConnect,
    PeerBegin,
    PeerEnd,
    PeerCompare,
    PeerDecision,
    PeerDone,
    PeerAbort,
    PeerWho,
    PeerWant,
    PeerPolicies,
    PeerDeclaration,
    PeerPause,
    PeerBeat>;

}  // namespace gradsync::engine
