#pragma once
// Everything derived from a job's declaration. A pure function of (meshes, declarations, bucket sizes): every rank and
// every daemon that sees the same declaration makes the same plan, bit for bit, and `digest` says so.

#include "plan/declaration.hpp"
#include "plan/layout/reduction.hpp"
#include "plan/mesh/mesh.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::plan {

/// One rank's part of a tensor after sync.
struct Holding {
  std::uint32_t rank = 0;
  std::uint32_t row = 0;       ///< position in that rank's declaration
  std::uint32_t box = 0;       ///< which box of the tensor; boxes are numbered by offset
  std::uint64_t elements = 0;  ///< the elements of that box; before sync the rank may hold more
  friend bool operator==(const Holding&, const Holding&) = default;
};

/// A rank that takes part in a sum, with the tensor itself (0) or with the k-th of its tied copies.
struct SumMember {
  std::uint32_t rank = 0;
  std::uint32_t copy = 0;
  friend bool operator==(const SumMember&, const SumMember&) = default;
};

/// The members whose inputs are added, and those that get the result. Both are in the order of ranks, which is the
/// order of the additions.
struct RankSum {
  std::vector<SumMember> sources;
  std::vector<SumMember> destinations;
};

/// Runs of elements at equal distances.
struct Stride {
  std::uint64_t count = 1;
  std::uint64_t distance = 0;
  friend bool operator==(const Stride&, const Stride&) = default;
};

/// A box that is not empty, and how it lies in the inputs of those that hold it: in runs, one after the other.
struct PlannedPart {
  std::uint32_t box = 0;
  std::uint32_t sums = 0;  ///< index into Plan::sums
  std::uint64_t elements = 0;
  std::uint64_t first = 0;      ///< element of the input at which it begins
  std::uint64_t run = 0;        ///< elements that lie together
  std::vector<Stride> strides;  ///< strides between runs, innermost first; none: one run
};

/// One tensor as planned. Indices are positions in Plan::tensors; `declaration` is that of its lowest holder.
struct PlannedTensor {
  TensorDeclaration declaration;
  std::uint32_t bucket = 0;                 ///< index into Plan::buckets; data path arena only
  std::uint32_t clip_group = 0;             ///< index into Plan::clip_groups; every held tensor has one (the clip set)
  std::uint32_t norm_group = 0;             ///< index into Plan::norm_groups (the norm set)
  std::int64_t replication = 1;             ///< ranks that hold equal bits after sync
  std::int64_t counted_elements = 0;        ///< logical elements counted in the norm; 0 for a tied copy
  std::uint32_t counted_as = 0;             ///< its own index; for a tied copy that of the counted tensor
  std::vector<std::int32_t> counted_boxes;  ///< for a tied copy, by box: the equal box of `counted_as`, else −1
  std::vector<Holding> holdings;            ///< by rank
  std::int64_t boxes = 1;                   ///< distinct ones, that tile the shape
  std::vector<PlannedPart> parts;           ///< by box; none for a tied copy; data path arena only
  std::vector<std::uint32_t> copies;        ///< tensors tied to it, that are summed with it; data path arena only
};

/// Tensors with equal (dtype, holders, stages, divisor), flattened together. Launched as one unit, in index order.
struct Bucket {
  DType dtype = DType::Float32;
  std::vector<std::uint32_t> tensors;  ///< in arena order; a tied copy follows the tensor that it is summed with
  std::uint64_t size_bytes = 0;        ///< in the arena of its lowest holder
  std::vector<Stage> stages;           ///< in sync order; none: nothing to reduce
  /// By stage: what the rank that brings most brings to it. On one node the stages are one sum and nothing travels.
  std::vector<std::uint64_t> stage_bytes;
  std::vector<std::string> axes;  ///< the axes of all stages, in stage order
  std::string mesh;
  std::vector<std::vector<std::int64_t>> groups;  ///< holders reduced together, by lowest rank
  double divisor = 1.0;                           ///< applied once, after the sum
};

/// The positions of one rank's tensors in its arena. A tensor's output is its input unless sync scatters it; then the
/// output follows the input, and has as much room as the largest part of any rank.
struct ArenaLayout {
  std::vector<std::uint32_t> tensors;         ///< by row of the declaration: index into Plan::tensors
  std::vector<std::uint64_t> input_offsets;   ///< by row, bytes
  std::vector<std::uint64_t> output_offsets;  ///< by row, bytes
  std::vector<std::uint64_t>
      bucket_offsets;  ///< by bucket, bytes; one more than there are buckets: the last is the end
  std::vector<std::vector<std::uint32_t>> bucket_rows;  ///< by bucket, in arena order

  [[nodiscard]] std::uint64_t bytes() const { return bucket_offsets.back(); }

  friend bool operator==(const ArenaLayout&, const ArenaLayout&) = default;
};

/// A group of tensors whose shards are spread over the same axes after sync. A group without axes needs no
/// communication of scalars.
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
  std::string mesh;                               ///< the mesh of the first norm group that needs it
  std::vector<std::string> axes;                  ///< the axes of that norm group, in mesh order
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
  std::vector<std::vector<RankSum>> sums;  ///< by part: more than one where it is replicated; data path arena only
  std::vector<ArenaLayout> layouts;        ///< distinct ones; data path arena only
  std::vector<std::uint32_t> layout_of;    ///< by rank: index into `layouts`
  bool rows_are_tensors = true;            ///< every rank declared all tensors, in their order
  std::string digest;                      ///< 16 hex digits, XXH3-64 over the canonical text

  [[nodiscard]] const ArenaLayout& layout(std::int64_t rank) const {
    return layouts[layout_of[static_cast<std::size_t>(rank)]];
  }
};

/// Tensors start at multiples of this in an arena, so that a client can size its arena before it declares.
inline constexpr std::uint64_t kArenaAlignment = 64;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

}  // namespace gradsync::plan
