#include "device/transfer/block_pass.hpp"

#include "device/math/chunk_reference.hpp"
#include "device/transfer/node_contributions.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gradsync::device {

namespace {

constexpr std::uint64_t kBlockTaskElements = 32U << 10;

/// −0.0, the one number that changes no sum.
void write_minus_zeros(plan::DType dtype, std::byte* to, std::size_t count) {
  if (dtype == plan::DType::Float64) {
    std::fill_n(reinterpret_cast<double*>(to), count, -0.0);
  } else if (dtype == plan::DType::Float32) {
    std::fill_n(reinterpret_cast<float*>(to), count, -0.0F);
  } else {
    std::fill_n(reinterpret_cast<std::uint16_t*>(to), count, std::uint16_t{0x8000});  // of both 16-bit formats
  }
}

/// Formats that are alike have code of their own.
ChunkStats reduce_formats(const MixedChunk& chunk, std::vector<const void*>& alike) {
  if (std::ranges::any_of(chunk.sources, [&](const MixedSource& source) { return source.dtype != chunk.dtype; })) {
    return reduce_mixed(chunk);
  }
  alike.clear();
  for (const MixedSource& source : chunk.sources) {
    alike.push_back(source.data);
  }
  ReduceChunk work;
  work.dtype = chunk.dtype;
  work.count = chunk.count;
  work.runs = chunk.runs;
  work.source_distance = chunk.source_distance;
  work.sources = alike;
  work.destinations = chunk.destinations;
  work.divisor = chunk.divisor;
  work.power = chunk.power;
  return reduce_chunk(work);
}

}  // namespace

BlockPass::BlockPass(LoadedPlan& plan, std::size_t threads, const std::atomic<bool>& cancel)
    : plan_(plan), cancel_(cancel), scratch_(threads) {
  const ChunkPointers& most = plan.attempt().pointers.front();
  for (Scratch& scratch : scratch_) {
    scratch.sources.reserve(most.nonfinite.size());
    scratch.alike.reserve(most.nonfinite.size());
    scratch.slots.reserve(most.nonfinite.size());
    scratch.destinations.reserve(most.destinations.capacity() + 1);
  }
}

void BlockPass::add(BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged) {
  const NodeBucket& of = plan_.nodes()->buckets[bucket];
  const bool sums = kind == BlockTask::Kind::Sum;
  const ChunkRange all = sums ? block.inputs : block.outputs;
  std::uint64_t in_task = kBlockTaskElements;
  for (std::uint32_t at = all.begin; at < all.end; ++at) {
    if (in_task >= kBlockTaskElements) {
      tasks_.push_back({kind, bucket, &block, &staged, {at, at}});
      in_task = 0;
    }
    tasks_.back().chunks.end = at + 1;
    in_task += (sums ? of.inputs : of.outputs)[at].chunk.count();
  }
}

void BlockPass::run(WorkerPool& pool) {
  pool.run(static_cast<std::uint32_t>(tasks_.size()), *this);
  tasks_.clear();
}

void BlockPass::run_task(std::uint32_t number, std::size_t worker) noexcept {
  const BlockTask& task = tasks_[number];
  const NodeBucket& bucket = plan_.nodes()->buckets[task.bucket];
  for (std::uint32_t at = task.chunks.begin; at < task.chunks.end; ++at) {
    if (cancel_.load(std::memory_order_relaxed)) {
      return;
    }
    switch (task.kind) {
      case BlockTask::Kind::Sum:
        sum(task, bucket.inputs[at], scratch_[worker]);
        break;
      case BlockTask::Kind::Join:
        join(task, bucket.outputs[at], scratch_[worker]);
        break;
      case BlockTask::Kind::Copy:
        copy(task, bucket.outputs[at], scratch_[worker]);
        break;
    }
  }
}

const LaneSum& BlockPass::sum_of(const BlockTask& task, const BlockChunk& chunk) const {
  return plan_.sums_of(plan_.part_of(chunk.chunk))[transfer_of(task).pieces[chunk.piece].sum];
}

