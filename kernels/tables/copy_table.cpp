#include "kernels/tables/copy_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace gradsync::kernels {

namespace {

constexpr std::uint64_t kItemCount = 16U << 10;
constexpr std::uint64_t kGroup = 8;  // elements that one thread copies at a time

[[noreturn]] void refuse(std::size_t part, const std::string& what) {
  throw std::invalid_argument("parts[" + std::to_string(part) + "]." + what);
}

void check_side(std::size_t index, const char* side, std::uintptr_t address, DType dtype) {
  if (address % size_of(dtype) != 0) {
    refuse(
        index, std::string(side) + " is not a multiple of the element's " + std::to_string(size_of(dtype)) + " bytes"
    );
  }
}

/// In which type the part is divided.
bool in_float64(const CopyPart& part) {
  return part.source_dtype == DType::Float64 && part.destination_dtype == DType::Float64;
}

std::string to_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void check(std::size_t index, const CopyPart& part) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::uint64_t>::max() / 16;
  if (part.row_count != 0 && part.rows > kLimit / part.row_count) {
    refuse(index, "rows is " + std::to_string(part.rows) + ", more than memory can hold");
  }
  if (part.rows * part.row_count == 0) {
    return;
  }
  if (part.destination == nullptr) {
    refuse(index, "destination is null");
  }
  check_side(index, "source", reinterpret_cast<std::uintptr_t>(part.source), part.source_dtype);
  check_side(index, "destination", reinterpret_cast<std::uintptr_t>(part.destination), part.destination_dtype);
  if (part.rows > 1 && part.destination_stride < part.row_count) {
    refuse(index, "destination_stride is " + std::to_string(part.destination_stride) + ": rows would overlap");
  }
  using Double = std::numeric_limits<double>;
  using Float = std::numeric_limits<float>;
  const double smallest = in_float64(part) ? Double::denorm_min() : Float::denorm_min();
  const double largest = in_float64(part) ? Double::max() : Float::max();
  if (!(part.divisor >= smallest && part.divisor <= largest)) {
    refuse(
        index, "divisor is " + to_text(part.divisor) + ", it must be positive and finite in the type of the division"
    );
  }
  const bool to_half = size_of(part.source_dtype) == 8 && size_of(part.destination_dtype) == 2;
  const bool from_half = size_of(part.source_dtype) == 2 && size_of(part.destination_dtype) == 8;
  if (to_half || from_half) {
    refuse(index, "dtypes are float64 and a 16-bit type: cast through float32, which rounds where you can see it");
  }
}

bool wide(const CopyPart& part) {
  const auto aligned = [](std::uintptr_t address) { return address % 16 == 0; };
  const bool rows_whole = part.rows == 1 || (part.row_count % kGroup == 0 && part.source_stride % kGroup == 0 &&
                                             part.destination_stride % kGroup == 0);
  return rows_whole && aligned(reinterpret_cast<std::uintptr_t>(part.source)) &&
         aligned(reinterpret_cast<std::uintptr_t>(part.destination));
}

/// A power of two whose inverse is a normal number divides by an exact multiplication.
bool has_exact_inverse(double divisor, bool float64) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5 && std::abs(exponent) < (float64 ? 1000 : 120);
}

CopyEntry entry_of(const CopyPart& part) {
  const bool exact = has_exact_inverse(part.divisor, in_float64(part));
  CopyEntry entry;
  entry.source = reinterpret_cast<std::uintptr_t>(part.source);
  entry.destination = reinterpret_cast<std::uintptr_t>(part.destination);
  entry.row_count = part.row_count;
  entry.source_stride = part.rows == 1 ? part.row_count : part.source_stride;
  entry.destination_stride = part.rows == 1 ? part.row_count : part.destination_stride;
  entry.divisor = exact ? 1 : part.divisor;
  entry.multiplier = exact ? 1 / part.divisor : 1;
  entry.wide = wide(part) ? 1 : 0;
  return entry;
}

}  // namespace

std::uint64_t padded_shard_count(const ShardedTensor& tensor, std::uint32_t ranks) {
  if (ranks == 0) {
    throw std::invalid_argument("ranks is 0, a tensor is cut into at least 1 shard");
  }
  return tensor.outer * ((tensor.extent + ranks - 1) / ranks) * tensor.inner;
}

