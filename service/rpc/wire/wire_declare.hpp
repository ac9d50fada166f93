#pragma once
// gradients.declare on the wire. A tensor is read into the planner's own struct; what JSON spells
// differently (placements, the default of local_shape) is turned here.

#include "engine/peers/record_words.hpp"
#include "plan/plan.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/wire/wire_clip.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

struct WireTensor {
  plan::TensorDeclaration declaration;
  std::optional<std::vector<std::int64_t>> local_shape;  ///< absent: as `shape`
  std::optional<std::string> weight_fingerprint;
};

/// Appends one tensor to the declaration of a rank: an absent local shape is filled in, and there are no fingerprints
/// or one per tensor.
void append(plan::RankDeclaration& declaration, WireTensor tensor);

/// An attempt of an earlier daemon.
struct EarlierAttempt {
  std::uint64_t epoch = 0;
  std::uint64_t attempt = 0;
};

struct DeclareParams {
  std::uint64_t buffer = 0;
  std::int64_t page = 0;
  bool last = true;
  std::optional<plan::DeclareOptions> options;
  std::optional<std::string> measured_by;
  std::vector<WireTensor> tensors;
  std::optional<std::int64_t> timeout_ms;
  bool comes_back = false;
  std::optional<EarlierAttempt> last_done;
  std::optional<EarlierAttempt> doubt;
};

struct DeclaredBucket {
  std::string dtype;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::optional<std::vector<std::uint32_t>> tensors;
};

/// The record by which a rank finds out which steps were begun and done, if the daemon ends.
struct WireRecord {
  std::string token;
  std::uint64_t bytes = 0;
};

/// A page that is not the last is answered with `received` alone, the last one with all the others.
struct DeclareAnswer {
  std::optional<std::uint64_t> received;
  std::optional<std::uint64_t> epoch;
  std::optional<std::uint64_t> attempt;
  std::optional<std::string> plan_digest;
  std::optional<std::uint64_t> arena_bytes;
  std::optional<std::vector<std::string>> clip_groups;
  std::optional<std::vector<DeclaredBucket>> buckets;
  std::optional<std::vector<std::uint64_t>> offsets;
  std::optional<bool> check;
  std::optional<plan::DType> norm_dtype;
  std::optional<WireRecord> record;
  std::optional<engine::Verdict> verdict;
};

template <>
struct EnumNames<engine::Verdict> {
  static constexpr std::array<std::pair<const char*, engine::Verdict>, 3> kEntries{{
      {"done", engine::Verdict::Done},
      {"failed", engine::Verdict::Failed},
      {"unknown", engine::Verdict::Unknown},
  }};
};

template <>
struct EnumNames<plan::DType> {
  static constexpr std::array<std::pair<const char*, plan::DType>, 4> kEntries{{
      {"float32", plan::DType::Float32},
      {"bfloat16", plan::DType::BFloat16},
      {"float16", plan::DType::Float16},
      {"float64", plan::DType::Float64},
  }};
};

template <>
struct EnumNames<plan::ReduceOp> {
  static constexpr std::array<std::pair<const char*, plan::ReduceOp>, 2> kEntries{{
      {"sum", plan::ReduceOp::Sum},
      {"mean", plan::ReduceOp::Mean},
  }};
};

template <>
struct EnumNames<plan::DataPath> {
  static constexpr std::array<std::pair<const char*, plan::DataPath>, 2> kEntries{{
      {"arena", plan::DataPath::Arena},
      {"stats", plan::DataPath::Stats},
  }};
};

template <>
struct EnumNames<plan::BucketRule> {
  static constexpr std::array<std::pair<const char*, plan::BucketRule>, 2> kEntries{{
      {"default", plan::BucketRule::Default},
      {"torch", plan::BucketRule::Torch},
  }};
};

template <>
struct EnumNames<plan::PartialSums> {
  static constexpr std::array<std::pair<const char*, plan::PartialSums>, 2> kEntries{{
      {"exact", plan::PartialSums::Exact},
      {"bfloat16", plan::PartialSums::BFloat16},
  }};
};

template <>
struct EnumNames<plan::ClipMode> {
  static constexpr std::array<std::pair<const char*, plan::ClipMode>, 2> kEntries{{
      {"strict", plan::ClipMode::Strict},
      {"torch", plan::ClipMode::Torch},
  }};
};

/// The wire's placement is flat; which fields belong to which kind is checked when it becomes the planner's variant.
template <>
struct Codec<plan::Placement> {
  static bool read(FieldReader& reader, Value value, plan::Placement& out, Bounds);
  static void write(JsonWriter& writer, const plan::Placement& placement);
  static Json schema(SchemaBuilder& builder, Bounds);
};

template <>
struct Fields<plan::DeclareOptions> {
  static constexpr const char* kName = "DeclareOptions";

  static void visit(auto& v, auto& s) {
    v.optional(
        "data_path", s.data_path, "arena: the daemon reduces; stats: the trainer did, and hands over statistics"
    );
    v.optional("accumulate", s.accumulate, "backward passes per step", kPositive);
    v.optional("norm_type", s.norm_type, "p of the norm: finite and at least 1, or \"Infinity\"", kPositive);
    v.optional("mode", s.mode, "how the coefficient is made; torch: bit-equal to clip_grad_norm_");
    v.optional("clip", s.clip, "one entry per clip group; groups not listed only measure");
    v.optional("buckets", s.buckets, "which tensors are reduced by one launch; torch: those of torch's DDP");
    v.optional(
        "fingerprint",
        s.fingerprint,
        "data path stats: name of the function that makes the fingerprints of rows",
        Bounds{0, 64}
    );
    v.optional("partial_sums", s.partial_sums, "how partial sums travel between nodes; bfloat16: in half the bytes");
  }
};

