#include "device/gpu/gpu_plan.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

std::uint32_t input_place(std::size_t slot) { return static_cast<std::uint32_t>(2 * slot); }

std::uint32_t output_place(std::size_t slot) { return static_cast<std::uint32_t>(2 * slot + 1); }

/// Whether the step that is multiplied was reduced here: another lane has the other buckets of a plan that is shared.
bool is_here(const LoadedPlan& plan, std::uint32_t tensor) {
  return plan.attempt().buckets[plan.layout().tensors[tensor].bucket].reduced == plan.attempt().applied;
}

}  // namespace

/// The lists of a `gradsync_reduce_plan`.
struct GpuPlan::Lists {
  std::vector<gradsync_reduce_part> parts;
  std::vector<gradsync_reduce_sum> sums;
  std::vector<std::uint32_t> members;
  std::vector<gradsync_reduce_chunk> chunks;
  std::vector<gradsync_reduce_bucket> buckets;
  std::vector<Chunks> of_part;  ///< by part of the plan: those of the table

  template <typename Place>
  std::uint32_t add_members(
      const LoadedPlan& plan, std::uint32_t tensor, const std::vector<LaneMember>& list, Place place
  ) {
    const auto first = static_cast<std::uint32_t>(members.size());
    for (const LaneMember& member : list) {
      members.push_back(place(plan.slot(tensor, member)));
    }
    return first;
  }

  void add_sum(const LoadedPlan& plan, std::uint32_t tensor, const LaneSum& sum) {
    gradsync_reduce_sum entry{};
    entry.first_source = add_members(plan, tensor, sum.sources, input_place);
    entry.sources = static_cast<std::uint32_t>(sum.sources.size());
    entry.first_destination = add_members(plan, tensor, sum.destinations, output_place);
    entry.destinations = static_cast<std::uint32_t>(sum.destinations.size());
    sums.push_back(entry);
    ++parts.back().sums;
  }

  void begin_part() { parts.push_back({static_cast<std::uint32_t>(sums.size()), 0}); }
};

GpuPlan::GpuPlan(const KernelLibrary& library, const LoadedPlan& plan) : library_(library) {
  make_reduction(plan);
  make_groups(plan);
  if (plan.nodes() != nullptr) {
    blocks_ = std::make_unique<GpuBlocks>(library, plan);
  }
}

/// Where some sums of a part are elsewhere, or travel, each one that is here is by itself: the first sum of the plan is
/// counted, wherever it is made, and not the first one with a contribution.
void GpuPlan::add_parts(const LoadedPlan& plan, std::uint32_t number, Lists& lists) {
  const LanePart& part = plan.layout().parts[number];
  const std::vector<LaneSum>& sums = plan.sums_of(part);
  const NodePlan* const nodes = plan.nodes();
  const bool together = nodes == nullptr || nodes->all_here[part.sums];
  const auto first = static_cast<std::uint32_t>(lists.parts.size());
  if (together) {
    lists.begin_part();
  }
  for (std::size_t sum = 0; sum < sums.size(); ++sum) {
    if (!together && !nodes->is_here(part, sum)) {
      continue;
    }
    if (!together) {
      lists.begin_part();
    }
    lists.add_sum(plan, part.tensor, sums[sum]);
  }
  lists.of_part.push_back({first, static_cast<std::uint32_t>(lists.parts.size()) - first});
}

void GpuPlan::add_chunks(const LoadedPlan& plan, std::uint32_t index, Lists& lists) {
  const Chunk& chunk = plan.table().chunks[index];
  const LanePart& held = plan.part_of(chunk);
  const std::uint64_t distance = chunk.runs == 1 ? 0 : held.strides[0].distance;
  const Chunks parts = lists.of_part[chunk.part];
  const bool together = plan.nodes() == nullptr || plan.nodes()->all_here[held.sums];
  for (std::uint32_t part = parts.first; part < parts.first + parts.count; ++part) {
    lists.chunks.push_back({chunk.source, chunk.first, distance, chunk.run, chunk.runs, part, 0});
    chunks_.push_back({index, together || (part == parts.first && plan.nodes()->is_here(held, 0))});
  }
}

