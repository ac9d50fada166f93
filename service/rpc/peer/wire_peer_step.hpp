#pragma once
// One step over nodes: what is asked, found, compared, decided, voted for and done.

#include "rpc/peer/wire_peer_join.hpp"

#include <cstddef>

namespace gradsync::rpc {

inline constexpr Bounds kFindings{0, static_cast<std::int64_t>(device::kMaxFindings)};
inline constexpr std::size_t kMissingWordsBytes = 4096;

template <>
struct EnumNames<engine::Ask::Kind> {
  static constexpr std::array<std::pair<const char*, engine::Ask::Kind>, 4> kEntries{{
      {"finish", engine::Ask::Kind::Finish},
      {"norm", engine::Ask::Kind::NormOnly},
      {"clip", engine::Ask::Kind::Clip},
      {"import", engine::Ask::Kind::Import},
  }};
};

template <>
struct Fields<engine::NodeCells> {
  static constexpr const char* kName = "NodeCells";

  static void visit(auto& v, auto& s) {
    v.required("whole", s.whole, "over everything");
    v.required("groups", s.groups, "per clip group", kGroups);
    v.required("layers", s.layers, "per layer", Bounds{0, kPeerTensors});
    v.required("counted_elements", s.counted_elements, "in the norm");
  }

  static constexpr Bounds kGroups{0, static_cast<std::int64_t>(plan::kMaxClipGroups)};
};

template <>
struct Fields<device::NonfiniteFinding> {
  static constexpr const char* kName = "NonfiniteFinding";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "of the plan");
    v.required("count", s.count, "in all of it");
    required_as<RankCounts>(v, "inputs", s.inputs, "[rank, count]");
  }
};

template <>
struct Fields<device::DivergenceFinding> {
  static constexpr const char* kName = "DivergenceFinding";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "of the plan");
    required_as<RankList>(v, "ranks", s.ranks, "that differ");
    required_as<RankList>(v, "majority", s.majority, "with the bits that most have");
    required_as<RankList>(v, "suspects", s.suspects, "the others");
  }
};

template <>
struct Fields<device::MissingFinding> {
  static constexpr const char* kName = "MissingFinding";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "of the plan");
    required_as<RankList>(v, "ranks", s.ranks, "without a gradient");
  }
};

template <>
struct Fields<engine::NodeFindings> {
  static constexpr const char* kName = "NodeFindings";

  static void visit(auto& v, auto& s) {
    optional_as<Usual>(v, "nonfinite", s.nonfinite, "tensors with NaN or infinities", kFindings);
    optional_as<Usual>(v, "divergence", s.divergence, "tensors whose copies differ", kFindings);
    optional_as<Usual>(v, "missing", s.missing, "tensors without a gradient on some ranks", kFindings);
    v.required("nonfinite_total", s.nonfinite_total, "values that are not finite");
    optional_as<TensorSpanList>(v, "absent", s.absent, "tensors without a gradient");
  }
};

template <>
struct Fields<engine::SiteSums> {
  static constexpr const char* kName = "SiteSums";

  static void visit(auto& v, auto& s) {
    v.required("cells", s.cells, "its sums");
    v.required("findings", s.findings, "in its gradients");
    optional_as<HexWords>(v, "row_hashes", s.row_hashes, "by comparison class of this device");
  }
};

template <>
struct Fields<engine::PeerAsk> {
  static constexpr const char* kName = "peer.ask";
  static constexpr std::size_t kMostBytes = kPeerTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    v.required("kind", s.terms.kind, "the call that ranks wait in");
    v.required("step", s.terms.step, "the trainer's label");
    v.required("scale", s.terms.scale, "of the loss: finite and above 0", kNatural);
    v.required("scaled", s.terms.scaled, "a loss scaler is used");
    v.required("abandon", s.terms.abandon, "the step ends as it is");
    v.required("override_max_norm", s.terms.override_max_norm, "max_norm counts for this step");
    v.optional("max_norm", s.terms.max_norm, "absent: measure only, or as declared", kNatural);
    optional_as<HexDigest>(v, "state_digest", s.terms.state_digest, "of the state that is imported");
    required_as<HexDigest>(v, "policy_digest", s.policy_digest, "before the step");
    optional_as<Usual>(v, "sites", s.sites, "what each device measured; absent for clip and import", kRankCount);
  }
};

