#include "device/gpu/gpu_blocks.hpp"

#include "device/transfer/node_contributions.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace gradsync::device {

namespace {

constexpr std::size_t kNoSlot = std::numeric_limits<std::size_t>::max();
constexpr double kNoPowers = std::numeric_limits<double>::infinity();

const plan::BucketTransfer& transfer_of(const LoadedPlan& plan, std::uint32_t bucket) {
  return plan.layout().nodes.transfers[bucket];
}

/// The sum that a piece of a transfer is some elements of, and its part.
struct PieceSum {
  std::uint32_t part = 0;
  std::uint32_t tensor = 0;
  const LaneSum* sum = nullptr;
  std::uint32_t number = 0;  ///< of the sum
};

PieceSum sum_of(const LoadedPlan& plan, const plan::TransferPiece& piece) {
  const std::uint32_t part = plan.layout().tensors[piece.tensor].first_part + piece.part;
  return {part, piece.tensor, &plan.sums_of(plan.layout().parts[part])[piece.sum], piece.sum};
}

}  // namespace

/// The lists of a `gradsync_reduce_plan` in which every part has one sum.
class GpuBlocks::Lists {
 public:
  [[nodiscard]] std::uint32_t places() const { return static_cast<std::uint32_t>(slots.size()); }

  [[nodiscard]] std::uint32_t parts() const { return static_cast<std::uint32_t>(sums_.size()); }

  [[nodiscard]] std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_.size()); }

  std::uint32_t add_place(std::size_t slot = kNoSlot) {
    slots.push_back(slot);
    return places() - 1;
  }

  /// A part whose sum has some sources and destinations, which are places that follow each other.
  void add_part(std::uint32_t first_source, std::uint32_t sources, std::uint32_t first_destination, std::uint32_t to) {
    gradsync_reduce_sum sum{};
    sum.first_source = add_members(first_source, sources);
    sum.sources = sources;
    sum.first_destination = add_members(first_destination, to);
    sum.destinations = to;
    sums_.push_back(sum);
  }

  void add_chunk(const gradsync_reduce_chunk& chunk) { chunks_.push_back(chunk); }

  void add_bucket(const gradsync_reduce_bucket& bucket) { buckets_.push_back(bucket); }

  [[nodiscard]] gradsync_reduction* create(const KernelLibrary& library) {
    std::vector<gradsync_reduce_part> of_parts;
    for (std::uint32_t part = 0; part < parts(); ++part) {
      of_parts.push_back({part, 1});
    }
    gradsync_reduce_plan given{};
    given.parts = of_parts.data();
    given.sums = sums_.data();
    given.members = members_.data();
    given.chunks = chunks_.data();
    given.buckets = buckets_.data();
    given.places = places();
    given.part_count = parts();
    given.sum_count = parts();
    given.member_count = static_cast<std::uint32_t>(members_.size());
    given.chunk_count = chunks();
    given.bucket_count = static_cast<std::uint32_t>(buckets_.size());
    return library.create_reduction(&given);
  }

  std::vector<std::size_t> slots;  ///< by place

 private:
  std::uint32_t add_members(std::uint32_t first, std::uint32_t count) {
    const auto at = static_cast<std::uint32_t>(members_.size());
    for (std::uint32_t place = first; place < first + count; ++place) {
      members_.push_back(place);
    }
    return at;
  }

  std::vector<gradsync_reduce_sum> sums_;
  std::vector<std::uint32_t> members_;
  std::vector<gradsync_reduce_chunk> chunks_;
  std::vector<gradsync_reduce_bucket> buckets_;
};

GpuBlocks::GpuBlocks(const KernelLibrary& library, const LoadedPlan& plan) : library_(library) {
  Lists lists;
  make_passes(plan, lists);
  slots_ = lists.slots;
  reduction_ = {lists.create(library), ReleaseOnGpu{&library}};
  library_.must(reduction_ == nullptr ? 1 : 0, "the tables of the plan's blocks");
  addresses_.resize(lists.places());
  nonfinite_.resize(lists.places());
  differs_.resize(lists.parts());
  results_.resize(lists.chunks());
  scales_.resize(lists.chunks());
}

void GpuBlocks::make_passes(const LoadedPlan& plan, Lists& lists) {
  for (std::uint32_t bucket = 0; bucket < plan.nodes()->buckets.size(); ++bucket) {
    std::vector<std::uint32_t>& sums = sums_.emplace_back();
    std::vector<std::uint32_t>& joins = joins_.emplace_back();
    for (const NodeBlock& block : plan.nodes()->buckets[bucket].blocks) {
      sums.push_back(block.inputs.begin == block.inputs.end ? kNone : add_sum(plan, bucket, block, lists));
      joins.push_back(block.outputs.begin == block.outputs.end ? kNone : add_join(plan, bucket, block, lists));
    }
  }
}

