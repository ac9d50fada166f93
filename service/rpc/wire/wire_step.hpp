#pragma once
// Step calls and reports on the wire. Reports are written from the engine's own structs: their names are wire names.

#include "engine/report/report.hpp"
#include "rpc/json/codec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

struct BucketReadyParams {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  std::uint32_t bucket = 0;
  std::optional<std::int64_t> micro_batch;
};

struct TensorUnusedParams {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  std::vector<std::uint32_t> tensors;
};

/// `"all"` or a list of buckets.
struct ReadySet {
  bool all = false;
  std::vector<std::uint32_t> buckets;
};

template <>
struct Codec<ReadySet> {
  static bool read(FieldReader& reader, Value value, ReadySet& out, Bounds);
  static void write(JsonWriter& writer, const ReadySet& ready);
  static Json schema(SchemaBuilder& builder, Bounds);
};

struct NormParams {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  ReadySet ready;
  std::vector<std::uint32_t> unused;
  double scale = 1;
  std::optional<bool> scaled;
  std::vector<std::uint32_t> bucket_digests;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int64_t> timeout_ms;
};

struct FinishParams : NormParams {
  Settable<double> max_norm;
};

struct ClipParams {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  Settable<double> max_norm;
  std::optional<std::int64_t> timeout_ms;
  bool abandon = false;
};

/// The state of policies goes over the wire as hex digits, which are opaque to clients.
struct ExportAnswer {
  std::string state;
  std::string policy_digest;
};

struct ImportParams {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
  std::string state;
  std::optional<std::int64_t> timeout_ms;
};

/// A report, and which of its lists were left out because the message would have been too long.
struct ReportAnswer {
  engine::StepReport report;
  std::optional<std::vector<std::string>> truncated;
};

template <typename Visitor, typename Params>
void visit_key(Visitor& v, Params& s) {
  v.required("epoch", s.epoch, "from the declaration");
  v.required("attempt", s.attempt, "from the declaration or the last report");
  v.required("step", s.step, "the trainer's own label, equal on all ranks");
}

template <>
struct Fields<BucketReadyParams> {
  static constexpr const char* kName = "BucketReadyParams";

  static void visit(auto& v, auto& s) {
    visit_key(v, s);
    v.required("bucket", s.bucket, "index in the plan");
    v.optional("micro_batch", s.micro_batch, "that completed it, for findings of non-finite values", kNatural);
  }
};

template <>
struct Fields<TensorUnusedParams> {
  static constexpr const char* kName = "TensorUnusedParams";

  static void visit(auto& v, auto& s) {
    visit_key(v, s);
    v.required("tensors", s.tensors, "indices of tensors that got no gradient on this rank");
  }
};

template <typename Visitor, typename Params>
void visit_finish(Visitor& v, Params& s) {
  visit_key(v, s);
  v.required("ready", s.ready, "buckets that are ready, those notified before included");
  v.optional("unused", s.unused, "tensors without a gradient, those notified before included");
  v.optional("scale", s.scale, "loss scale the gradients carry: finite and above 0");
  v.optional(
      "scaled", s.scaled, "a loss scaler takes no step where a gradient is not finite; absent: where scale is not 1"
  );
  v.optional("bucket_digests", s.bucket_digests, "of hook counts, one per bucket");
  v.optional("micro_batch", s.micro_batch, "that completed the buckets that were not notified", kNatural);
  v.optional("timeout_ms", s.timeout_ms, "how long to wait for the other ranks", kTimeoutMs);
}

template <>
struct Fields<NormParams> {
  static constexpr const char* kName = "NormParams";

  static void visit(auto& v, auto& s) { visit_finish(v, s); }
};

template <>
struct Fields<FinishParams> {
  static constexpr const char* kName = "FinishParams";

  static void visit(auto& v, auto& s) {
    visit_finish(v, s);
    v.optional("max_norm", s.max_norm, "replaces that of the first clip group; null: measure only", kNatural);
  }
};

template <>
struct Fields<ClipParams> {
  static constexpr const char* kName = "ClipParams";

