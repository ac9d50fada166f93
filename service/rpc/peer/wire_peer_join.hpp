#pragma once
// How daemons meet, and agree to an epoch. Each message is described by its fields; `kName` is its method, and
// `kMostBytes` the longest text of one.

#include "rpc/peer/peer_fields.hpp"
#include "rpc/peer/wire_peer_error.hpp"
#include "rpc/wire/wire_declare.hpp"
#include "rpc/wire/wire_session.hpp"

#include <cstddef>

namespace gradsync::rpc {

using engine::kPeerTextBytes;
inline constexpr std::size_t kShortTextBytes = 64U << 10;  ///< for kinds without a list that grows with the model

template <>
struct Fields<engine::DeclaredRanks> {
  static constexpr const char* kName = "DeclaredRanks";

  static void visit(auto& v, auto& s) {
    required_as<HexLongDigest>(v, "hash", s.hash, "of the canonical text of the declaration");
    required_as<RankSpans>(v, "ranks", s.ranks, "that declared it");
    v.optional("weights", s.weights, "index into weight_fingerprints; absent: they are not compared");
  }
};

template <>
struct Fields<engine::PeerSettings> {
  static constexpr const char* kName = "PeerSettings";

  static void visit(auto& v, auto& s) {
    v.required("first_bucket_bytes", s.first_bucket_bytes, "limit of the first bucket");
    v.required("bucket_bytes", s.bucket_bytes, "limit of the others");
    v.required("check_every", s.check_every, "steps between checks", kNatural);
    v.required("encoded_bytes", s.encoded_bytes, "limit of a report");
    optional_as<Usual>(v, "cpu_gradients", s.cpu_gradients, "by what they travel; absent: sockets", kTransportText);
  }
};

template <>
struct Fields<engine::RecordWords> {
  static constexpr const char* kName = "RecordWords";

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "doubt", s.doubt, "the attempt that the node voted for; 0: none");
    required_as<HexWord>(v, "done", s.done, "the attempt that was done last; 0: none");
    v.required("known", s.known, "some rank or the daemon has the record");
  }
};

template <>
struct Fields<engine::NodeDeclared> {
  static constexpr const char* kName = "NodeDeclared";

  static void visit(auto& v, auto& s) {
    v.required("by_content", s.by_content, "which ranks declared what", kRankCount);
    optional_as<Fingerprints>(v, "weight_fingerprints", s.weight_fingerprints, "one list per `weights`", kRankCount);
    v.required("settings", s.settings, "equal on all nodes");
    optional_as<Usual>(v, "devices", s.devices, "by rank: which of its devices; absent: one has all", kRankCount);
  }
};

template <>
struct Fields<engine::PeerJoin> {
  static constexpr const char* kName = "peer.join";
  static constexpr std::size_t kMostBytes = kPeerTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "challenge", s.challenge, "of the hello on this link");
    v.required("count", s.count, "1, 2, … on this link", kPositive);
    v.required("node", s.node, "host name", kHostText);
    required_as<HexLongDigest>(v, "node_id", s.node_id, "equal in all lives of the daemon");
    required_as<HexDigest>(v, "incarnation", s.incarnation, "new in every life");
    v.required("address", s.address, "local address of this link", kHostText);
    optional_as<Usual>(v, "listen", s.listen, "where its listener is bound; absent: to every address", kHostText);
    required_as<PortNumber>(v, "port", s.port, "of its listener for other daemons");
    v.required("epoch", s.epoch, "the least that the next may have; 0: none", Bounds{0, kPeerEpoch.most});
    v.required("job", s.job.second, "its name", kNameLength);
    v.required("uid", s.job.first, "its owner");
    v.required("restart_count", s.restart_count, "of its ranks", kNatural);
    v.required("world_size", s.world_size, "ranks of the job", Bounds{1, kPeerRanks});
    v.required("meshes", s.meshes, "as in job.attach", Bounds{1, 64});
    required_as<RanksAsSpans>(v, "ranks", s.ranks, "attached here");
    v.required("local_world_size", s.local_world_size, "ranks that this node will have", Bounds{1, kPeerRanks});
    v.required("words", s.words, "what the record says");
    v.optional("declared", s.declared, "absent until all of them have declared");
  }
};

template <>
struct Fields<device::CommunicatorOffer> {
  static constexpr const char* kName = "CommunicatorOffer";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "axes, and a hash of its ranks", kCommunicatorName);
    v.required("members", s.members, "how many it has", Bounds{2, kPeerRanks});
    v.required("own", s.own, "which of them this is", kRankNumber);
    optional_as<Given<HexWord>>(v, "instance", s.instance, "a hash of the id that it was built with, if it is here");
    optional_as<Given<HexUniqueId>>(v, "id", s.id, "to build it with: of the first member, where it is not here");
  }
};

