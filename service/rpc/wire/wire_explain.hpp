#pragma once
// plan.explain on the wire: the plan in pages, as plain values with wire names.

#include "plan/layout/reduction.hpp"
#include "plan/plan.hpp"
#include "rpc/wire/wire_declare.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::rpc {

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
  std::int64_t boxes = 1;
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
  std::vector<plan::Stage> stages;
  std::vector<std::uint64_t> stage_bytes;
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

struct ExplainedCollective {
  std::string mesh;
  std::vector<std::string> axes;
  std::vector<std::vector<std::int64_t>> groups;
  std::int64_t length = 0;
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
  std::vector<ExplainedCollective> scalar_collectives;
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
    v.required("scatters", s.scatters, "a reduce-scatter: each of them keeps its part; else an all-reduce");
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
    v.required("bucket", s.bucket, "index of its bucket; 0 on data path stats");
    v.required("offset_bytes", s.offset_bytes, "from the start of the arena; 0 on data path stats");
    v.required("replication", s.replication, "ranks that hold equal bits after sync");
    v.required("boxes", s.boxes, "parts that it is cut into after sync");
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
    v.required("stages", s.stages, "its data collectives, in order, where they travel; on one node they are one sum");
    v.required("stage_bytes", s.stage_bytes, "by stage: what the rank that brings most brings to it");
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
struct Fields<ExplainedCollective> {
  static constexpr const char* kName = "ExplainedCollective";

  static void visit(auto& v, auto& s) {
    v.required("mesh", s.mesh, "name of the mesh");
    v.required("axes", s.axes, "summed over");
    v.required("groups", s.groups, "ranks summed together");
    v.required("length", s.length, "numbers in it, fp64");
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
    v.required("scalar_collectives", s.scalar_collectives, "sums of the norm between ranks, in run order");
  }
};

}  // namespace gradsync::rpc