  static void visit(auto& v, auto& s) {
    visit_key(v, s);
    v.optional("max_norm", s.max_norm, "for all clip groups; absent: as declared", kNatural);
    v.optional("abandon", s.abandon, "the step ends as it is: nothing is multiplied, no policy acts or remembers");
    v.optional("timeout_ms", s.timeout_ms, "how long to wait for the other ranks", kTimeoutMs);
  }
};

template <>
struct EnumNames<plan::StepAction> {
  static constexpr std::array<std::pair<const char*, plan::StepAction>, 4> kEntries{{
      {"step", plan::StepAction::Step},
      {"zero", plan::StepAction::Zero},
      {"skip", plan::StepAction::Skip},
      {"raise", plan::StepAction::Raise},
  }};
};

template <>
struct Fields<engine::WatchReport> {
  static constexpr const char* kName = "WatchReport";

  static void visit(auto& v, auto& s) {
    v.required("policy", s.policy, "as declared, in words");
    v.required("threshold", s.threshold, "\"Infinity\": it would have clipped nothing");
    v.required("coefficient", s.coefficient, "what gradients would have been multiplied by");
    v.required("clipped", s.clipped, "norm > threshold");
    v.required("action", s.action, "what would have become of the step");
    v.required("spike", s.spike, "norm far above the threshold");
    v.required("reason", s.reason, "in words");
  }
};

template <>
struct Fields<engine::GroupReport> {
  static constexpr const char* kName = "GroupReport";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "of the clip group");
    v.required("norm", s.norm, "before clipping, unscaled units");
    v.required("threshold", s.threshold, "\"Infinity\" when only measured");
    v.required("coefficient", s.coefficient, "what its gradients were multiplied by");
    v.required("clipped", s.clipped, "norm > threshold");
    v.required("reason", s.reason, "in words");
    v.required("action", s.action, "step; zero: its gradients became 0; skip, raise: nothing was multiplied");
    v.required("spike", s.spike, "norm far above the threshold");
    v.required("watch", s.watch, "what the policies that only watch would have done");
  }
};

template <>
struct Fields<ExportAnswer> {
  static constexpr const char* kName = "PolicyState";

  static void visit(auto& v, auto& s) {
    v.required("state", s.state, "opaque, in hex digits: all that the policies of the job remember");
    v.required("policy_digest", s.policy_digest, "as in the report of the last step");
  }
};

template <>
struct Fields<ImportParams> {
  static constexpr const char* kName = "ImportParams";

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "from the declaration");
    v.required("attempt", s.attempt, "from the declaration or the last report");
    v.required("state", s.state, "as policy.export gave it, equal on all ranks");
    v.optional("timeout_ms", s.timeout_ms, "how long to wait for the other ranks", kTimeoutMs);
  }
};

template <>
struct Fields<engine::LayerReport> {
  static constexpr const char* kName = "LayerReport";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "of the layer");
    v.required("norm", s.norm, "of its tensors");
  }
};

template <>
struct Fields<engine::NonfiniteInput> {
  static constexpr const char* kName = "NonfiniteInput";

  static void visit(auto& v, auto& s) {
    v.required("rank", s.rank, "that contributed them");
    v.required("count", s.count, "before the reduction");
    v.optional("micro_batch", s.micro_batch, "that completed its bucket on that rank; absent: not known", kNatural);
  }
};

template <>
struct Fields<engine::NonfiniteReport> {
  static constexpr const char* kName = "NonfiniteReport";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "name");
    v.required("count", s.count, "in the stored result");
    v.required("inputs", s.inputs, "what ranks contributed; empty: it arose in the sum");
  }
};

template <>
struct Fields<engine::DivergenceReport> {
  static constexpr const char* kName = "DivergenceReport";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "name");
    v.required("ranks", s.ranks, "whose bits differ from those of the lowest rank");
    v.required("majority", s.majority, "ranks with the bits that more than half of the copies have");
    v.required("suspects", s.suspects, "the other ranks; all that were compared where there is no majority");
  }
};

