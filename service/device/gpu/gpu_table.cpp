#include "device/gpu/gpu_table.hpp"

#include <utility>

namespace gradsync::device {

namespace {

template <typename Each>
std::uint32_t size_of(const std::vector<Each>& list) {
  return static_cast<std::uint32_t>(list.size());
}

}  // namespace

std::uint32_t GpuTableLists::add_place(std::size_t slot) {
  slots.push_back(slot);
  return size_of(slots) - 1;
}

void GpuTableLists::begin_part() { parts.push_back({size_of(sums), 0}); }

void GpuTableLists::add_sum(const Places& sources, const Places& destinations) {
  const std::uint32_t first = size_of(members);
  sums.push_back({first, size_of(sources), first + size_of(sources), size_of(destinations)});
  members.insert(members.end(), sources.begin(), sources.end());
  members.insert(members.end(), destinations.begin(), destinations.end());
  ++parts.back().sums;
}

void GpuTableLists::add_chunk(const gradsync_reduce_chunk& chunk, const ChunkOf& of) {
  chunks.push_back(chunk);
  of_chunk.push_back(of);
}

std::uint32_t GpuTableLists::add_bucket(double divisor, plan::DType results, plan::DType inputs, bool minus_zeros) {
  const std::uint32_t first = buckets.empty() ? 0 : buckets.back().first_chunk + buckets.back().chunks;
  buckets.push_back(
      {divisor,
       static_cast<std::uint32_t>(results),
       static_cast<std::uint32_t>(inputs),
       first,
       size_of(chunks) - first,
       minus_zeros ? 1U : 0U,
       0}
  );
  return size_of(buckets) - 1;
}

GpuTable::GpuTable(const KernelLibrary& library, GpuTableLists lists, const char* what)
    : library_(library),
      lists_(std::move(lists)),
      addresses_(lists_.slots.size()),
      results_(lists_.chunks.size()),
      nonfinite_(lists_.slots.size()),
      differs_(lists_.sums.size()),
      scales_(lists_.chunks.size()) {
  gradsync_reduce_plan given{};
  given.parts = lists_.parts.data();
  given.sums = lists_.sums.data();
  given.members = lists_.members.data();
  given.chunks = lists_.chunks.data();
  given.buckets = lists_.buckets.data();
  given.places = size_of(lists_.slots);
  given.part_count = size_of(lists_.parts);
  given.sum_count = size_of(lists_.sums);
  given.member_count = size_of(lists_.members);
  given.chunk_count = size_of(lists_.chunks);
  given.bucket_count = size_of(lists_.buckets);
  reduction_ = {library_.create_reduction(&given), ReleaseOnGpu{&library_}};
  library_.must(reduction_ == nullptr ? 1 : 0, what);
  lists_.parts = {};  // the device has them now
  lists_.sums = {};
  lists_.members = {};
  lists_.chunks = {};
}

bool GpuTable::run(LoadedPlan& plan, std::uint32_t bucket, double p, bool compare, const char* what) {
  gradsync_reduce_result result{};
  result.chunks = results_.data() + lists_.buckets[bucket].first_chunk;
  result.nonfinite = nonfinite_.data();
  result.differs = differs_.data();
  library_.must(library_.reduce(reduction_.get(), addresses_.data(), bucket, p, compare ? 1 : 0, &result), what);
  if ((result.found & GRADSYNC_FOUND_NONFINITE) != 0) {
    note_inputs(plan);
  }
  return (result.found & GRADSYNC_FOUND_DIFFERENT) != 0;
}

/// Rare: a sum is not finite, and it has to be known whose value was not.
void GpuTable::note_inputs(LoadedPlan& plan) const {
  for (std::size_t place = 0; place < lists_.slots.size(); ++place) {
    const std::size_t slot = lists_.slots[place];
    if (slot != GpuTableLists::kNoSlot && nonfinite_[place] != 0) {
      plan.attempt().nonfinite[slot].fetch_add(nonfinite_[place], std::memory_order_relaxed);
      plan.flag(static_cast<std::uint32_t>(slot / plan.world()));
    }
  }
}

void GpuTable::take_statistics(LoadedPlan& plan, std::uint32_t bucket, bool replicas) const {
  const gradsync_reduce_bucket& of = lists_.buckets[bucket];
  for (std::uint32_t chunk = of.first_chunk; chunk < of.first_chunk + of.chunks; ++chunk) {
    const gradsync_reduced_chunk& result = results_[chunk];
    ChunkStats stats;
    stats.power_sum = {result.high, result.low};
    stats.maximum = result.maximum;
    stats.nonfinite = result.nonfinite;
    stats.nan = result.nan;
    const auto [tensor, counted] = lists_.of_chunk[chunk];
    if (counted != kNotCounted) {
      plan.attempt().chunk_stats[counted] = stats;
    } else if (stats.nonfinite != 0 && replicas) {
      plan.nodes()->note_replica(tensor, stats);
    }
  }
}

void GpuTable::sum_again(LoadedPlan& plan) {
  std::vector<bool> again(plan.table().chunks.size());
  for (const std::uint32_t index : plan.attempt().rescaled_chunks) {
    again[index] = true;
  }
  for (std::uint32_t bucket = 0; bucket < lists_.buckets.size(); ++bucket) {
    const std::uint32_t first = lists_.buckets[bucket].first_chunk;
    const std::uint32_t end = first + lists_.buckets[bucket].chunks;
    bool any = false;
    for (std::uint32_t chunk = first; chunk < end; ++chunk) {
      const auto [tensor, counted] = lists_.of_chunk[chunk];
      const bool wanted = counted != kNotCounted && again[counted];
      scales_[chunk] = wanted ? plan.attempt().tensors[tensor].sum.scale : 0;
      any = any || wanted;
    }
    if (!any) {
      continue;
    }
    gradsync_reduced_chunk* const results = results_.data() + first;
    const double* const scales = scales_.data() + first;
    const double p = plan.layout().norm_type;
    library_.must(
        library_.sum_powers(reduction_.get(), addresses_.data(), bucket, p, scales, results), "summing again"
    );
    for (std::uint32_t chunk = first; chunk < end; ++chunk) {
      if (scales_[chunk] != 0) {
        plan.attempt().chunk_stats[lists_.of_chunk[chunk].counted].power_sum = {
            results_[chunk].high, results_[chunk].low};
      }
    }
  }
}

}  // namespace gradsync::device
