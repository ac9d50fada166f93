#include "device/gpu/gpu_plan.hpp"

#include <utility>

namespace gradsync::device {

namespace {

std::uint32_t input_place(std::size_t slot) { return static_cast<std::uint32_t>(2 * slot); }

std::uint32_t output_place(std::size_t slot) { return static_cast<std::uint32_t>(2 * slot + 1); }

/// The table of the sums of a plan that are here as a whole.
class PlanLists {
 public:
  explicit PlanLists(const LoadedPlan& plan) : plan_(plan) {
    const std::size_t slots = plan.layout().tensors.size() * plan.world();
    for (std::size_t slot = 0; slot < slots; ++slot) {
      lists_.add_place(slot);
      lists_.add_place();
    }
  }

  /// Where some sums of a part are elsewhere, or travel, each one that is here is by itself: the first sum of the plan
  /// is counted, wherever it is made, and not the first one with a contribution. Returns the number of its first sum.
  std::uint32_t add_part(std::uint32_t number) {
    const LanePart& part = plan_.layout().parts[number];
    const std::vector<LaneSum>& sums = plan_.sums_of(part);
    const auto first_sum = static_cast<std::uint32_t>(lists_.sums.size());
    const auto first = static_cast<std::uint32_t>(lists_.parts.size());
    if (together(part)) {
      lists_.begin_part();
    }
    for (std::size_t sum = 0; sum < sums.size(); ++sum) {
      if (!together(part)) {
        if (!plan_.nodes()->is_here(part, sum)) {
          continue;
        }
        lists_.begin_part();
      }
      lists_.add_sum(
          places(part.tensor, sums[sum].sources, input_place), places(part.tensor, sums[sum].destinations, output_place)
      );
    }
    of_part_.push_back({first, static_cast<std::uint32_t>(lists_.parts.size())});
    return first_sum;
  }

  void add_bucket(const LaneBucket& bucket) {
    for (const std::uint32_t tensor : bucket.tensors) {
      const ChunkRange range = plan_.table().of_tensor[tensor];
      for (std::uint32_t index = range.begin; index < range.end; ++index) {
        add_chunks(index);
      }
    }
    lists_.add_bucket(bucket.divisor, bucket.dtype, bucket.dtype, false);
  }

  [[nodiscard]] GpuTableLists take() { return std::move(lists_); }

 private:
  [[nodiscard]] bool together(const LanePart& part) const {
    return plan_.nodes() == nullptr || plan_.nodes()->all_here[part.sums];
  }

  template <typename Place>
  [[nodiscard]] GpuTableLists::Places places(std::uint32_t tensor, const std::vector<LaneMember>& members, Place place)
      const {
    GpuTableLists::Places made;
    for (const LaneMember& member : members) {
      made.push_back(place(plan_.slot(tensor, member)));
    }
    return made;
  }

  void add_chunks(std::uint32_t index) {
    const Chunk& chunk = plan_.table().chunks[index];
    const LanePart& held = plan_.part_of(chunk);
    const std::uint64_t distance = chunk.runs == 1 ? 0 : held.strides[0].distance;
    const ChunkRange parts = of_part_[chunk.part];
    for (std::uint32_t part = parts.begin; part < parts.end; ++part) {
      const bool counted = together(held) || (part == parts.begin && plan_.nodes()->is_here(held, 0));
      lists_.add_chunk(
          {chunk.source, chunk.first, distance, chunk.run, chunk.runs, part, 0},
          {held.tensor, counted ? index : kNotCounted}
      );
    }
  }

  const LoadedPlan& plan_;
  GpuTableLists lists_;
  std::vector<ChunkRange> of_part_;  ///< by part of the plan: those of the table
};

/// Whether the step that is multiplied was reduced here: another lane has the other buckets of a plan that is shared.
bool is_here(const LoadedPlan& plan, std::uint32_t tensor) {
  return plan.attempt().buckets[plan.layout().tensors[tensor].bucket].reduced == plan.attempt().applied;
}

}  // namespace

GpuPlan::GpuPlan(const KernelLibrary& library, const LoadedPlan& plan)
    : library_(library), table_(library, make_lists(plan), "the tables of the plan") {
  make_groups(plan);
  if (plan.nodes() != nullptr) {
    blocks_ = std::make_unique<GpuBlocks>(library, plan);
  }
}

GpuTableLists GpuPlan::make_lists(const LoadedPlan& plan) {
  PlanLists lists(plan);
  for (std::uint32_t part = 0; part < plan.layout().parts.size(); ++part) {
    first_sum_.push_back(lists.add_part(part));
  }
  for (const LaneBucket& bucket : plan.layout().buckets) {
    lists.add_bucket(bucket);
  }
  return lists.take();
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
      table_.place(input_place(slot), unused ? nullptr : plan.input_of(tensor, rank));
      table_.place(output_place(slot), absent ? nullptr : plan.output_of(tensor, rank));
    }
  }
}

void GpuPlan::reduce(LoadedPlan& plan, std::uint32_t bucket, bool compare) {
  plan.attempt().buckets[bucket].deferred = false;
  place(plan, plan.layout().buckets[bucket]);
  const bool compares = compare && plan.nodes() == nullptr;  // over nodes that is a pass of its own
  const bool differ = table_.run(plan, bucket, plan.layout().norm_type, compares, "reducing a bucket");
  table_.take_statistics(plan, bucket, true);
  if (differ) {
    note_differences(plan);
  }
}

void GpuPlan::note_differences(LoadedPlan& plan) const {
  for (std::uint32_t part = 0; part < plan.layout().parts.size(); ++part) {
    const LanePart& held = plan.layout().parts[part];
    const std::vector<LaneSum>& sums = plan.sums_of(held);
    for (std::uint32_t sum = 0; sum < sums.size(); ++sum) {
      if (!table_.differs(first_sum_[part] + sum)) {
        continue;
      }
      for (const LaneMember& destination : sums[sum].destinations) {
        plan.attempt().differs[plan.slot(held.tensor, destination.rank)].store(1, std::memory_order_relaxed);
      }
      plan.flag(held.tensor);
    }
  }
}

void GpuPlan::sum_again(LoadedPlan& plan) {
  table_.sum_again(plan);
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