template <>
struct Fields<engine::PeerRows::Row> {
  static constexpr const char* kName = "PeerRow";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "of the plan");
    v.required("box", s.box, "of the tensor");
    v.required("rank", s.rank, "whose row it is", kRankNumber);
    v.required("row", s.row, "64 bytes");
  }
};

template <>
struct Fields<engine::PeerRows> {
  static constexpr const char* kName = "peer.rows";
  static constexpr std::size_t kMostBytes = kPeerTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    optional_as<HexWords>(v, "box_hashes", s.box_hashes, "of the classes that were asked for, box by box");
    optional_as<Usual>(v, "rows", s.rows, "of the boxes that were asked for");
    v.required("site", s.site, "which of the node's devices", kRankNumber);
  }
};

template <>
struct Fields<engine::PeerCompare> {
  static constexpr const char* kName = "peer.compare";
  static constexpr std::size_t kMostBytes = kPeerTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    optional_as<Usual>(v, "classes", s.classes, "whose boxes are to be hashed");
    optional_as<Usual>(v, "boxes", s.boxes, "[tensor, box], whose rows are to be sent", Bounds{0, kComparedBoxes});
  }
};

template <>
struct Fields<engine::PeerDecision> {
  static constexpr const char* kName = "peer.decision";
  static constexpr std::size_t kMostBytes = kPeerTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    v.optional("cells", s.cells, "the sums of all nodes");
    v.required("findings", s.findings, "of all nodes");
    v.required("sums_differ", s.sums_differ, "copies agree but for rounding");
  }
};

template <>
struct Fields<engine::PeerVote> {
  static constexpr const char* kName = "peer.vote";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    required_as<HexDigest>(v, "result_digest", s.result_digest, "of all that the step decides");
  }
};

/// Messages that say an attempt and an error.
struct FailureFields {
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    v.required("error", s.error, "why it failed");
  }
};

template <>
struct Fields<engine::PeerFail> : FailureFields {
  static constexpr const char* kName = "peer.fail";
};

template <>
struct Fields<engine::PeerAbort> : FailureFields {
  static constexpr const char* kName = "peer.abort";
};

/// Messages that say an attempt and nothing else.
struct AttemptFields {
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) { required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero); }
};

template <>
struct Fields<engine::PeerDone> : AttemptFields {
  static constexpr const char* kName = "peer.done";
};

template <>
struct Fields<engine::PeerWho> : AttemptFields {
  static constexpr const char* kName = "peer.who";
};

template <>
struct Fields<engine::PeerOverdue> {
  static constexpr const char* kName = "peer.overdue";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    v.required("half", s.half, "half of the time is over");
    v.required("step", s.step, "the trainer's label");
    v.required("waited_s", s.waited_s, "by the rank that waits", kNatural);
  }
};

template <>
struct Fields<engine::PeerMissing> {
  static constexpr const char* kName = "peer.missing";
  static constexpr std::size_t kMostBytes = kShortTextBytes;

  static void visit(auto& v, auto& s) {
    required_as<HexWord>(v, "word", s.word, "the attempt", kNotZero);
    required_as<RanksAsSpans>(v, "ranks", s.ranks, "that have not asked");
    optional_as<NamedTensors>(v, "tensors", s.tensors, "that are missing");
    optional_as<TidyText<kMissingWordsBytes>>(v, "words", s.words, "what else is known");
  }
};

}  // namespace gradsync::rpc
