#include "device/gpu/gpu_blocks.hpp"

#include "device/transfer/node_contributions.hpp"

#include <limits>

namespace gradsync::device {

namespace {

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

GpuBlocks::GpuBlocks(const KernelLibrary& library, const LoadedPlan& plan)
    : table_(library, make_lists(plan), "the tables of the plan's blocks") {}

GpuTableLists GpuBlocks::make_lists(const LoadedPlan& plan) {
  GpuTableLists lists;
  for (std::uint32_t bucket = 0; bucket < plan.nodes()->buckets.size(); ++bucket) {
    std::vector<std::uint32_t>& sums = sums_.emplace_back();
    std::vector<std::uint32_t>& joins = joins_.emplace_back();
    for (const NodeBlock& block : plan.nodes()->buckets[bucket].blocks) {
      sums.push_back(block.inputs.begin == block.inputs.end ? kNone : add_sum(plan, bucket, block, lists));
      joins.push_back(block.outputs.begin == block.outputs.end ? kNone : add_join(plan, bucket, block, lists));
    }
  }
  return lists;
}

/// Its first place is the staging memory; behind it are the sources of each piece, or one that is never there.
std::uint32_t GpuBlocks::add_sum(
    const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, GpuTableLists& lists
) {
  const plan::BucketTransfer& transfer = transfer_of(plan, bucket);
  const plan::TransferBlock& of = transfer.blocks[block.block];
  const auto first_part = static_cast<std::uint32_t>(lists.parts.size());
  first_place_.push_back(lists.add_place());
  for (const plan::TransferPiece& piece : transfer.pieces_of(of)) {
    const PieceSum found = sum_of(plan, piece);
    GpuTableLists::Places sources;
    for (const LaneMember& source : found.sum->sources) {
      sources.push_back(lists.add_place(plan.slot(found.tensor, source)));
    }
    if (sources.empty()) {
      sources.push_back(lists.add_place());
    }
    lists.begin_part();
    lists.add_sum(sources, {first_place_.back()});
  }
  for (std::uint32_t at = block.inputs.begin; at < block.inputs.end; ++at) {
    const BlockChunk& chunk = plan.nodes()->buckets[bucket].inputs[at];
    const LanePart& held = plan.part_of(chunk.chunk);
    const std::uint64_t distance = chunk.chunk.runs == 1 ? 0 : held.strides[0].distance;
    const std::uint32_t part = first_part + chunk.piece - of.first_piece;
    lists.add_chunk(
        {chunk.chunk.source, chunk.at, distance, chunk.chunk.run, chunk.chunk.runs, part, 0}, {held.tensor, kNotCounted}
    );
  }
  return lists.add_bucket(1.0, transfer.sum, transfer.result, true);
}

/// For each piece a place for the staging memory, so that it can be left out by itself, and one for each destination.
std::uint32_t GpuBlocks::add_join(
    const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, GpuTableLists& lists
) {
  const plan::BucketTransfer& transfer = transfer_of(plan, bucket);
  const plan::TransferBlock& of = transfer.blocks[block.block];
  first_place_.push_back(static_cast<std::uint32_t>(lists.slots.size()));
  std::vector<std::uint32_t> part_of_piece;
  for (const plan::TransferPiece& piece : transfer.pieces_of(of)) {
    const std::uint32_t staged = lists.add_place();
    GpuTableLists::Places destinations;
    for (std::size_t count = sum_of(plan, piece).sum->destinations.size(); count != 0; --count) {
      destinations.push_back(lists.add_place());
    }
    part_of_piece.push_back(destinations.empty() ? kNone : static_cast<std::uint32_t>(lists.parts.size()));
    if (!destinations.empty()) {
      lists.begin_part();
      lists.add_sum({staged}, destinations);
    }
  }
  for (std::uint32_t at = block.outputs.begin; at < block.outputs.end; ++at) {
    const BlockChunk& chunk = plan.nodes()->buckets[bucket].outputs[at];
    if (const std::uint32_t part = part_of_piece[chunk.piece - of.first_piece]; part != kNone) {
      lists.add_chunk(
          {chunk.at, chunk.chunk.first, 0, static_cast<std::uint32_t>(chunk.chunk.count()), 1, part, 0},
          {plan.part_of(chunk.chunk).tensor, chunk.counted}
      );
    }
  }
  return lists.add_bucket(plan.layout().buckets[bucket].divisor, transfer.result, transfer.sum, false);
}

void GpuBlocks::place_sum(const LoadedPlan& plan, const Pieces& pieces, const std::byte* staged, std::uint32_t place) {
  table_.place(place++, staged);
  for (const plan::TransferPiece& piece : pieces) {
    const PieceSum found = sum_of(plan, piece);
    for (const LaneMember& source : found.sum->sources) {
      const bool unused = plan.attempt().unused[plan.slot(found.tensor, source)] != 0;
      const std::byte* const input = plan.input_of(plan.memory_of(found.tensor, source), source.rank);
      table_.place(place++, unused ? nullptr : input);
    }
    place += found.sum->sources.empty() ? 1 : 0;
  }
}

/// What nobody contributed to is neither counted nor written.
void GpuBlocks::place_join(const LoadedPlan& plan, const Pieces& pieces, const std::byte* staged, std::uint32_t place) {
  for (const plan::TransferPiece& piece : pieces) {
    const PieceSum found = sum_of(plan, piece);
    const bool contributed = plan.nodes()->known(found.part, found.number) == SumKnown::Contributed;
    table_.place(place++, contributed ? staged : nullptr);
    for (const LaneMember& destination : found.sum->destinations) {
      const std::byte* const output = plan.output_of(plan.memory_of(found.tensor, destination), destination.rank);
      table_.place(place++, contributed ? output : nullptr);
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
  const plan::BucketTransfer& transfer = transfer_of(plan, bucket);
  const Pieces pieces = transfer.pieces_of(transfer.blocks[block.block]);
  if (sums) {
    place_sum(plan, pieces, staged.own, first_place_[number]);
    table_.run(plan, number, kNoPowers, false, "summing a block");
  } else {
    place_join(plan, pieces, staged.own, first_place_[number]);
    table_.run(plan, number, plan.layout().norm_type, false, "writing the sums of a block");
    table_.take_statistics(plan, number, block.owned);  // others have the sum of a collective, too
  }
}

}  // namespace gradsync::device
