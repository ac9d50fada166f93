#pragma once
// A list of tensors packed into the tables that the passes over memory read. Pure host code, done once per declaration;
// the caller copies `image()` to the device and hands `at(…)` to the kernels, by value. The image has no addresses:
// those of a pass are a list of its own, 8 bytes for each tensor, so that memory that moves from step to step costs no
// new image, and one list is written while the device still reads another.
//
// Invariant: how a tensor is cut depends on its element count and dtype alone. With the fixed order inside a piece and
// of pieces, the bits of its sum do not depend on addresses, other tensors, the grid or the GPU.

#include "kernels/dtype.hpp"

#include <array>
#include <span>
#include <vector>

namespace gradsync::kernels {

/// Tensors up to this size are one piece, read by one warp.
inline constexpr std::uint64_t kSmallBytes = 16U << 10;

/// The records of a tensor with fewer pieces are added by one warp, of one with more by a block.
inline constexpr std::uint32_t kManyPieces = 32;

struct TensorSpec {
  std::uint64_t count = 0;  ///< elements; 0 is a tensor whose sums are zero
  DType dtype = DType::Float32;
  std::uint32_t norm_group = 0;  ///< the norm group that its sum is added to
  std::uint32_t clip_group = 0;  ///< the clip group that has its coefficient
};

/// Consecutive elements of one tensor; or, where `pieces` is 0, a run of `count` small tensors from `first` on.
struct Piece {
  std::uint64_t first = 0;  ///< index in the tensor of its first element; a multiple of 4 KiB
  std::uint32_t count = 0;  ///< elements
  std::uint32_t tensor = 0;
  std::uint32_t record = 0;  ///< where its sum goes, when the tensor has more pieces than one
  std::uint32_t pieces = 0;  ///< of the whole tensor; 0: a run of small tensors
};

struct TensorEntry {
  std::uint64_t count = 0;
  std::uint32_t first_record = 0;
  std::uint32_t pieces = 0;
  std::uint32_t clip_group = 0;
  std::uint32_t element_bytes = 0;
};

struct ItemRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// The tables as a kernel sees them. Addresses are the device's.
struct DeviceTable {
  const Piece* items = nullptr;  ///< the units that a block claims at a time; by dtype, large ones first
  const Piece* small = nullptr;  ///< the pieces of small tensors
  const TensorEntry* tensors = nullptr;
  const std::uint64_t* addresses = nullptr;      ///< of each tensor, in this pass
  const std::uint32_t* split = nullptr;          ///< tensors with more pieces than one, those with kManyPieces first
  const std::uint32_t* group_first = nullptr;    ///< norm_groups + 1 positions in group_tensors
  const std::uint32_t* group_tensors = nullptr;  ///< tensors of each norm group, in index order
  std::array<ItemRange, kDTypes> of_dtype{};
  std::uint32_t tensor_count = 0;
  std::uint32_t norm_groups = 0;
  std::uint32_t clip_groups = 0;
  std::uint32_t split_count = 0;
  std::uint32_t many_count = 0;  ///< of them, those with kManyPieces or more
  std::uint32_t records = 0;     ///< pieces of split tensors
};

class ChunkTable {
 public:
  /// Throws std::invalid_argument that names the tensor, the field and the value.
  ChunkTable(std::span<const TensorSpec> tensors, std::uint32_t norm_groups, std::uint32_t clip_groups);

  /// The bytes to copy to the device, to an address aligned to 256 bytes.
  [[nodiscard]] std::span<const std::byte> image() const { return image_; }

  /// The list of addresses to copy to the device, one per tensor, aligned to an element. A null one is a tensor that is
  /// absent in this pass: its sum is zero, and nothing of it is read or scaled. Throws std::invalid_argument that names
  /// the tensor and the value.
  [[nodiscard]] std::vector<std::uint64_t> addresses(std::span<void* const> tensors) const;

  /// `image`, `addresses`: where the two were copied to. They stay as they are until the pass is over.
  [[nodiscard]] DeviceTable at(const void* image, const void* addresses) const;

  /// Device memory for the passes over this table, aligned to 256 bytes; zeroed by the caller before the first use and
  /// after a launch that failed. Passes that run at the same time need one each.
  [[nodiscard]] std::size_t scratch_bytes() const;

  [[nodiscard]] const DeviceTable& shape() const { return shape_; }  ///< counts only; its pointers are null

 private:
  struct Offsets {
    std::size_t items = 0;
    std::size_t small = 0;
    std::size_t tensors = 0;
    std::size_t split = 0;
    std::size_t group_first = 0;
    std::size_t group_tensors = 0;
  };

  std::vector<std::byte> image_;
  Offsets offsets_;
  DeviceTable shape_;
};

}  // namespace gradsync::kernels