std::vector<CopyPart> shard_parts(
    const ShardedTensor& tensor, const ShardedBucket& bucket, std::uint32_t ranks, double divisor
) {
  const std::uint64_t padded = padded_shard_count(tensor, ranks);
  const std::uint64_t chunk = (tensor.extent + ranks - 1) / ranks;
  if (ranks > 1 && bucket.rank_stride < bucket.offset + padded) {
    throw std::invalid_argument(
        "rank_stride is " + std::to_string(bucket.rank_stride) + ", but a rank's shard ends at element " +
        std::to_string(bucket.offset + padded) + ": shards would overlap"
    );
  }
  std::vector<CopyPart> parts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t begin = std::min(rank * chunk, tensor.extent);
    const std::uint64_t extent = std::min(chunk, tensor.extent - begin);
    const std::uint64_t count = tensor.outer * extent * tensor.inner;
    auto* place =
        static_cast<std::byte*>(bucket.address) + (rank * bucket.rank_stride + bucket.offset) * size_of(bucket.dtype);
    CopyPart part;
    part.source_dtype = tensor.dtype;
    part.destination_dtype = bucket.dtype;
    part.divisor = divisor;
    if (count != 0) {
      part.source = static_cast<const std::byte*>(tensor.address) + begin * tensor.inner * size_of(tensor.dtype);
      part.destination = place;
      part.rows = tensor.outer;
      part.row_count = extent * tensor.inner;
      part.source_stride = tensor.extent * tensor.inner;
      part.destination_stride = part.row_count;
      parts.push_back(part);
    }
    if (count != padded) {
      CopyPart zeros;
      zeros.source_dtype = tensor.dtype;
      zeros.destination_dtype = bucket.dtype;
      zeros.destination = place + count * size_of(bucket.dtype);
      zeros.row_count = padded - count;
      parts.push_back(zeros);
    }
  }
  return parts;
}

CopyPart reversed(const CopyPart& part) {
  CopyPart back = part;
  back.source = part.destination;
  back.destination = const_cast<void*>(part.source);
  std::swap(back.source_dtype, back.destination_dtype);
  std::swap(back.source_stride, back.destination_stride);
  back.divisor = 1;
  return back;
}

CopyTable::CopyTable(std::span<const CopyPart> parts) {
  std::array<std::vector<CopyItem>, kDTypes * kDTypes> items;
  std::vector<CopyEntry> entries;
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    const CopyPart& part = parts[i];
    check(i, part);
    entries.push_back(entry_of(part));
    const auto pair =
        static_cast<std::size_t>(part.source_dtype) * kDTypes + static_cast<std::size_t>(part.destination_dtype);
    const std::uint64_t count = part.rows * part.row_count;
    for (std::uint64_t first = 0; first < count; first += kItemCount) {
      items[pair].push_back({first, static_cast<std::uint32_t>(std::min(kItemCount, count - first)), i});
    }
  }
  std::vector<CopyItem> all;
  for (std::size_t pair = 0; pair < items.size(); ++pair) {
    shape_.first_of_pair[pair] = static_cast<std::uint32_t>(all.size());
    all.insert(all.end(), items[pair].begin(), items[pair].end());
    if (all.size() > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument("parts hold more than 2^45 elements");
    }
  }
  shape_.first_of_pair.back() = static_cast<std::uint32_t>(all.size());
  parts_offset_ = (all.size() * sizeof(CopyItem) + 255) / 256 * 256;
  image_.resize(parts_offset_ + entries.size() * sizeof(CopyEntry));
  if (!all.empty()) {
    std::memcpy(image_.data(), all.data(), all.size() * sizeof(CopyItem));
  }
  if (!entries.empty()) {
    std::memcpy(image_.data() + parts_offset_, entries.data(), entries.size() * sizeof(CopyEntry));
  }
}

DeviceCopyTable CopyTable::at(const void* device_address) const {
  const auto* base = static_cast<const std::byte*>(device_address);
  DeviceCopyTable table = shape_;
  table.items = reinterpret_cast<const CopyItem*>(base);
  table.parts = reinterpret_cast<const CopyEntry*>(base + parts_offset_);
  return table;
}

}  // namespace gradsync::kernels
