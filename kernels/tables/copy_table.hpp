#pragma once
// Copies between tensors and flat buckets, with cast and divisor on the way, packed into tables for one launch per pair
// of dtypes. Pure host code. A part is `rows` rows of `row_count` elements on both sides, each side with its own
// distance between rows: a whole tensor is one row; the shard that reduce-scatter sends to a rank is a strided box
// (`shard_parts`). Packing and unpacking differ only in which side is the tensor.

#include "kernels/dtype.hpp"

#include <array>
#include <span>
#include <vector>

namespace gradsync::kernels {

struct CopyPart {
  /// Null: zeros are written, for the padding that makes shards equal.
  const void* source = nullptr;
  void* destination = nullptr;
  DType source_dtype = DType::Float32;
  DType destination_dtype = DType::Float32;
  std::uint64_t rows = 1;
  std::uint64_t row_count = 0;           ///< elements
  std::uint64_t source_stride = 0;       ///< elements from row to row; ignored for one row
  std::uint64_t destination_stride = 0;  ///< likewise
  /// destination = round(source / divisor), in float32 (float64 from and to float64); finite and > 0 in that type. 1:
  /// values are only cast.
  double divisor = 1;
};

/// A tensor of [outer, extent, inner] elements cut along the middle dim into `ranks` shards as torch.chunk does: the
/// first ones hold ceil(extent / ranks) of it, later ones less or nothing.
struct ShardedTensor {
  void* address = nullptr;
  DType dtype = DType::Float32;
  std::uint64_t outer = 1;
  std::uint64_t extent = 0;
  std::uint64_t inner = 1;
};

/// The positions of shards in the flat buffer of a reduce-scatter: rank by rank, `rank_stride` elements apart, this
/// tensor's shard at `offset` in each, padded to `shard_count` elements.
struct ShardedBucket {
  void* address = nullptr;
  DType dtype = DType::Float32;
  std::uint64_t rank_stride = 0;
  std::uint64_t offset = 0;
};

/// Elements of the first, largest shard: what each rank's place in the bucket must hold.
[[nodiscard]] std::uint64_t padded_shard_count(const ShardedTensor& tensor, std::uint32_t ranks);

/// Parts that pack every shard of a tensor, in rank order, padding included. Throws std::invalid_argument where ranks
/// is 0 or shards of two ranks would overlap.
[[nodiscard]] std::vector<CopyPart> shard_parts(
    const ShardedTensor& tensor, const ShardedBucket& bucket, std::uint32_t ranks, double divisor
);

/// The part with its sides exchanged: unpacks what it packed, without dividing again. Not for padding.
[[nodiscard]] CopyPart reversed(const CopyPart& part);

/// `count` elements of one part from element `first` on, rows counted through.
struct CopyItem {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t part = 0;
};

struct CopyEntry {
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  std::uint64_t row_count = 0;
  std::uint64_t source_stride = 0;
  std::uint64_t destination_stride = 0;
  double divisor = 1;      ///< 1 where the division was replaced by an exact multiplication
  double multiplier = 1;   ///< the inverse of a power of two
  std::uint32_t wide = 0;  ///< groups of 8 elements lie in one row and are aligned to 16 bytes on both sides
  std::uint32_t reserved = 0;
};

struct DeviceCopyTable {
  const CopyItem* items = nullptr;  ///< sorted by pair of dtypes
  const CopyEntry* parts = nullptr;
  /// First item of each pair source · kDTypes + destination, and the end.
  std::array<std::uint32_t, kDTypes * kDTypes + 1> first_of_pair{};
};

class CopyTable {
 public:
  /// Throws std::invalid_argument that names the part, the field and the value. Not between float64 and 16-bit types,
  /// which would round twice.
  explicit CopyTable(std::span<const CopyPart> parts);

  /// The bytes to copy to the device, to an address aligned to 256 bytes.
  [[nodiscard]] std::span<const std::byte> image() const { return image_; }

  [[nodiscard]] DeviceCopyTable at(const void* device_address) const;

 private:
  std::vector<std::byte> image_;
  std::size_t parts_offset_ = 0;
  DeviceCopyTable shape_;
};

}  // namespace gradsync::kernels