void BlockPass::sum(const BlockTask& task, const BlockChunk& chunk, Scratch& scratch) {
  const plan::BucketTransfer& transfer = transfer_of(task);
  const LanePart& part = plan_.part_of(chunk.chunk);
  const std::size_t width = plan::size_of(transfer.result);
  MixedChunk work;
  work.dtype = task.block->owned ? transfer.sum : transfer.partial;
  scratch.sources.clear();
  scratch.slots.clear();
  for (const LaneMember& source : sum_of(task, chunk).sources) {
    const std::size_t slot = plan_.slot(part.tensor, source);
    if (plan_.attempt().unused[slot] == 0) {
      scratch.sources.push_back({plan_.input(chunk.chunk, source, width), transfer.result});
      scratch.slots.push_back(slot);
    }
  }
  std::byte* const to = task.staged->own + chunk.at * plan::size_of(work.dtype);
  if (scratch.sources.empty()) {
    write_minus_zeros(work.dtype, to, chunk.chunk.count());
    return;
  }
  scratch.destinations.assign(1, to);
  work.count = chunk.chunk.run;
  work.runs = chunk.chunk.runs;
  work.source_distance = chunk.chunk.runs == 1 ? 0 : part.strides[0].distance;
  work.sources = scratch.sources;
  work.destinations = scratch.destinations;
  work.power = PowerKind::None;
  if (reduce_formats(work, scratch.alike).nonfinite != 0) {
    count_inputs(work, scratch);
  }
}

/// Rare: a sum is not finite, and it has to be known whose value was not.
void BlockPass::count_inputs(const MixedChunk& work, const Scratch& scratch) {
  for (std::size_t source = 0; source < work.sources.size(); ++source) {
    const auto* values = static_cast<const std::byte*>(work.sources[source].data);
    const plan::DType dtype = work.sources[source].dtype;
    std::uint64_t found = 0;
    for (std::size_t run = 0; run < work.runs; ++run) {
      found += count_nonfinite(dtype, values + run * work.source_distance * plan::size_of(dtype), work.count);
    }
    if (found != 0) {
      plan_.attempt().nonfinite[scratch.slots[source]].fetch_add(found, std::memory_order_relaxed);
      plan_.flag(static_cast<std::uint32_t>(scratch.slots[source] / plan_.world()));
    }
  }
}

void BlockPass::gather_outputs(const BlockTask& task, const BlockChunk& chunk, std::vector<void*>& destinations) const {
  const plan::BucketTransfer& transfer = transfer_of(task);
  const plan::TransferPiece& piece = transfer.pieces[chunk.piece];
  destinations.clear();
  if (plan_.nodes()->known(chunk.chunk.part, piece.sum) == SumKnown::Contributed) {
    for (const LaneMember& destination : sum_of(task, chunk).destinations) {
      destinations.push_back(plan_.output(chunk.chunk, destination, plan::size_of(transfer.result)));
    }
  }
}

/// Where nobody contributed, the message alone gets the sum of what says so, and nothing is counted.
void BlockPass::join(const BlockTask& task, const BlockChunk& chunk, Scratch& scratch) {
  const plan::BucketTransfer& transfer = transfer_of(task);
  gather_outputs(task, chunk, scratch.destinations);
  const bool contributed = !scratch.destinations.empty();
  const std::size_t width = plan::size_of(transfer.result);
  if (task.staged->result != nullptr) {
    scratch.destinations.push_back(task.staged->result + chunk.at * width);
  }
  ChunkStats stats;
  if (!scratch.destinations.empty()) {
    scratch.sources.clear();
    for (const std::byte* partial : task.staged->partials) {
      const plan::DType dtype = partial == task.staged->own ? transfer.sum : transfer.partial;
      scratch.sources.push_back({partial + chunk.at * plan::size_of(dtype), dtype});
    }
    const double p = plan_.layout().norm_type;
    MixedChunk work;
    work.dtype = transfer.result;
    work.count = chunk.chunk.count();
    work.sources = scratch.sources;
    work.destinations = scratch.destinations;
    work.divisor = plan_.layout().buckets[task.bucket].divisor;
    work.power = plan_.power();
    stats = reduce_formats(work, scratch.alike);
    if (work.power == PowerKind::None && !std::isinf(p)) {
      stats.power_sum = power_sum(transfer.result, scratch.destinations[0], work.count, p, 1);
    }
  }
  stats = contributed ? stats : ChunkStats{};
  if (chunk.counted != kNotCounted) {
    plan_.attempt().chunk_stats[chunk.counted] = stats;
  } else if (stats.nonfinite != 0 && task.block->owned) {  // others have the sum of a collective, too
    plan_.nodes()->note_replica(plan_.part_of(chunk.chunk).tensor, stats);
  }
}

void BlockPass::copy(const BlockTask& task, const BlockChunk& chunk, Scratch& scratch) const {
  const std::size_t width = plan::size_of(transfer_of(task).result);
  gather_outputs(task, chunk, scratch.destinations);
  for (void* destination : scratch.destinations) {
    std::memcpy(destination, task.staged->result + chunk.at * width, chunk.chunk.count() * width);
  }
}

}  // namespace gradsync::device
