#include "plan/make_plan.hpp"

#include "base/hash.hpp"
#include "plan/bucket_assignment.hpp"
#include "plan/canonical_text.hpp"
#include "plan/clip_groups.hpp"
#include "plan/reduction.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace gradsync::plan {

namespace {

std::uint64_t bytes_of(const PlannedTensor& tensor) {
  return static_cast<std::uint64_t>(tensor.numel) * size_of(tensor.declaration.dtype);
}

std::vector<PlannedTensor> plan_tensors(const std::vector<TensorDeclaration>& declarations, std::int64_t world_size) {
  std::vector<PlannedTensor> tensors;
  tensors.reserve(declarations.size());
  for (const TensorDeclaration& declaration : declarations) {
    PlannedTensor tensor;
    tensor.declaration = declaration;
    tensor.numel = numel_of(declaration.local_shape);
    // Validation admits only what is equal on every rank after sync.
    tensor.replication = world_size;
    tensor.counted_elements = numel_of(declaration.shape);
    tensor.counted_as = static_cast<std::uint32_t>(tensors.size());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// Everything in which the tensors of a bucket agree.
struct BucketKind {
  DType dtype = DType::Float32;
  std::size_t mesh = 0;
  std::vector<std::string> axes;
  double divisor = 1;

  /// The divisor by its bits: a key must be a total order.
  [[nodiscard]] auto key() const { return std::tuple(dtype, mesh, axes, std::bit_cast<std::uint64_t>(divisor)); }
};

struct Kinds {
  std::vector<BucketKind> kinds;
  std::vector<BucketItem> items;  ///< one per tensor; key: index into kinds
};

Kinds kinds_of(const Plan& plan) {
  Kinds result;
  std::map<decltype(std::declval<BucketKind>().key()), std::uint32_t> numbers;
  result.items.reserve(plan.tensors.size());
  for (const PlannedTensor& tensor : plan.tensors) {
    BucketKind kind;
    kind.dtype = tensor.declaration.dtype;
    kind.mesh = mesh_index(plan.meshes, tensor.declaration.mesh);
    kind.axes = reduced_axes(tensor.declaration, plan.meshes[kind.mesh]);
    kind.divisor = divisor_of(tensor.declaration, plan.meshes[kind.mesh]);
    const auto [number, fresh] = numbers.emplace(kind.key(), static_cast<std::uint32_t>(result.kinds.size()));
    if (fresh) {
      result.kinds.push_back(std::move(kind));
    }
    result.items.push_back({number->second, bytes_of(tensor)});
  }
  return result;
}

/// Buckets in launch order, packed into the arena in that order.
void plan_buckets(Plan& plan, BucketSizes sizes) {
  const Kinds kinds = kinds_of(plan);
  std::vector<std::vector<std::vector<std::int64_t>>> groups;
  groups.reserve(kinds.kinds.size());
  for (const BucketKind& kind : kinds.kinds) {
    groups.push_back(reduction_groups(plan.meshes[kind.mesh], kind.axes));
  }
  for (std::vector<std::uint32_t>& members : assign_buckets(kinds.items, sizes)) {
    const std::uint32_t number = kinds.items[members.front()].key;
    const BucketKind& kind = kinds.kinds[number];
    Bucket bucket;
    bucket.dtype = kind.dtype;
    bucket.mesh = plan.meshes[kind.mesh].name;
    bucket.axes = kind.axes;
    bucket.divisor = kind.divisor;
    bucket.groups = groups[number];
    bucket.offset_bytes = plan.arena_bytes;
    for (const std::uint32_t index : members) {
      PlannedTensor& tensor = plan.tensors[index];
      tensor.bucket = static_cast<std::uint32_t>(plan.buckets.size());
      tensor.offset_bytes = plan.arena_bytes;
      plan.arena_bytes += align_up(bytes_of(tensor));
    }
    bucket.size_bytes = plan.arena_bytes - bucket.offset_bytes;
    bucket.tensors = std::move(members);
    plan.buckets.push_back(std::move(bucket));
  }
}

/// Everything is replicated after sync: one group per mesh, without axes, by first appearance.
void plan_norm_groups(Plan& plan) {
  std::unordered_map<std::string, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const std::string& mesh = plan.tensors[i].declaration.mesh;
    const auto [number, fresh] = numbers.emplace(mesh, static_cast<std::uint32_t>(plan.norm_groups.size()));
    if (fresh) {
      plan.norm_groups.push_back({mesh, {}, {}});
    }
    plan.norm_groups[number->second].tensors.push_back(i);
    plan.tensors[i].norm_group = number->second;
  }
}

}  // namespace

Plan make_plan(
    const RankDeclaration& declaration, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
) {
  Plan plan;
  plan.world_size = world_size;
  plan.meshes = meshes;
  plan.options = declaration.options;
  plan.tensors = plan_tensors(declaration.tensors, world_size);
  plan_buckets(plan, sizes);
  plan_norm_groups(plan);
  plan_clip_groups(plan);
  plan.digest = digest_of(declaration, meshes, world_size, sizes);
  return plan;
}

std::string digest_of(
    const RankDeclaration& declaration, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
) {
  return digest(canonical_text(declaration, meshes, world_size, sizes));
}

}  // namespace gradsync::plan