/// Its first place is the staging memory; behind it are the sources of each piece, or one that is never there.
std::uint32_t GpuBlocks::add_sum(const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, Lists& lists) {
  const plan::BucketTransfer& transfer = transfer_of(plan, bucket);
  Pass pass{bucket, lists.add_place(), lists.chunks()};
  const plan::TransferBlock& of = transfer.blocks[block.block];
  const std::uint32_t first_part = lists.parts();
  for (const plan::TransferPiece& piece : transfer.pieces_of(of)) {
    const PieceSum found = sum_of(plan, piece);
    const std::uint32_t first = lists.places();
    for (const LaneMember& source : found.sum->sources) {
      lists.add_place(plan.slot(found.tensor, source));
    }
    if (found.sum->sources.empty()) {
      lists.add_place();
    }
    lists.add_part(first, lists.places() - first, pass.first_place, 1);
  }
  for (std::uint32_t at = block.inputs.begin; at < block.inputs.end; ++at) {
    const BlockChunk& chunk = plan.nodes()->buckets[bucket].inputs[at];
    const std::uint64_t distance = chunk.chunk.runs == 1 ? 0 : plan.part_of(chunk.chunk).strides[0].distance;
    const std::uint32_t part = first_part + chunk.piece - of.first_piece;
    lists.add_chunk({chunk.chunk.source, chunk.at, distance, chunk.chunk.run, chunk.chunk.runs, part, 0});
  }
  lists.add_bucket(
      {1.0,
       static_cast<std::uint32_t>(transfer.sum),
       static_cast<std::uint32_t>(transfer.result),
       pass.first_chunk,
       lists.chunks() - pass.first_chunk,
       1,
       0}
  );
  passes_.push_back(std::move(pass));
  return static_cast<std::uint32_t>(passes_.size() - 1);
}

/// For each piece a place for the staging memory, so that it can be left out by itself, and one for each destination.
std::uint32_t GpuBlocks::add_join(const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, Lists& lists) {
  const plan::BucketTransfer& transfer = transfer_of(plan, bucket);
  Pass pass{bucket, lists.places(), lists.chunks()};
  const plan::TransferBlock& of = transfer.blocks[block.block];
  std::vector<std::uint32_t> part_of_piece;
  for (const plan::TransferPiece& piece : transfer.pieces_of(of)) {
    const PieceSum found = sum_of(plan, piece);
    const auto destinations = static_cast<std::uint32_t>(found.sum->destinations.size());
    const std::uint32_t staged = lists.add_place();
    for (std::uint32_t at = 0; at < destinations; ++at) {
      lists.add_place();
    }
    part_of_piece.push_back(destinations == 0 ? kNone : lists.parts());
    if (destinations != 0) {
      lists.add_part(staged, 1, staged + 1, destinations);
    }
  }
  for (std::uint32_t at = block.outputs.begin; at < block.outputs.end; ++at) {
    const BlockChunk& chunk = plan.nodes()->buckets[bucket].outputs[at];
    if (const std::uint32_t part = part_of_piece[chunk.piece - of.first_piece]; part != kNone) {
      lists.add_chunk({chunk.at, chunk.chunk.first, 0, static_cast<std::uint32_t>(chunk.chunk.count()), 1, part, 0});
      pass.chunks.push_back(at);
    }
  }
  lists.add_bucket(
      {plan.layout().buckets[bucket].divisor,
       static_cast<std::uint32_t>(transfer.result),
       static_cast<std::uint32_t>(transfer.sum),
       pass.first_chunk,
       lists.chunks() - pass.first_chunk,
       0,
       0}
  );
  passes_.push_back(std::move(pass));
  return static_cast<std::uint32_t>(passes_.size() - 1);
}

void GpuBlocks::place_sum(const LoadedPlan& plan, const Pass& pass, const NodeBlock& block, const StagedBlock& staged) {
  const plan::BucketTransfer& transfer = transfer_of(plan, pass.bucket);
  std::uint32_t place = pass.first_place;
  addresses_[place++] = gpu_address(staged.own);
  for (const plan::TransferPiece& piece : transfer.pieces_of(transfer.blocks[block.block])) {
    const PieceSum found = sum_of(plan, piece);
    for (const LaneMember& source : found.sum->sources) {
      const bool unused = plan.attempt().unused[plan.slot(found.tensor, source)] != 0;
      const std::byte* const input = plan.input_of(plan.memory_of(found.tensor, source), source.rank);
      addresses_[place++] = unused ? 0 : gpu_address(input);
    }
    place += found.sum->sources.empty() ? 1 : 0;
  }
}

