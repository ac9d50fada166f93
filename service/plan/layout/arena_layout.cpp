#include "plan/layout/arena_layout.hpp"

#include "plan/interrupt.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace gradsync::plan {

namespace {

const Holding* holding_of(const MergedTensor& tensor, std::uint32_t rank) {
  const auto found = std::lower_bound(
      tensor.holdings.begin(), tensor.holdings.end(), rank, [](const Holding& a, std::uint32_t b) { return a.rank < b; }
  );
  return found != tensor.holdings.end() && found->rank == rank ? &*found : nullptr;
}

ArenaLayout layout_for(const Plan& plan, Declarations by_rank, const Merged& merged, std::uint32_t rank) {
  ArenaLayout layout;
  const std::size_t rows = by_rank[rank]->tensors.size();
  layout.tensors.resize(rows);
  layout.input_offsets.resize(rows);
  layout.output_offsets.resize(rows);
  layout.bucket_rows.resize(plan.buckets.size());
  std::uint64_t end = 0;
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    layout.bucket_offsets.push_back(end);
    for (const std::uint32_t tensor : plan.buckets[bucket].tensors) {
      interruption_point();
      const Holding* holding = holding_of(merged.tensors[tensor], rank);
      if (holding == nullptr) {
        continue;
      }
      const TensorDeclaration& declaration = declaration_of(by_rank, rank, holding->row);
      const PlacedRanks& placed = merged.placed_of(merged.tensors[tensor]);
      layout.tensors[holding->row] = tensor;
      layout.bucket_rows[bucket].push_back(holding->row);
      layout.input_offsets[holding->row] = end;
      layout.output_offsets[holding->row] = end;
      end += align_up(static_cast<std::uint64_t>(numel_of(declaration.local_shape)) * size_of(declaration.dtype));
      if (placed.scatters()) {
        layout.output_offsets[holding->row] = end;
        end += align_up(reserved_output_bytes(declaration, placed));
      }
    }
  }
  layout.bucket_offsets.push_back(end);
  return layout;
}

/// Calls `visit(stage, extents)` for each stage of a tensor with the extents that are left before it, on the ranks
/// whose parts are largest.
template <typename Visit>
void before_stages(const TensorDeclaration& tensor, const PlacedRanks& placed, Visit visit) {
  std::vector<std::int64_t> extents = tensor.local_shape;
  const std::vector<Cut>& cuts = placed.ranks.front().cuts;
  std::size_t cut = placed.input_cuts;
  for (std::size_t stage = 0; stage < placed.stages.size(); ++stage) {
    visit(stage, extents);
    if (placed.stages[stage].scatters) {  // one cut each, in the same order
      std::int64_t& extent = extents[cuts[cut].dim];
      extent = extent / cuts[cut].count + (extent % cuts[cut].count != 0 ? 1 : 0);
      ++cut;
    }
  }
  visit(placed.stages.size(), extents);
}

void add_stage_bytes(Plan& plan, Declarations by_rank, const Merged& merged, std::uint32_t rank) {
  const ArenaLayout& layout = plan.layout(rank);
  for (std::size_t number = 0; number < plan.buckets.size(); ++number) {
    Bucket& bucket = plan.buckets[number];
    std::vector<std::uint64_t> bytes(bucket.stages.size() + 1, 0);
    for (const std::uint32_t row : layout.bucket_rows[number]) {
      interruption_point();
      const TensorDeclaration& declaration = declaration_of(by_rank, rank, row);
      const PlacedRanks& placed = merged.placed_of(merged.tensors[layout.tensors[row]]);
      before_stages(declaration, placed, [&](std::size_t stage, const std::vector<std::int64_t>& extents) {
        bytes[stage] += static_cast<std::uint64_t>(numel_of(extents)) * size_of(bucket.dtype);
      });
    }
    bucket.stage_bytes.resize(bucket.stages.size(), 0);
    for (std::size_t stage = 0; stage < bucket.stages.size(); ++stage) {
      bucket.stage_bytes[stage] = std::max(bucket.stage_bytes[stage], bytes[stage]);
    }
  }
}

bool has_offsets(const RankDeclaration& declaration) {
  return std::any_of(declaration.tensors.begin(), declaration.tensors.end(), [](const TensorDeclaration& tensor) {
    return tensor.local_offset.has_value();
  });
}

bool rows_are_tensors(const Plan& plan) {
  std::vector<std::uint32_t> all(plan.tensors.size());
  std::iota(all.begin(), all.end(), 0U);
  return std::all_of(plan.layouts.begin(), plan.layouts.end(), [&all](const ArenaLayout& layout) {
    return layout.tensors == all;
  });
}

}  // namespace

void plan_layouts(Plan& plan, Declarations by_rank, const Merged& merged) {
  std::unordered_map<const void*, std::uint32_t> of_list;  // ranks that share their tensors are laid out alike
  for (std::uint32_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto [known, fresh] = of_list.try_emplace(by_rank[rank]->tensors.identity(), 0);
    if (!fresh) {
      plan.layout_of.push_back(known->second);
      continue;
    }
    ArenaLayout layout = layout_for(plan, by_rank, merged, rank);
    const auto same = std::find(plan.layouts.begin(), plan.layouts.end(), layout);
    known->second = static_cast<std::uint32_t>(same - plan.layouts.begin());
    plan.layout_of.push_back(known->second);
    if (same == plan.layouts.end()) {
      plan.layouts.push_back(std::move(layout));
      add_stage_bytes(plan, by_rank, merged, rank);
    } else if (has_offsets(*by_rank[rank])) {  // else the same on all ranks that are laid out alike
      add_stage_bytes(plan, by_rank, merged, rank);
    }
  }
  plan.rows_are_tensors = rows_are_tensors(plan);
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    const std::uint32_t holder = merged.tensors[plan.buckets[bucket].tensors.front()].rank;
    const std::vector<std::uint64_t>& offsets = plan.layout(holder).bucket_offsets;
    plan.buckets[bucket].size_bytes = offsets[bucket + 1] - offsets[bucket];
  }
}

std::uint64_t reserved_output_bytes(const TensorDeclaration& tensor, const PlacedRanks& placed) {
  std::int64_t elements = 0;
  before_stages(tensor, placed, [&](std::size_t /*stage*/, const std::vector<std::int64_t>& extents) {
    elements = numel_of(extents);  // the last: what is left after all of them
  });
  return static_cast<std::uint64_t>(elements) * size_of(tensor.dtype);
}

}  // namespace gradsync::plan
