#include "kernels/tables/chunk_table.hpp"

#include "kernels/tables/scratch.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace gradsync::kernels {

namespace {

constexpr std::uint64_t kStepBytes = 4U << 10;
constexpr std::uint32_t kRunPieces = 16;
constexpr std::uint64_t kRunBytes = 64U << 10;
constexpr std::uint64_t kMaxPieces = std::numeric_limits<std::uint32_t>::max();

constexpr std::uint64_t kPieceBytes = 64U << 10;
constexpr std::uint64_t kLargePieceBytes = 256U << 10;
constexpr std::uint64_t kLargeTensorBytes = 256U << 20;

[[noreturn]] void refuse(std::size_t tensor, const std::string& what) {
  throw std::invalid_argument("tensors[" + std::to_string(tensor) + "]." + what);
}

void check_address(std::size_t index, const void* address, std::uint64_t width) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  if (value % width != 0) {
    refuse(
        index,
        "address is " + std::to_string(value) + ", not a multiple of the element's " + std::to_string(width) + " bytes"
    );
  }
}

void check(std::span<const TensorSpec> tensors, std::uint32_t norm_groups, std::uint32_t clip_groups) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    if (tensor.norm_group >= norm_groups) {
      refuse(i, "norm_group is " + std::to_string(tensor.norm_group) + " of " + std::to_string(norm_groups));
    }
    if (tensor.clip_group >= clip_groups) {
      refuse(i, "clip_group is " + std::to_string(tensor.clip_group) + " of " + std::to_string(clip_groups));
    }
    if (tensor.count > std::numeric_limits<std::uint64_t>::max() / 16) {
      refuse(i, "count is " + std::to_string(tensor.count) + ", more than memory can hold");
    }
  }
}

struct Pieces {
  std::vector<Piece> items;
  std::vector<Piece> small;
  std::uint64_t records = 0;
};

/// Elements [first, end) of a tensor in about equal pieces of whole steps, so that none is a sliver.
void cut(
    const TensorSpec& tensor,
    std::uint32_t index,
    std::uint64_t first,
    std::uint64_t end,
    std::uint64_t piece_bytes,
    Pieces& pieces
) {
  const std::uint64_t width = size_of(tensor.dtype);
  const std::uint64_t wanted = ((end - first) * width + piece_bytes - 1) / piece_bytes;
  const std::uint64_t each = align_up((end - first + wanted - 1) / wanted, kStepBytes / width);
  for (; first < end; first += each) {
    Piece piece;
    piece.first = first;
    piece.count = static_cast<std::uint32_t>(std::min(each, end - first));
    piece.tensor = index;
    pieces.items.push_back(piece);
  }
}

/// A piece is small beside the whole pass, so that the pass does not end ragged, and large beside what a piece costs.
/// A very large tensor is cut as finely in its last part only, so that there are fewer records to add. Returns the
/// number of pieces.
std::uint32_t cut(const TensorSpec& tensor, std::uint32_t index, Pieces& pieces) {
  const std::size_t before = pieces.items.size();
  const std::uint64_t width = size_of(tensor.dtype);
  std::uint64_t coarse = 0;
  if (tensor.count * width > kLargeTensorBytes) {
    coarse = tensor.count / 8 * 7 / (kLargePieceBytes / width) * (kLargePieceBytes / width);
    cut(tensor, index, 0, coarse, kLargePieceBytes, pieces);
  }
  cut(tensor, index, coarse, tensor.count, kPieceBytes, pieces);
  const std::size_t number = pieces.items.size() - before;
  for (std::size_t i = before; i < pieces.items.size(); ++i) {
    pieces.items[i].pieces = static_cast<std::uint32_t>(number);
    pieces.items[i].record = static_cast<std::uint32_t>(pieces.records + (i - before));
  }
  if (number > 1) {
    pieces.records += number;
  }
  if (pieces.records > kMaxPieces || pieces.items.size() > kMaxPieces) {
    refuse(index, "count makes more than 2^32 pieces of the table");
  }
  return static_cast<std::uint32_t>(number);
}

/// Runs of small tensors: a block's worth each.
void add_small(const TensorSpec& tensor, std::uint32_t index, Pieces& pieces, std::uint64_t& run_bytes) {
  const std::uint64_t bytes = tensor.count * size_of(tensor.dtype);
  const bool open = run_bytes != 0;
  if (!open || pieces.items.back().count == kRunPieces || run_bytes + bytes > kRunBytes) {
    Piece run;
    run.first = pieces.small.size();
    pieces.items.push_back(run);
    run_bytes = 1;
  }
  Piece piece;
  piece.count = static_cast<std::uint32_t>(tensor.count);
  piece.tensor = index;
  piece.pieces = 1;
  pieces.small.push_back(piece);
  ++pieces.items.back().count;
  run_bytes += bytes;
}