/// What nobody contributed to is neither counted nor written.
void GpuBlocks::place_join(
    const LoadedPlan& plan, const Pass& pass, const NodeBlock& block, const StagedBlock& staged
) {
  const plan::BucketTransfer& transfer = transfer_of(plan, pass.bucket);
  std::uint32_t place = pass.first_place;
  for (const plan::TransferPiece& piece : transfer.pieces_of(transfer.blocks[block.block])) {
    const PieceSum found = sum_of(plan, piece);
    const bool contributed = plan.nodes()->known(found.part, found.number) == SumKnown::Contributed;
    addresses_[place++] = contributed ? gpu_address(staged.own) : 0;
    for (const LaneMember& destination : found.sum->destinations) {
      const std::byte* const output = plan.output_of(plan.memory_of(found.tensor, destination), destination.rank);
      addresses_[place++] = contributed ? gpu_address(output) : 0;
    }
  }
}

void GpuBlocks::run(
    LoadedPlan& plan, BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged
) {
  const auto at = static_cast<std::size_t>(&block - plan.nodes()->buckets[bucket].blocks.data());
  const bool sums = kind == BlockTask::Kind::Sum;
  const std::uint32_t number = (sums ? sums_ : joins_)[bucket][at];
  if (number == kNone) {
    return;
  }
  const Pass& pass = passes_[number];
  sums ? place_sum(plan, pass, block, staged) : place_join(plan, pass, block, staged);
  gradsync_reduce_result result{};
  result.chunks = results_.data() + pass.first_chunk;
  result.nonfinite = nonfinite_.data();
  result.differs = differs_.data();
  const double p = sums ? kNoPowers : plan.layout().norm_type;
  library_.must(
      library_.reduce(reduction_.get(), addresses_.data(), number, p, 0, &result),
      sums ? "summing a block" : "writing the sums of a block"
  );
  if (!sums) {
    take_results(plan, pass, block);
  } else if ((result.found & GRADSYNC_FOUND_NONFINITE) != 0) {
    note_inputs(plan);
  }
}

/// Rare: a sum is not finite, and it has to be known whose value was not.
void GpuBlocks::note_inputs(LoadedPlan& plan) {
  for (std::size_t place = 0; place < slots_.size(); ++place) {
    if (slots_[place] != kNoSlot && nonfinite_[place] != 0) {
      plan.attempt().nonfinite[slots_[place]].fetch_add(nonfinite_[place], std::memory_order_relaxed);
      plan.flag(static_cast<std::uint32_t>(slots_[place] / plan.world()));
    }
  }
}

void GpuBlocks::take_results(LoadedPlan& plan, const Pass& pass, const NodeBlock& block) {
  for (std::size_t at = 0; at < pass.chunks.size(); ++at) {
    const BlockChunk& chunk = plan.nodes()->buckets[pass.bucket].outputs[pass.chunks[at]];
    const gradsync_reduced_chunk& result = results_[pass.first_chunk + at];
    ChunkStats stats;
    stats.power_sum = {result.high, result.low};
    stats.maximum = result.maximum;
    stats.nonfinite = result.nonfinite;
    stats.nan = result.nan;
    if (chunk.counted != kNotCounted) {
      plan.attempt().chunk_stats[chunk.counted] = stats;
    } else if (stats.nonfinite != 0 && block.owned) {  // others have the sum of a collective, too
      plan.nodes()->note_replica(plan.part_of(chunk.chunk).tensor, stats);
    }
  }
}

void GpuBlocks::sum_again(LoadedPlan& plan) {
  std::vector<bool> again(plan.table().chunks.size());
  for (const std::uint32_t index : plan.attempt().rescaled_chunks) {
    again[index] = true;
  }
  for (std::uint32_t number = 0; number < passes_.size(); ++number) {
    const Pass& pass = passes_[number];
    const std::vector<BlockChunk>& outputs = plan.nodes()->buckets[pass.bucket].outputs;
    bool any = false;
    for (std::size_t at = 0; at < pass.chunks.size(); ++at) {
      const BlockChunk& chunk = outputs[pass.chunks[at]];
      const bool wanted = chunk.counted != kNotCounted && again[chunk.counted];
      const std::uint32_t tensor = plan.part_of(chunk.chunk).tensor;
      scales_[pass.first_chunk + at] = wanted ? plan.attempt().tensors[tensor].sum.scale : 0;
      any = any || wanted;
    }
    if (!any) {
      continue;
    }
    gradsync_reduced_chunk* const results = results_.data() + pass.first_chunk;
    const double* const scales = scales_.data() + pass.first_chunk;
    const double p = plan.layout().norm_type;
    library_.must(
        library_.sum_powers(reduction_.get(), addresses_.data(), number, p, scales, results), "summing a block again"
    );
    for (std::size_t at = 0; at < pass.chunks.size(); ++at) {
      if (scales[at] != 0) {
        plan.attempt().chunk_stats[outputs[pass.chunks[at]].counted].power_sum = {results[at].high, results[at].low};
      }
    }
  }
}

}  // namespace gradsync::device
