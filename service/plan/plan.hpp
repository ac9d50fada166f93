#pragma once
// Everything derived from a job's declaration. A pure function of (meshes, declarations, bucket sizes): every rank and
// every daemon that sees the same declaration makes the same plan, bit for bit, and `digest` says so.

#include "plan/declaration.hpp"
#include "plan/mesh.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::plan {

/// One rank's part of a tensor after sync.
struct Holding {
  std::uint32_t rank = 0;
  std::uint32_t row = 0;       ///< position in that rank's declaration
  std::uint32_t box = 0;       ///< which box of the tensor; boxes are numbered by offset
  std::uint64_t elements = 0;  ///< of that box
  friend bool operator==(const Holding&, const Holding&) = default;
};

/// One tensor as planned. Indices are positions in the declaration.
struct PlannedTensor {
  TensorDeclaration declaration;
  std::int64_t numel = 0;                   ///< elements this rank holds
  std::uint32_t bucket = 0;                 ///< index into Plan::buckets
  std::uint64_t offset_bytes = 0;           ///< in the rank's arena; the same on every rank
  std::uint32_t clip_group = 0;             ///< index into Plan::clip_groups; every held tensor has one (the clip set)
  std::uint32_t norm_group = 0;             ///< index into Plan::norm_groups (the norm set)
  std::int64_t replication = 1;             ///< ranks that hold equal bits after sync
  std::int64_t counted_elements = 0;        ///< logical elements counted in the norm; 0 for a tied copy
  std::uint32_t counted_as = 0;             ///< its own index, or that of the tensor whose tied copy it is
  std::vector<std::int32_t> counted_boxes;  ///< of a tied copy, by box: the equal one of `counted_as`, else −1
  std::vector<Holding> holdings;            ///< by rank; data path stats only
  std::int64_t boxes = 1;                   ///< distinct ones, that tile the shape
};

/// Tensors with equal (dtype, reduction), flattened together. Launched as one unit, in index order.
struct Bucket {
  DType dtype = DType::Float32;
  std::vector<std::uint32_t> tensors;  ///< in arena order
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::vector<std::string> axes;  ///< reduced axes in stage order; empty: nothing to reduce
  std::string mesh;
  /// Ranks reduced together. Each rank is in exactly one group; group 0 holds the lowest rank and is counted in the
  /// norm.
  std::vector<std::vector<std::int64_t>> groups;
  double divisor = 1.0;  ///< applied once, after the sum
};

/// Tensors whose shards are spread over the same axes after sync. With no axes no scalar is ever communicated.
struct NormGroup {
  std::string mesh;
  std::vector<std::string> axes;
  std::vector<std::uint32_t> tensors;  ///< the norm set: no tied copies
  std::int32_t sum = -1;               ///< the first scalar sum it goes into; −1: straight into the result
};

/// A sum that travels in a collective.
struct ScalarSum {
  std::uint32_t collective = 0;
  std::int32_t next = -1;  ///< the sum its result is added to, of a later collective; −1: the result
  friend bool operator==(const ScalarSum&, const ScalarSum&) = default;
};

/// One packed vector, summed over the ranks of each group. In the order in which they run. Where `only` puts a tensor
/// at several coordinates, the ranks of the lowest contribute.
struct ScalarCollective {
  std::string mesh;                               ///< of the first norm group that needs it
  std::vector<std::string> axes;                  ///< and its axes there, in mesh order
  std::vector<std::vector<std::int64_t>> groups;  ///< a partition of all ranks; ascending, by lowest rank
  std::vector<std::uint32_t> sums;                ///< indices into Plan::scalar_sums
  std::int64_t length = 0;                        ///< fp64 numbers: 6 per cell; cells: clip groups + layers, per sum
};

/// Tensors clipped by one coefficient.
struct ClipGroup {
  std::string name;
  ClipOptions clip;
  std::vector<std::uint32_t> tensors;
  DType norm_dtype = DType::Float32;  ///< Float64 when a member is; the norm is rounded to it
};

struct Plan {
  std::int64_t world_size = 1;
  std::vector<Mesh> meshes;
  DeclareOptions options;
  std::vector<PlannedTensor> tensors;
  std::vector<Bucket> buckets;  ///< launch order
  std::vector<NormGroup> norm_groups;
  std::vector<ScalarSum> scalar_sums;
  std::vector<ScalarCollective> scalar_collectives;  ///< run order
  std::vector<ClipGroup> clip_groups;
  std::uint64_t arena_bytes = 0;  ///< Σ of the tensors' bytes, each rounded up to kArenaAlignment
  std::string digest;             ///< 16 hex digits, XXH3-64 over the canonical text
};

/// Tensors start at multiples of this in an arena, so that a client can size its arena before it declares.
inline constexpr std::uint64_t kArenaAlignment = 64;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

}  // namespace gradsync::plan