void GpuPlan::make_reduction(const LoadedPlan& plan) {
  Lists lists;
  for (std::uint32_t part = 0; part < plan.layout().parts.size(); ++part) {
    first_sum_.push_back(static_cast<std::uint32_t>(lists.sums.size()));
    add_parts(plan, part, lists);
  }
  for (const LaneBucket& bucket : plan.layout().buckets) {
    const auto first = static_cast<std::uint32_t>(lists.chunks.size());
    for (const std::uint32_t tensor : bucket.tensors) {
      const ChunkRange range = plan.table().of_tensor[tensor];
      for (std::uint32_t index = range.begin; index < range.end; ++index) {
        add_chunks(plan, index, lists);
      }
    }
    const std::uint32_t count = static_cast<std::uint32_t>(lists.chunks.size()) - first;
    const auto dtype = static_cast<std::uint32_t>(bucket.dtype);
    of_bucket_.push_back({first, count});
    lists.buckets.push_back({bucket.divisor, dtype, dtype, first, count, 0, 0});
  }
  gradsync_reduce_plan given{};
  given.parts = lists.parts.data();
  given.sums = lists.sums.data();
  given.members = lists.members.data();
  given.chunks = lists.chunks.data();
  given.buckets = lists.buckets.data();
  given.places = static_cast<std::uint32_t>(2 * plan.layout().tensors.size() * plan.world());
  given.part_count = static_cast<std::uint32_t>(lists.parts.size());
  given.sum_count = static_cast<std::uint32_t>(lists.sums.size());
  given.member_count = static_cast<std::uint32_t>(lists.members.size());
  given.chunk_count = static_cast<std::uint32_t>(lists.chunks.size());
  given.bucket_count = static_cast<std::uint32_t>(lists.buckets.size());
  reduction_ = {library_.create_reduction(&given), ReleaseOnGpu{&library_}};
  library_.must(reduction_ == nullptr ? 1 : 0, "the tables of the plan");
  addresses_.resize(given.places);
  nonfinite_.resize(given.places);
  differs_.resize(given.sum_count);
  results_.resize(given.chunk_count);
  scales_.resize(given.chunk_count);
}

void GpuPlan::make_groups(const LoadedPlan& plan) {
  groups_.resize(plan.layout().clip_groups);
  for (std::uint32_t part = 0; part < plan.layout().parts.size(); ++part) {
    const LanePart& held = plan.layout().parts[part];
    if (held.elements == 0) {
      continue;
    }
    const std::vector<LaneSum>& sums = plan.sums_of(held);
    for (std::uint32_t sum = 0; sum < sums.size(); ++sum) {
      for (const LaneMember& member : sums[sum].destinations) {
        groups_[plan.layout().tensors[held.tensor].clip_group].outputs.push_back({part, sum, member});
      }
    }
  }
  for (Group& group : groups_) {
    load(group, plan);
  }
}

void GpuPlan::load(Group& group, const LoadedPlan& plan) const {
  std::vector<gradsync_tensor> tensors;
  for (const Output& output : group.outputs) {
    const LanePart& part = plan.layout().parts[output.part];
    tensors.push_back({part.elements, static_cast<std::uint32_t>(plan.bucket_of(part.tensor).dtype), 0});
  }
  group.table = {
      library_.create_table(tensors.data(), static_cast<std::uint32_t>(tensors.size())), ReleaseOnGpu{&library_}};
  library_.must_table(group.table == nullptr ? 1 : 0, "the tables of a clip group");
  group.memory =
      allocated_on_gpu(library_, library_.table_memory(group.table.get()), "memory for the tables of a clip group");
  library_.must_table(
      library_.load_table(group.table.get(), group.memory.get(), nullptr), "the tables of a clip group"
  );
  group.addresses.resize(group.outputs.size());
}

