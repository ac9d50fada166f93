#include "plan/layout/plan_buckets.hpp"

#include "plan/interrupt.hpp"
#include "plan/layout/bucket_assignment.hpp"
#include "plan/layout/reduction.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

namespace gradsync::plan {

namespace {

/// Everything in which the tensors of a bucket agree. A tensor with tied copies has a bucket of its own, because no
/// other tensor's sums run over the same ranks.
struct BucketKind {
  DType dtype = DType::Float32;
  std::size_t mesh = 0;
  std::vector<std::vector<std::int64_t>> groups;
  std::vector<Stage> stages;
  std::vector<std::string> axes;
  double divisor = 1;
  std::int64_t tied = -1;

  /// The divisor by its bits: a key must be a total order.
  [[nodiscard]] auto key() const {
    std::vector<std::tuple<std::vector<std::string>, bool>> kinds;
    for (const Stage& stage : stages) {
      kinds.emplace_back(stage.axes, stage.scatters);
    }
    return std::tuple(dtype, mesh, groups, kinds, std::bit_cast<std::uint64_t>(divisor), tied);
  }
};

/// Ranks that are summed, also where a tensor's part is empty.
std::vector<std::vector<std::int64_t>> groups_of(const Plan& plan, const PlannedTensor& tensor) {
  std::vector<std::vector<std::int64_t>> groups;
  const std::uint32_t first = tensor.parts.front().sums - tensor.parts.front().box;
  for (std::uint32_t sums = first; sums < first + tensor.boxes; ++sums) {
    for (const RankSum& sum : plan.sums[sums]) {
      std::vector<std::int64_t> ranks;
      for (const SumMember& member : sum.sources) {
        ranks.push_back(member.rank);
      }
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      groups.push_back(std::move(ranks));
    }
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

class Kinds {
 public:
  Kinds(const Plan& plan, Declarations by_rank, const Merged& merged)
      : plan_(plan), by_rank_(by_rank), merged_(merged) {}

  std::uint32_t add(std::uint32_t index) {
    const PlannedTensor& tensor = plan_.tensors[index];
    const std::size_t mesh = mesh_index(plan_.meshes, tensor.declaration.mesh);
    const double divisor = divisor_of(tensor.declaration, plan_.meshes[mesh]);
    const std::int64_t tied = tensor.copies.empty() ? -1 : static_cast<std::int64_t>(index);
    // Most tensors are placed like others: those are asked once.
    const auto [quick, unseen] = quick_.emplace(
        std::tuple(
            tensor.declaration.dtype, merged_.tensors[index].placed, std::bit_cast<std::uint64_t>(divisor), tied
        ),
        0
    );
    if (unseen) {
      BucketKind kind;
      kind.dtype = tensor.declaration.dtype;
      kind.mesh = mesh;
      kind.groups = groups_of(plan_, tensor);
      kind.stages = merged_.placed_of(merged_.tensors[index]).stages;
      kind.axes = reduced_axes(tensor.declaration, plan_.meshes[mesh]);
      kind.divisor = divisor;
      kind.tied = tied;
      const auto [number, fresh] = numbers_.emplace(kind.key(), static_cast<std::uint32_t>(kinds_.size()));
      if (fresh) {
        kinds_.push_back(std::move(kind));
      }
      quick->second = number->second;
    }
    return quick->second;
  }

  [[nodiscard]] const BucketKind& operator[](std::uint32_t number) const { return kinds_[number]; }

  /// The bytes of a tensor on its lowest holder, before sync.
  [[nodiscard]] std::uint64_t bytes_of(std::uint32_t index) const {
    const MergedTensor& tensor = merged_.tensors[index];
    const TensorDeclaration& declaration = declaration_of(by_rank_, tensor.rank, tensor.row);
    return static_cast<std::uint64_t>(numel_of(declaration.local_shape)) * size_of(declaration.dtype);
  }

 private:
  const Plan& plan_;
  Declarations by_rank_;
  const Merged& merged_;
  std::vector<BucketKind> kinds_;
  std::map<decltype(std::declval<BucketKind>().key()), std::uint32_t> numbers_;
  std::map<std::tuple<DType, std::uint32_t, std::uint64_t, std::int64_t>, std::uint32_t> quick_;
};

}  // namespace

void plan_buckets(Plan& plan, Declarations by_rank, const Merged& merged, BucketSizes sizes) {
  Kinds kinds(plan, by_rank, merged);
  std::vector<BucketItem> items;
  std::vector<std::uint32_t> tensors;  // of the items: all but tied copies
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    interruption_point();
    if (plan.tensors[i].counted_as == i) {
      items.push_back({kinds.add(i), kinds.bytes_of(i)});
      tensors.push_back(i);
    }
  }
  const bool torch = plan.options.buckets == BucketRule::Torch;
  for (const std::vector<std::uint32_t>& members : torch ? assign_torch_buckets(items) : assign_buckets(items, sizes)) {
    const BucketKind& kind = kinds[items[members.front()].key];
    const auto number = static_cast<std::uint32_t>(plan.buckets.size());
    Bucket& bucket = plan.buckets.emplace_back();
    bucket.dtype = kind.dtype;
    bucket.mesh = plan.meshes[kind.mesh].name;
    bucket.stages = kind.stages;
    bucket.axes = kind.axes;
    bucket.divisor = kind.divisor;
    bucket.groups = kind.groups;
    for (const std::uint32_t item : members) {
      interruption_point();
      const std::uint32_t index = tensors[item];
      bucket.tensors.push_back(index);
      const std::vector<std::uint32_t>& copies = plan.tensors[index].copies;
      bucket.tensors.insert(bucket.tensors.end(), copies.begin(), copies.end());
    }
    for (const std::uint32_t index : bucket.tensors) {
      interruption_point();
      plan.tensors[index].bucket = number;
    }
  }
}

}  // namespace gradsync::plan