template <>
struct Fields<WireTensor> {
  static constexpr const char* kName = "Tensor";

  static void visit(auto& v, auto& s) {
    v.required("name", s.declaration.name, "unique in the declaration", kPlanNameLength);
    v.required("shape", s.declaration.shape, "logical shape", Bounds{0, 32});
    v.optional("local_shape", s.local_shape, "what this rank holds before sync; absent: as shape", Bounds{0, 32});
    v.optional("local_offset", s.declaration.local_offset, "where that lies in shape", Bounds{0, 32});
    v.required("dtype", s.declaration.dtype, "element type");
    v.required("mesh", s.declaration.mesh, "name of its mesh", kPlanNameLength);
    v.required("placements", s.declaration.placements, "one for every axis of size > 1", Bounds{0, 64});
    v.optional("divisor", s.declaration.divisor, "applied once after the sum; excludes mean");
    v.optional("tied", s.declaration.tied, "equal for tensors that are one weight", kPlanNameLength);
    v.optional("clip_group", s.declaration.clip_group, "tensors clipped by one coefficient", kPlanNameLength);
    v.optional("layer", s.declaration.layer, "for the norms per layer", kPlanNameLength);
    v.optional("split_order", s.declaration.split_order, "order in which shards nest", Bounds{0, 64});
    v.optional("weight_fingerprint", s.weight_fingerprint, "digest of the weight, compared over ranks", Bounds{0, 64});
  }
};

template <>
struct Fields<EarlierAttempt> {
  static constexpr const char* kName = "EarlierAttempt";

  static void visit(auto& v, auto& s) {
    v.required("epoch", s.epoch, "of its report");
    v.required("attempt", s.attempt, "of its report");
  }
};

template <>
struct Fields<DeclareParams> {
  static constexpr const char* kName = "DeclareParams";

  static void visit(auto& v, auto& s) {
    v.required(
        "buffer", s.buffer, "the arena, of at least Σ round_up(bytes of tensor, 64); data path stats: the table"
    );
    v.optional("page", s.page, "0, 1, 2, …", kNatural);
    v.optional("last", s.last, "the declaration is complete");
    v.optional("options", s.options, "equal on all ranks; on page 0");
    v.optional(
        "measured_by", s.measured_by, "data path stats: what takes this rank's statistics, in words", Bounds{0, 64}
    );
    v.required("tensors", s.tensors, "in the order of their indices");
    v.optional("timeout_ms", s.timeout_ms, "how long to wait for the other ranks", kTimeoutMs);
    v.optional(
        "last_done",
        s.last_done,
        "the last step that an earlier daemon did; on the last page, by a rank that comes back"
    );
    v.optional("comes_back", s.comes_back, "the rank has read the record of an earlier daemon; on the last page");
    v.optional(
        "doubt", s.doubt, "the attempt that its call waits for, `voted` in that record and not `done`; on the last page"
    );
  }
};

template <>
struct Fields<DeclaredBucket> {
  static constexpr const char* kName = "DeclaredBucket";

  static void visit(auto& v, auto& s) {
    v.required("dtype", s.dtype, "of its tensors");
    v.required("offset", s.offset, "bytes from the start of the arena");
    v.required("bytes", s.bytes, "size in the arena");
    v.optional("tensors", s.tensors, "indices in arena order; absent where the reply would be too long");
  }
};

template <>
struct Fields<WireRecord> {
  static constexpr const char* kName = "StepRecord";

  static void visit(auto& v, auto& s) {
    v.required("token", s.token, "32 hex digits: fetches its descriptor on the fd socket, once, within 10 s");
    v.required("bytes", s.bytes, "to map for reading");
  }
};

template <>
struct Fields<DeclareAnswer> {
  static constexpr const char* kName = "DeclareResult";

  static void visit(auto& v, auto& s) {
    v.optional("received", s.received, "tensors so far; alone, for a page that is not the last");
    v.optional("epoch", s.epoch, "membership of the job");
    v.optional("attempt", s.attempt, "to use in the next step call");
    v.optional("plan_digest", s.plan_digest, "16 hex digits, equal on all ranks");
    v.optional("arena_bytes", s.arena_bytes, "of the buffer that are used");
    v.optional("clip_groups", s.clip_groups, "names, in order");
    v.optional("buckets", s.buckets, "in launch order");
    v.optional("offsets", s.offsets, "per tensor: bytes from the start of the arena; absent above 20,000 tensors");
    v.optional("check", s.check, "the first step is checked: on data path stats its rows should carry fingerprints");
    v.optional("norm_dtype", s.norm_dtype, "data path stats: float64 where any gradient of the job is, else float32");
    v.optional("record", s.record, "what the job has begun and done, in memory that outlives the daemon");
    v.optional("verdict", s.verdict, "what came of the attempt in doubt: done or failed");
  }
};

}  // namespace gradsync::rpc
