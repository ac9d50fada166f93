#pragma once
// The declaration of one rank: plain values that describe its gradients, exactly as they came over the wire.

#include "base/shared_list.hpp"
#include "plan/dtype.hpp"
#include "plan/policy_options.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::plan {

enum class ReduceOp : std::uint8_t { Sum, Mean };

struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};

struct Shard {
  std::int64_t dim = 0;
  friend bool operator==(const Shard&, const Shard&) = default;
};

struct Only {
  std::vector<std::int64_t> at;  ///< coordinates at which the tensor exists
  friend bool operator==(const Only&, const Only&) = default;
};

struct Partial {
  ReduceOp op = ReduceOp::Sum;
  std::optional<Shard> to_shard;  ///< empty: → replicate
  friend bool operator==(const Partial&, const Partial&) = default;
};

using PlacementKind = std::variant<Replicate, Shard, Only, Partial>;

/// The effect of one axis, or of several axes taken as one flattened axis, on a tensor.
struct Placement {
  std::vector<std::string> axes;
  PlacementKind kind;
  friend bool operator==(const Placement&, const Placement&) = default;
};

struct TensorDeclaration {
  std::string name;
  std::vector<std::int64_t> shape;        ///< logical
  std::vector<std::int64_t> local_shape;  ///< what this rank holds before sync
  std::optional<std::vector<std::int64_t>> local_offset;
  DType dtype = DType::Float32;
  std::string mesh;
  std::vector<Placement> placements;
  std::optional<double> divisor;  ///< excludes `mean`
  std::optional<std::string> tied;
  std::string clip_group = "all";
  std::optional<std::string> layer;
  std::vector<std::string> split_order;
  friend bool operator==(const TensorDeclaration&, const TensorDeclaration&) = default;
};

enum class ClipMode : std::uint8_t { Strict, Torch };

/// The meaning of `max_norm == 0`. References disagree about it, so no meaning is assumed.
enum class ZeroRule : std::uint8_t { Refuse, Off, Zero };

struct ClipOptions {
  std::optional<double> max_norm;  ///< empty: measure only; of an adaptive policy the ceiling, empty: none
  ZeroRule zero_rule = ZeroRule::Refuse;
  PolicyOptions policy = {};
  NonfiniteAction nonfinite = NonfiniteAction::Propagate;
  SpikeAction spike = SpikeAction::Clip;
  double spike_factor = kDefaultSpikeFactor;
  std::vector<PolicyOptions> watch = {};  ///< these say what they would have done
  friend bool operator==(const ClipOptions&, const ClipOptions&) = default;
};

struct ClipGroupOptions {
  std::string group;
  ClipOptions clip;
  friend bool operator==(const ClipGroupOptions&, const ClipGroupOptions&) = default;
};

/// The place of the gradients: they lie in arenas that the daemon reduces and multiplies, or they stay with the
/// trainer, which hands over their statistics (docs/adr/0008).
enum class DataPath : std::uint8_t { Arena, Stats };

/// The rule that decides which tensors share a bucket: the plan's own, or that of torch's DistributedDataParallel.
enum class BucketRule : std::uint8_t { Default, Torch };

/// The format in which partial sums travel between nodes; the header of plan/transfer/bucket_transfer.hpp has the
/// error.
enum class PartialSums : std::uint8_t {
  Exact,     ///< float32, and float64 for float64 gradients
  BFloat16,  ///< half the bytes, rounded once more per node; float64 for float64 gradients all the same
};

/// Options that all ranks must declare alike.
struct DeclareOptions {
  DataPath data_path = DataPath::Arena;
  std::int64_t accumulate = 1;
  double norm_type = 2.0;  ///< finite p ≥ 1, or +infinity
  ClipMode mode = ClipMode::Strict;
  std::vector<ClipGroupOptions> clip;  ///< groups not listed only measure
  BucketRule buckets = BucketRule::Default;
  std::string fingerprint;  ///< the name of the function that makes fingerprints of gradients; data path `stats`
  PartialSums partial_sums = PartialSums::Exact;  ///< data path `arena`; nothing to a job on one node
  friend bool operator==(const DeclareOptions&, const DeclareOptions&) = default;
};

/// The number of elements of a shape whose product is known to fit; 0 where any extent is 0, whatever the others are.
[[nodiscard]] inline std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent == 0) {
      return 0;
    }
  }
  for (const std::int64_t extent : shape) {
    elements *= extent;
  }
  return elements;
}

/// The tensors of a declaration: ranks that declare alike hold them once (plan/declaration_pool.hpp).
using TensorList = SharedList<TensorDeclaration>;

/// One rank's whole declaration, all pages merged.
struct RankDeclaration {
  DeclareOptions options;
  TensorList tensors;
  std::vector<std::string>
      weight_fingerprints;  ///< one per tensor ("" where none), or empty; compared, not part of the plan
  std::string measured_by;  ///< what takes this rank's statistics, in words; data path `stats`
};

}  // namespace gradsync::plan