/// Says who contributes to the tensors of the bucket, and where they lie.
void GpuPlan::place(const LoadedPlan& plan, const LaneBucket& bucket) {
  for (const std::uint32_t tensor : bucket.tensors) {
    const bool absent = plan.attempt().tensors[tensor].absent;
    for (std::uint32_t rank = 0; rank < plan.world(); ++rank) {
      if (!plan.is_here(rank)) {
        continue;
      }
      const std::size_t slot = plan.slot(tensor, rank);
      const bool unused = plan.attempt().unused[slot] != 0;
      addresses_[input_place(slot)] = unused ? 0 : gpu_address(plan.input_of(tensor, rank));
      addresses_[output_place(slot)] = absent ? 0 : gpu_address(plan.output_of(tensor, rank));
    }
  }
}

void GpuPlan::reduce(LoadedPlan& plan, std::uint32_t bucket, bool compare) {
  plan.attempt().buckets[bucket].deferred = false;
  place(plan, plan.layout().buckets[bucket]);
  gradsync_reduce_result result{};
  result.chunks = results_.data() + of_bucket_[bucket].first;
  result.nonfinite = nonfinite_.data();
  result.differs = differs_.data();
  const int compares = compare && plan.nodes() == nullptr ? 1 : 0;  // over nodes that is a pass of its own
  library_.must(
      library_.reduce(reduction_.get(), addresses_.data(), bucket, plan.layout().norm_type, compares, &result),
      "reducing a bucket"
  );
  take(plan, bucket, result);
}

void GpuPlan::take(LoadedPlan& plan, std::uint32_t bucket, const gradsync_reduce_result& result) {
  const Chunks chunks = of_bucket_[bucket];
  for (std::uint32_t index = chunks.first; index < chunks.first + chunks.count; ++index) {
    const gradsync_reduced_chunk& chunk = results_[index];
    ChunkStats stats;
    stats.power_sum = {chunk.high, chunk.low};
    stats.maximum = chunk.maximum;
    stats.nonfinite = chunk.nonfinite;
    stats.nan = chunk.nan;
    if (chunks_[index].counted) {
      plan.attempt().chunk_stats[chunks_[index].chunk] = stats;
    } else if (stats.nonfinite != 0) {
      plan.nodes()->note_replica(plan.part_of(plan.table().chunks[chunks_[index].chunk]).tensor, stats);
    }
  }
  take_findings(plan, result);
}

void GpuPlan::take_findings(LoadedPlan& plan, const gradsync_reduce_result& result) {
  if ((result.found & GRADSYNC_FOUND_NONFINITE) != 0) {
    for (std::size_t slot = 0; slot < plan.layout().tensors.size() * plan.world(); ++slot) {
      if (const std::uint64_t inputs = nonfinite_[input_place(slot)]; inputs != 0) {
        plan.attempt().nonfinite[slot].fetch_add(inputs, std::memory_order_relaxed);
        plan.flag(static_cast<std::uint32_t>(slot / plan.world()));
      }
    }
  }
  if ((result.found & GRADSYNC_FOUND_DIFFERENT) != 0) {
    for (std::uint32_t part = 0; part < plan.layout().parts.size(); ++part) {
      const LanePart& held = plan.layout().parts[part];
      const std::vector<LaneSum>& sums = plan.sums_of(held);
      for (std::uint32_t sum = 0; sum < sums.size(); ++sum) {
        if (differs_[first_sum_[part] + sum] == 0) {
          continue;
        }
        for (const LaneMember& destination : sums[sum].destinations) {
          plan.attempt().differs[plan.slot(held.tensor, destination.rank)].store(1, std::memory_order_relaxed);
        }
        plan.flag(held.tensor);
      }
    }
  }
}