template <>
struct Fields<engine::MissingReport> {
  static constexpr const char* kName = "MissingReport";

  static void visit(auto& v, auto& s) {
    v.required("tensor", s.tensor, "name");
    v.required("ranks", s.ranks, "without a gradient for what they hold, while others have one");
  }
};

template <>
struct Fields<engine::ScalarCollectiveReport> {
  static constexpr const char* kName = "ScalarCollective";

  static void visit(auto& v, auto& s) {
    v.required("mesh", s.mesh, "name of the mesh");
    v.required("axes", s.axes, "summed over");
    v.required("length", s.length, "numbers in it, fp64");
  }
};

template <>
struct Fields<engine::StepTimings> {
  static constexpr const char* kName = "StepTimings";

  static void visit(auto& v, auto& s) {
    v.required("wait_s", s.wait_s, "first finish until the last");
    v.required("reduce_s", s.reduce_s, "lane time of the reductions, of several lanes the longest");
    v.required("norm_s", s.norm_s, "time to combine the norms");
    v.required("clip_s", s.clip_s, "time of the scale pass");
    v.required("total_s", s.total_s, "first finish until the commit");
  }
};

template <typename Visitor, typename Report>
void visit_report(Visitor& v, Report& s) {
  v.required("step", s.step, "the trainer's label");
  v.required("epoch", s.epoch, "membership of the job");
  v.required("attempt", s.attempt, "this execution");
  v.required("next_attempt", s.next_attempt, "to use in the next step call");
  v.required("norm", s.norm, "before clipping, over all clip groups, unscaled units");
  v.required("threshold", s.threshold, "of the first clip group");
  v.required("coefficient", s.coefficient, "of the first clip group");
  v.required("clipped", s.clipped, "any group");
  v.required("skipped", s.skipped, "the optimizer should not step");
  v.required("reason", s.reason, "in words");
  v.required("found_inf", s.found_inf, "non-finite values, agreed by all ranks");
  v.required("groups", s.groups, "per clip group");
  v.required("layers", s.layers, "per layer");
  v.required("nonfinite", s.nonfinite, "tensors with NaN or infinities");
  v.required("divergence", s.divergence, "tensors whose replicas differ");
  v.required("absent", s.absent, "tensors that got no gradient on any rank, by the rows of the rank that is answered");
  v.required("stable_buckets", s.stable_buckets, "buckets whose hook counts were equal on all ranks");
  v.required("counted_elements", s.counted_elements, "logical elements in the norm");
  v.required("collectives", s.collectives, "bucket reductions launched");
  v.required("data_path", s.data_path, "how gradients were handed over");
  v.required("policy_digest", s.policy_digest, "of the clipping policies and all they remember, equal on all ranks");
  v.required("timings", s.timings, "in seconds");
  v.required("missing", s.missing, "tensors without a gradient on some of their ranks");
  v.required("absent_names", s.absent_names, "where ranks number tensors differently: the first 64 absent ones");
  v.required("scalar_collectives", s.scalar_collectives, "what the norm costs between nodes");
  v.required(
      "check_next", s.check_next, "the next step is checked: on data path stats its rows should carry fingerprints"
  );
  v.required("action", s.action, "the strongest of the groups: step, skip (no optimizer steps) or raise");
  v.required("decided_by", s.decided_by, "the clip group whose norm skips or raises the step; empty: none does");
  v.optional("partial_sums", s.partial_sums, "bfloat16: how partial sums travel between nodes; absent: exactly");
}

template <>
struct Fields<engine::StepReport> {
  static constexpr const char* kName = "StepReport";

  static void visit(auto& v, auto& s) { visit_report(v, s); }
};

template <>
struct Fields<ReportAnswer> {
  static constexpr const char* kName = "StepResult";

  static void visit(auto& v, auto& s) {
    visit_report(v, s.report);
    v.optional(
        "truncated",
        s.truncated,
        "what was left out because the message would have been too long: lists, or all but the first of what was found"
    );
  }
};

}  // namespace gradsync::rpc
