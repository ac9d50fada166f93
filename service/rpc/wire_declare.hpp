#pragma once
// gradients.declare and plan.explain on the wire. A tensor is read into the planner's own struct; what JSON spells
// differently (placements, the default of local_shape) is turned here.

#include "plan/plan.hpp"
#include "plan/reduction.hpp"
#include "rpc/codec.hpp"

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

struct DeclareParams {
  std::uint64_t buffer = 0;
  std::int64_t page = 0;
  bool last = true;
  std::optional<plan::DeclareOptions> options;
  std::vector<WireTensor> tensors;
  std::optional<std::int64_t> timeout_ms;
};

struct DeclaredBucket {
  std::string dtype;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::optional<std::vector<std::uint32_t>> tensors;
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
struct EnumNames<plan::ClipMode> {
  static constexpr std::array<std::pair<const char*, plan::ClipMode>, 2> kEntries{{
      {"strict", plan::ClipMode::Strict},
      {"torch", plan::ClipMode::Torch},
  }};
};

template <>
struct EnumNames<plan::ZeroRule> {
  static constexpr std::array<std::pair<const char*, plan::ZeroRule>, 3> kEntries{{
      {"refuse", plan::ZeroRule::Refuse},
      {"off", plan::ZeroRule::Off},
      {"zero", plan::ZeroRule::Zero},
  }};
};

/// The wire's placement is flat; which fields belong to which kind is checked when it becomes the planner's variant.
template <>
struct Codec<plan::Placement> {
  static bool read(FieldReader& reader, Value value, plan::Placement& out, Bounds);
  static void write(JsonWriter& writer, const plan::Placement& placement);
  static Json schema(SchemaBuilder& builder, Bounds);
};

/// `max_norm`: a number, or null (or absent) to measure only.
template <>
struct Codec<plan::ClipGroupOptions> {
  static bool read(FieldReader& reader, Value value, plan::ClipGroupOptions& out, Bounds);
  static void write(JsonWriter& writer, const plan::ClipGroupOptions& options);
  static Json schema(SchemaBuilder& builder, Bounds);
};

template <>
struct Fields<plan::DeclareOptions> {
  static constexpr const char* kName = "DeclareOptions";

  static void visit(auto& v, auto& s) {
    v.optional("accumulate", s.accumulate, "backward passes per step", kPositive);
    v.optional("norm_type", s.norm_type, "p of the norm: finite and at least 1, or \"Infinity\"", kPositive);
    v.optional("mode", s.mode, "how the coefficient is made; torch: bit-equal to clip_grad_norm_");
    v.optional("clip", s.clip, "one entry per clip group; groups not listed only measure");
  }
};

template <>
struct Fields<WireTensor> {
  static constexpr const char* kName = "Tensor";

  static void visit(auto& v, auto& s) {
    v.required("name", s.declaration.name, "unique in the declaration", Bounds{1, 1024});
    v.required("shape", s.declaration.shape, "logical shape", Bounds{0, 32});
    v.optional("local_shape", s.local_shape, "what this rank holds before sync; absent: as shape", Bounds{0, 32});
    v.optional("local_offset", s.declaration.local_offset, "where that lies in shape", Bounds{0, 32});
    v.required("dtype", s.declaration.dtype, "element type");
    v.required("mesh", s.declaration.mesh, "name of its mesh", kNameLength);
    v.required("placements", s.declaration.placements, "one for every axis of size > 1", Bounds{0, 64});
    v.optional("divisor", s.declaration.divisor, "applied once after the sum; excludes mean");
    v.optional("tied", s.declaration.tied, "equal for tensors that are one weight", kNameLength);
    v.optional("clip_group", s.declaration.clip_group, "tensors clipped by one coefficient", kNameLength);
    v.optional("layer", s.declaration.layer, "for the norms per layer", kNameLength);
    v.optional("split_order", s.declaration.split_order, "order in which shards nest", Bounds{0, 64});
    v.optional("weight_fingerprint", s.weight_fingerprint, "digest of the weight, compared over ranks", Bounds{0, 64});
  }
};

template <>
struct Fields<DeclareParams> {
  static constexpr const char* kName = "DeclareParams";

  static void visit(auto& v, auto& s) {
    v.required("buffer", s.buffer, "the arena, of at least Σ round_up(bytes of tensor, 64)");
    v.optional("page", s.page, "0, 1, 2, …", kNatural);
    v.optional("last", s.last, "the declaration is complete");
    v.optional("options", s.options, "equal on all ranks; on page 0");
    v.required("tensors", s.tensors, "in the order of their indices");
    v.optional("timeout_ms", s.timeout_ms, "how long to wait for the other ranks", kTimeoutMs);
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
  }
};

// ---- plan.explain

struct ExplainParams {
  std::string job;
  std::uint64_t offset = 0;
  std::int64_t limit = 100;
};

struct ExplainedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  plan::DType dtype = plan::DType::Float32;
  std::string mesh;
  std::uint32_t bucket = 0;
  std::uint64_t offset_bytes = 0;
  std::int64_t replication = 1;
  std::int64_t counted_elements = 0;
  std::uint32_t norm_group = 0;
  std::uint32_t clip_group = 0;
  std::vector<plan::Stage> stages;
  std::string why;
};