template <typename T>
std::size_t append(std::vector<std::byte>& image, const std::vector<T>& values) {
  const std::size_t offset = align_up(image.size(), 256);
  image.resize(offset + values.size() * sizeof(T));
  if (!values.empty()) {
    std::memcpy(image.data() + offset, values.data(), values.size() * sizeof(T));
  }
  return offset;
}

}  // namespace

ChunkTable::ChunkTable(std::span<const TensorSpec> tensors, std::uint32_t norm_groups, std::uint32_t clip_groups) {
  check(tensors, norm_groups, clip_groups);
  Pieces pieces;
  std::vector<TensorEntry> entries(tensors.size());
  std::vector<std::uint32_t> split;
  for (std::size_t dtype = 0; dtype < kDTypes; ++dtype) {
    shape_.of_dtype[dtype].begin = static_cast<std::uint32_t>(pieces.items.size());
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& tensor = tensors[i];
      if (static_cast<std::size_t>(tensor.dtype) == dtype && tensor.count * size_of(tensor.dtype) > kSmallBytes) {
        entries[i].first_record = static_cast<std::uint32_t>(pieces.records);
        entries[i].pieces = cut(tensor, i, pieces);
        if (entries[i].pieces > 1) {
          split.push_back(i);
        }
      }
    }
    // The items that are left for the end are small.
    std::stable_sort(
        pieces.items.begin() + shape_.of_dtype[dtype].begin,
        pieces.items.end(),
        [](const Piece& a, const Piece& b) { return a.count > b.count; }
    );
    std::uint64_t run_bytes = 0;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& tensor = tensors[i];
      if (static_cast<std::size_t>(tensor.dtype) == dtype && tensor.count * size_of(tensor.dtype) <= kSmallBytes) {
        entries[i].pieces = 1;
        add_small(tensor, i, pieces, run_bytes);
      }
    }
    shape_.of_dtype[dtype].end = static_cast<std::uint32_t>(pieces.items.size());
  }
  const auto few = std::stable_partition(split.begin(), split.end(), [&](std::uint32_t tensor) {
    return entries[tensor].pieces >= kManyPieces;
  });
  shape_.many_count = static_cast<std::uint32_t>(few - split.begin());
  std::vector<std::vector<std::uint32_t>> members(norm_groups);
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    entries[i].count = tensors[i].count;
    entries[i].clip_group = tensors[i].clip_group;
    entries[i].element_bytes = static_cast<std::uint32_t>(size_of(tensors[i].dtype));
    members[tensors[i].norm_group].push_back(i);
  }
  std::vector<std::uint32_t> group_first{0};
  std::vector<std::uint32_t> group_tensors;
  for (const std::vector<std::uint32_t>& group : members) {
    group_tensors.insert(group_tensors.end(), group.begin(), group.end());
    group_first.push_back(static_cast<std::uint32_t>(group_tensors.size()));
  }

  offsets_.items = append(image_, pieces.items);
  offsets_.small = append(image_, pieces.small);
  offsets_.tensors = append(image_, entries);
  offsets_.split = append(image_, split);
  offsets_.group_first = append(image_, group_first);
  offsets_.group_tensors = append(image_, group_tensors);
  shape_.tensor_count = static_cast<std::uint32_t>(tensors.size());
  shape_.norm_groups = norm_groups;
  shape_.clip_groups = clip_groups;
  shape_.split_count = static_cast<std::uint32_t>(split.size());
  shape_.records = static_cast<std::uint32_t>(pieces.records);
}

DeviceTable ChunkTable::at(const void* image, const void* addresses) const {
  const auto* base = static_cast<const std::byte*>(image);
  DeviceTable table = shape_;
  table.addresses = static_cast<const std::uint64_t*>(addresses);
  table.items = reinterpret_cast<const Piece*>(base + offsets_.items);
  table.small = reinterpret_cast<const Piece*>(base + offsets_.small);
  table.tensors = reinterpret_cast<const TensorEntry*>(base + offsets_.tensors);
  table.split = reinterpret_cast<const std::uint32_t*>(base + offsets_.split);
  table.group_first = reinterpret_cast<const std::uint32_t*>(base + offsets_.group_first);
  table.group_tensors = reinterpret_cast<const std::uint32_t*>(base + offsets_.group_tensors);
  return table;
}

std::size_t ChunkTable::scratch_bytes() const { return scratch_size(shape_); }

std::vector<std::uint64_t> ChunkTable::addresses(std::span<void* const> tensors) const {
  if (tensors.size() != shape_.tensor_count) {
    throw std::invalid_argument(
        std::to_string(tensors.size()) + " addresses for " + std::to_string(shape_.tensor_count) + " tensors"
    );
  }
  const auto* entries = reinterpret_cast<const TensorEntry*>(image_.data() + offsets_.tensors);
  std::vector<std::uint64_t> list;
  list.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_address(i, tensors[i], entries[i].element_bytes);
    list.push_back(reinterpret_cast<std::uintptr_t>(tensors[i]));
  }
  return list;
}

}  // namespace gradsync::kernels