void GpuPlan::sum_again(LoadedPlan& plan) {
  std::vector<bool> again(plan.table().chunks.size());
  for (const std::uint32_t index : plan.attempt().rescaled_chunks) {
    again[index] = true;
  }
  for (std::uint32_t bucket = 0; bucket < of_bucket_.size(); ++bucket) {
    const Chunks chunks = of_bucket_[bucket];
    bool any = false;
    for (std::uint32_t index = chunks.first; index < chunks.first + chunks.count; ++index) {
      const ChunkOf of = chunks_[index];
      const bool wanted = of.counted && again[of.chunk];
      const std::uint32_t tensor = plan.part_of(plan.table().chunks[of.chunk]).tensor;
      scales_[index] = wanted ? plan.attempt().tensors[tensor].sum.scale : 0;
      any = any || wanted;
    }
    if (!any) {
      continue;
    }
    library_.must(
        library_.sum_powers(
            reduction_.get(),
            addresses_.data(),
            bucket,
            plan.layout().norm_type,
            scales_.data() + chunks.first,
            results_.data() + chunks.first
        ),
        "summing again"
    );
    for (std::uint32_t index = chunks.first; index < chunks.first + chunks.count; ++index) {
      if (scales_[index] != 0) {
        plan.attempt().chunk_stats[chunks_[index].chunk].power_sum = {results_[index].high, results_[index].low};
      }
    }
  }
  if (blocks_ != nullptr) {
    blocks_->sum_again(plan);
  }
}

void GpuPlan::multiply(const LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes) {
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    const plan::ClipOutcome& outcome = outcomes[index];
    if (outcome.action == plan::StepAction::Zero) {
      write_zeros(plan, groups_[index]);
    } else if (outcome.multiply && outcome.multiplier != 1) {
      scale(plan, groups_[index], outcome.multiplier);
    }
  }
  library_.must(library_.wait(), "multiplying");  // the report says that gradients may be read
}

void GpuPlan::scale_outputs(const LoadedPlan& plan, const ScaleGradients& command, const OutputScaling& scaling) {
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    Group& group = groups_[index];
    bool any = false;
    for (std::size_t i = 0; i < group.outputs.size(); ++i) {
      const Output& output = group.outputs[i];
      const OutputScaling::Change change = scaling.of(output.part, output.sum);
      const bool multiplies = change == OutputScaling::Change::Multiply;
      if (change == OutputScaling::Change::Zeros) {
        write_zeros(plan, output);
      }
      group.addresses[i] = multiplies ? gpu_address(memory_of(plan, output)) : 0;
      any = any || multiplies;
    }
    if (any) {
      scale_placed(group, command.outcomes[index].multiplier);
    }
  }
  library_.must(library_.wait(), "scaling outputs");  // as above
}

std::byte* GpuPlan::memory_of(const LoadedPlan& plan, const Output& output) {
  const std::uint32_t tensor = plan.layout().parts[output.part].tensor;
  return plan.output_of(plan.memory_of(tensor, output.member), output.member.rank);
}

/// Zeros are written and not multiplied, because NaN times 0 is NaN.
void GpuPlan::write_zeros(const LoadedPlan& plan, const Group& group) const {
  for (const Output& output : group.outputs) {
    const std::uint32_t tensor = plan.layout().parts[output.part].tensor;
    if (!plan.attempt().tensors[tensor].absent && is_here(plan, tensor)) {
      write_zeros(plan, output);
    }
  }
}

void GpuPlan::write_zeros(const LoadedPlan& plan, const Output& output) const {
  const LanePart& part = plan.layout().parts[output.part];
  const std::uint64_t bytes = part.elements * plan::size_of(plan.bucket_of(part.tensor).dtype);
  library_.must(library_.zero(memory_of(plan, output), bytes), "writing zeros");
}

void GpuPlan::scale(const LoadedPlan& plan, Group& group, double multiplier) {
  for (std::size_t i = 0; i < group.outputs.size(); ++i) {
    const Output& output = group.outputs[i];
    const LanePart& part = plan.layout().parts[output.part];
    const TensorState& state = plan.attempt().tensors[part.tensor];
    const bool written = is_here(plan, part.tensor) && !state.absent &&
                         (!state.incomplete || plan.contributed(part.tensor, plan.sums_of(part)[output.sum]));
    group.addresses[i] = written ? gpu_address(memory_of(plan, output)) : 0;
  }
  scale_placed(group, multiplier);
}

void GpuPlan::scale_placed(Group& group, double multiplier) const {
  library_.must_table(
      library_.scale(group.table.get(), group.memory.get(), group.addresses.data(), multiplier, nullptr), "multiplying"
  );
}

}  // namespace gradsync::device
