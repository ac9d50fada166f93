#include "plan/memory.hpp"

#include <algorithm>
#include <variant>

namespace gradsync::plan {

namespace {

// The tables of a lane, for each holder of a tensor and for each of its parts.
constexpr std::uint64_t kLaneHolding = 64;
constexpr std::uint64_t kLanePart = 256;

// Those of a lane over nodes: for each block, for each of its messages, and for each chunk of a piece, which it reads
// and writes, and whose statistics and hash it takes.
constexpr std::uint64_t kLaneBlock = 128;
constexpr std::uint64_t kLaneMessage = 48;
constexpr std::uint64_t kLaneChunk = 224;
constexpr std::uint64_t kChunkElements = 16'384;

template <typename T>
std::uint64_t list(const std::vector<T>& items) {
  return items.capacity() * sizeof(T);
}

template <typename T>
std::uint64_t lists(const std::vector<std::vector<T>>& all) {
  std::uint64_t bytes = list(all);
  for (const std::vector<T>& items : all) {
    bytes += list(items);
  }
  return bytes;
}

std::uint64_t memory_of(const PlannedTensor& tensor) {
  std::uint64_t bytes = sizeof(PlannedTensor) + memory_of(tensor.declaration) - sizeof(TensorDeclaration);
  bytes += list(tensor.counted_boxes) + list(tensor.holdings) + list(tensor.parts) + list(tensor.copies);
  for (const PlannedPart& part : tensor.parts) {
    bytes += list(part.strides);
  }
  return bytes + kLaneHolding * tensor.holdings.size() + kLanePart * tensor.parts.size();
}

}  // namespace

std::uint64_t memory_of(const TensorDeclaration& tensor) {
  std::uint64_t bytes = sizeof(TensorDeclaration) + tensor.name.capacity() + tensor.mesh.capacity() +
                        list(tensor.shape) + list(tensor.local_shape) + list(tensor.placements);
  for (const Placement& placement : tensor.placements) {
    bytes += list(placement.axes);
    if (const auto* only = std::get_if<Only>(&placement.kind)) {
      bytes += list(only->at);
    }
  }
  bytes += tensor.local_offset ? list(*tensor.local_offset) : 0;
  bytes += tensor.tied ? tensor.tied->capacity() : 0;
  bytes += tensor.layer ? tensor.layer->capacity() : 0;
  return bytes + tensor.clip_group.capacity() + list(tensor.split_order);
}

std::uint64_t memory_beside_tensors(const RankDeclaration& declaration) {
  std::uint64_t bytes = sizeof(RankDeclaration) + list(declaration.weight_fingerprints);
  for (const std::string& fingerprint : declaration.weight_fingerprints) {
    bytes += fingerprint.capacity();
  }
  return bytes;
}

std::uint64_t memory_of(const BucketTransfer& transfer) {
  std::uint64_t bytes = sizeof(BucketTransfer) + list(transfer.streams) + list(transfer.blocks) + list(transfer.pieces);
  std::uint64_t most_nodes = 0;
  for (const TransferStream& stream : transfer.streams) {
    bytes += list(stream.sources) + list(stream.destinations);
    most_nodes = std::max<std::uint64_t>(most_nodes, stream.sources.size());
  }
  // An owner has a message from each other source and one to each other destination, the others one of both.
  bytes += transfer.blocks.size() * (kLaneBlock + 2 * most_nodes * kLaneMessage);
  for (const TransferPiece& piece : transfer.pieces) {
    bytes += kLaneChunk * (1 + piece.elements / kChunkElements);
  }
  return bytes;
}

std::uint64_t memory_of(const Plan& plan) {
  std::uint64_t bytes = sizeof(Plan);
  for (const PlannedTensor& tensor : plan.tensors) {
    bytes += memory_of(tensor);
  }
  for (const Bucket& bucket : plan.buckets) {
    bytes += sizeof(Bucket) + list(bucket.tensors) + list(bucket.stages) + lists(bucket.groups);
  }
  for (const NormGroup& group : plan.norm_groups) {
    bytes += sizeof(NormGroup) + list(group.tensors);
  }
  for (const ScalarCollective& collective : plan.scalar_collectives) {
    bytes += sizeof(ScalarCollective) + lists(collective.groups) + list(collective.sums);
  }
  for (const ClipGroup& group : plan.clip_groups) {
    bytes += sizeof(ClipGroup) + group.name.capacity() + list(group.tensors);
  }
  for (const std::vector<RankSum>& parts : plan.sums) {
    bytes += list(parts);
    for (const RankSum& sum : parts) {
      bytes += list(sum.sources) + list(sum.destinations);
    }
  }
  for (const ArenaLayout& layout : plan.layouts) {
    bytes += sizeof(ArenaLayout) + list(layout.tensors) + list(layout.input_offsets) + list(layout.output_offsets) +
             list(layout.bucket_offsets) + lists(layout.bucket_rows);
  }
  return bytes + list(plan.layout_of);
}

}  // namespace gradsync::plan