struct ExplainedBucket {
  std::uint32_t index = 0;
  plan::DType dtype = plan::DType::Float32;
  std::uint64_t bytes = 0;
  std::vector<std::string> axes;
  std::vector<std::vector<std::int64_t>> groups;
  double divisor = 1;
  std::uint64_t tensors = 0;
};

struct ExplainedNormGroup {
  std::string mesh;
  std::vector<std::string> axes;
  std::uint64_t tensors = 0;
  std::string why;
};

struct ExplainedClipGroup {
  std::string name;
  std::optional<double> max_norm;
  std::uint64_t tensors = 0;
  std::string why;
};

struct ExplainAnswer {
  std::string job;
  std::string digest;
  std::int64_t world_size = 0;
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  std::vector<ExplainedTensor> tensors;
  std::vector<ExplainedBucket> buckets;
  std::vector<ExplainedNormGroup> norm_groups;
  std::vector<ExplainedClipGroup> clip_groups;
};

template <>
struct Fields<ExplainParams> {
  static constexpr const char* kName = "ExplainParams";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name of the job", kNameLength);
    v.optional("offset", s.offset, "first tensor of the page");
    v.optional("limit", s.limit, "tensors of the page", Bounds{1, 1000});
  }
};

template <>
struct Fields<plan::Stage> {
  static constexpr const char* kName = "ExplainedStage";

  static void visit(auto& v, auto& s) {
    v.required("axes", s.axes, "reduced over");
    v.required("op", s.op, "sum or mean");
    v.required("size", s.size, "ranks that are reduced together");
  }
};

template <>
struct Fields<ExplainedTensor> {
  static constexpr const char* kName = "ExplainedTensor";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "of the tensor");
    v.required("shape", s.shape, "logical shape");
    v.required("dtype", s.dtype, "element type");
    v.required("mesh", s.mesh, "name of its mesh");
    v.required("bucket", s.bucket, "index of its bucket");
    v.required("offset_bytes", s.offset_bytes, "from the start of the arena");
    v.required("replication", s.replication, "ranks that hold equal bits after sync");
    v.required("counted_elements", s.counted_elements, "logical elements counted in the norm");
    v.required("norm_group", s.norm_group, "index");
    v.required("clip_group", s.clip_group, "index");
    v.required("stages", s.stages, "its reduction, in order");
    v.required("why", s.why, "in words");
  }
};

template <>
struct Fields<ExplainedBucket> {
  static constexpr const char* kName = "ExplainedBucket";

  static void visit(auto& v, auto& s) {
    v.required("index", s.index, "place in the launch order");
    v.required("dtype", s.dtype, "element type");
    v.required("bytes", s.bytes, "size in the arena");
    v.required("axes", s.axes, "reduced over");
    v.required("groups", s.groups, "ranks reduced together");
    v.required("divisor", s.divisor, "applied once, after the sum");
    v.required("tensors", s.tensors, "how many");
  }
};

template <>
struct Fields<ExplainedNormGroup> {
  static constexpr const char* kName = "ExplainedNormGroup";

  static void visit(auto& v, auto& s) {
    v.required("mesh", s.mesh, "name of the mesh");
    v.required("axes", s.axes, "over which the tensors are spread after sync");
    v.required("tensors", s.tensors, "how many");
    v.required("why", s.why, "in words");
  }
};

template <>
struct Fields<ExplainedClipGroup> {
  static constexpr const char* kName = "ExplainedClipGroup";

  static void visit(auto& v, auto& s) {
    v.required("name", s.name, "of the group");
    v.required("max_norm", s.max_norm, "null: measure only");
    v.required("tensors", s.tensors, "how many");
    v.required("why", s.why, "in words");
  }
};

template <>
struct Fields<ExplainAnswer> {
  static constexpr const char* kName = "ExplainResult";

  static void visit(auto& v, auto& s) {
    v.required("job", s.job, "name of the job");
    v.required("digest", s.digest, "of the plan");
    v.required("world_size", s.world_size, "ranks of the job");
    v.required("total", s.total, "tensors of the plan");
    v.required("offset", s.offset, "first tensor of this page");
    v.required("tensors", s.tensors, "this page");
    v.required("buckets", s.buckets, "all, in launch order");
    v.required("norm_groups", s.norm_groups, "all");
    v.required("clip_groups", s.clip_groups, "all");
  }
};

}  // namespace gradsync::rpc