template <>
struct Fields<device::LoadedCommunicators> {
  static constexpr const char* kName = "LoadedCommunicators";

  static void visit(auto& v, auto& s) {
    required_as<VersionNumber>(v, "version", s.version, "of NCCL, as it says it");
    v.required("offers", s.offers, "one for each communicator of each lane", Bounds{0, kNodeCommunicators});
  }
};

template <>
struct Fields<device::CommunicatorId> {
  static constexpr const char* kName = "CommunicatorId";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "axes, and a hash of its ranks", kCommunicatorName);
    required_as<HexWord>(v, "instance", s.instance, "a hash of its id");
    optional_as<Given<HexUniqueId>>(v, "id", s.id, "to build it with; absent: all members have it");
  }
};

template <>
struct Fields<engine::PeerReady> {
  static constexpr const char* kName = "peer.ready";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "that is ready here", kPeerEpoch);
    required_as<HexDigest>(v, "plan_digest", s.plan_digest, "of the plan that was made here");
    required_as<HexDigest>(v, "policy_digest", s.policy_digest, "of policies and what they remember");
    v.required("policies_anew", s.policies_anew, "nothing of an earlier step was found here");
    v.optional("communicators", s.communicators, "what lanes have of them, where sums travel by NCCL");
  }
};

template <>
struct Fields<engine::PeerHello> {
  static constexpr const char* kName = "peer.hello";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "challenge", s.challenge, "rises with every link");
    required_as<HexDigest>(v, "incarnation", s.incarnation, "of the coordinator");
    v.required("version", s.version, "its release", kHostText);
    v.required("peer_protocol", s.peer_protocol, "version of these messages", kPositive);
    v.required("node", s.node, "host name", kHostText);
    v.required("seen_address", s.seen_address, "the other end of this link", kHostText);
  }
};

template <>
struct Fields<engine::PeerRefused> {
  static constexpr const char* kName = "peer.refused";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) { v.required("error", s.error, "why the node may not take part"); }
};

template <>
struct Fields<engine::PeerRuling> {
  static constexpr const char* kName = "peer.ruling";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt in doubt", kNotZero);
    v.required("verdict", s.verdict, "what came of it");
  }
};

template <>
struct Fields<engine::RosterNode> {
  static constexpr const char* kName = "RosterNode";

  static void visit(auto& v, auto& s) {
    v.required("node", s.node, "host name", kHostText);
    v.required("address", s.address, "where its listener is reached", kHostText);
    required_as<PortNumber>(v, "port", s.port, "of its listener for other daemons");
    required_as<HexDigest>(v, "incarnation", s.incarnation, "its life");
    v.required("by_content", s.by_content, "which of its ranks declared what", Bounds{1, kPeerRanks});
    optional_as<Usual>(v, "devices", s.devices, "by rank: which of its devices; absent: one has all", kRankCount);
  }
};

template <>
struct Fields<engine::PeerPrepare> {
  static constexpr const char* kName = "peer.prepare";
  static constexpr std::size_t kMostBytes = kPeerTextBytes;

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "that begins", kPeerEpoch);
    required_as<HexDigest>(v, "coordinator", s.coordinator, "its incarnation");
    v.required("settings", s.settings, "of all nodes");
    required_as<SharedItems>(v, "roster", s.roster, "by node number", Bounds{1, kPeerNodes});
    optional_as<Fingerprints>(v, "weight_fingerprints", s.weight_fingerprints, "one list per `weights`", kRankCount);
  }
};

/// Messages that say an epoch and nothing else.
struct EpochFields {
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) { v.required("epoch", s.epoch, "that it belongs to", kPeerEpoch); }
};

template <>
struct Fields<engine::PeerConnected> : EpochFields {
  static constexpr const char* kName = "peer.connected";
};

template <>
struct Fields<engine::PeerConnect> {
  static constexpr const char* kName = "peer.connect";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "that it belongs to", kPeerEpoch);
    optional_as<Usual>(
        v, "communicators", s.communicators, "the ids of those that this node offered", Bounds{0, kNodeCommunicators}
    );
  }
};

template <>
struct Fields<engine::PeerBegin> : EpochFields {
  static constexpr const char* kName = "peer.begin";
};

template <>
struct Fields<engine::PeerLeave> {
  static constexpr const char* kName = "peer.leave";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "that the node leaves", kPeerEpoch);
    v.required("error", s.error, "why");
  }
};

template <>
struct Fields<engine::PeerEnd> {
  static constexpr const char* kName = "peer.end";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "that ends", kPeerEpoch);
    required_as<HexWord>(v, "failed_word", s.failed_word, "the attempt under way; 0: none");
    v.required("error", s.error, "why");
  }
};

}  // namespace gradsync::rpc
