#pragma once
// What goes both ways between daemons: declarations and the states of policies, in pages, paused ranks, and the beat.

#include "rpc/peer/wire_peer_join.hpp"
#include "rpc/wire/wire_declare.hpp"

#include <cstddef>

namespace gradsync::rpc {

inline constexpr std::size_t kPageTextBytes = 5U << 20;  ///< a page of policies and what is around it, with room
inline constexpr std::size_t kWantTextBytes = 256U << 10;
inline constexpr Bounds kWantedHashes{1, 4096};
inline constexpr Bounds kPages{1, 256};

/// As in gradients.declare, but without the fingerprints of weights, which are no part of the content.
struct DeclaredTensors {
  static bool read(FieldReader& reader, Value value, std::vector<plan::TensorDeclaration>& out, Bounds);
  static void write(JsonWriter& writer, const std::vector<plan::TensorDeclaration>& tensors);
};

template <>
struct Fields<engine::PeerWant> {
  static constexpr const char* kName = "peer.want";
  static constexpr std::size_t kMostBytes = kWantTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexLongDigests>(v, "hashes", s.hashes, "of declarations that are not here", kWantedHashes);
  }
};

template <>
struct Fields<engine::PeerPolicies> {
  static constexpr const char* kName = "peer.policies";
  static constexpr std::size_t kMostBytes = kPageTextBytes;

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "that it belongs to", kPeerEpoch);
    v.required("page", s.page, "0, 1, …");
    v.required("pages", s.pages, "how many there are", kPages);
    optional_as<HexBytes>(
        v, "state", s.state, "a part of what policies remember; absent: send yours", Bounds{1, kStateBytes}
    );
  }
};

template <>
struct Fields<engine::PeerDeclaration> {
  static constexpr const char* kName = "peer.declaration";
  static constexpr std::size_t kMostBytes = kPageTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexLongDigest>(v, "hash", s.hash, "of the whole");
    v.required("page", s.page, "0, 1, …");
    v.required("pages", s.pages, "how many there are", kPages);
    v.required("options", s.options, "as in gradients.declare, on every page");
    required_as<DeclaredTensors>(v, "tensors", s.tensors, "of this page");
  }
};

template <>
struct Fields<engine::PeerPause> {
  static constexpr const char* kName = "peer.pause";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) { required_as<RanksAsSpans>(v, "ranks", s.ranks, "that are paused now"); }
};

template <>
struct Fields<engine::PeerBeat> {
  static constexpr const char* kName = "peer.beat";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto&, auto&) {}
};

}  // namespace gradsync::rpc
