#pragma once
// The sums of a plan packed into the tables that the reducing pass reads. Pure host code, done once per plan; the
// caller copies `image()` to the device and hands `at(…)` to the kernels, by value. The image has no addresses: those
// of a pass are a list of its own, 8 bytes for each place.
//
// A *place* is the memory of one tensor on one rank, from which sums read (its input) or to which they write (its
// output). An input whose address is 0 in a pass is that of a rank which contributed nothing, and an output whose
// address is 0 is not written.
//
// Invariant: the caller cuts parts into chunks, as the CPU engine does (service/device/math/chunk_table.hpp), and all
// bits follow from the cut and the values alone.

#include "kernels/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace gradsync::kernels {

/// Elements of a part: whole runs at equal distances in the inputs, together in the outputs.
struct ReduceChunk {
  std::uint64_t source = 0;    ///< element of the input at which it begins
  std::uint64_t first = 0;     ///< element of the output at which it begins
  std::uint64_t distance = 0;  ///< elements of the input from the begin of a run to that of the next; of no use for one
  std::uint32_t run = 0;       ///< elements of each run, at least 1
  std::uint32_t runs = 1;
  std::uint32_t part = 0;
};

/// The places whose elements are added, in this order, and those that get the result. Neither list is empty.
struct ReduceSum {
  std::vector<std::uint32_t> sources;
  std::vector<std::uint32_t> destinations;
};

/// Some elements of a tensor. Several sums: replicas of it, of which the first with a contribution is counted.
struct ReducePart {
  std::vector<ReduceSum> sums;
};

/// Its chunks follow each other. One launch reduces it.
struct ReduceBucket {
  DType dtype = DType::Float32;
  double divisor = 1;  ///< of each sum, once; finite and > 0 in the type of the sums: float32, float64 for float64
  std::uint32_t first_chunk = 0;
  std::uint32_t chunks = 0;
  std::optional<DType> sources = {};  ///< the dtype of inputs, where it is another: 16 bits and float32, either way
  bool minus_zeros = false;  ///< what is written where nobody contributed, as the one number that changes no sum
};

/// Some of the places, those that follow each other.
struct PlaceRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct ReduceItem {
  std::uint64_t source = 0;
  std::uint64_t first = 0;
  std::uint64_t distance = 0;
  std::uint32_t run = 0;
  std::uint32_t runs = 0;
  std::uint32_t first_sum = 0;
  std::uint32_t sums = 0;
};

/// Positions in the list of members.
struct SumEntry {
  std::uint32_t first_source = 0;
  std::uint32_t sources = 0;
  std::uint32_t first_destination = 0;
  std::uint32_t destinations = 0;
};

/// The tables as a kernel sees them. Addresses are the device's.
struct DeviceReduceTable {
  const ReduceItem* items = nullptr;  ///< one for each chunk
  const SumEntry* sums = nullptr;     ///< part by part
  const std::uint32_t* members = nullptr;
};

/// What a pass leaves of each chunk: the statistics of its rounded results. Sums are those of chunk_math.hpp of the CPU
/// engine, bit for bit (for p = 1 and 2).
struct ReducedChunk {
  double high = 0;              ///< Σ|g|^p of the counted sum = high + low; not finite where a value is not
  double low = 0;               ///< 0 unless the dtype is float64
  double maximum = 0;           ///< the largest finite |g| of the counted sum
  std::uint32_t nonfinite = 0;  ///< infinite and NaN, in the sum that has the most of them
  std::uint32_t nan = 0;
  std::uint32_t differs = 0;  ///< 1: some sum has other bits than the counted one
  std::uint32_t reserved = 0;
};

class ReduceTable {
 public:
  /// Throws std::invalid_argument that names the entry, the field and the value.
  ReduceTable(
      std::uint32_t places,
      std::span<const ReducePart> parts,
      std::span<const ReduceChunk> chunks,
      std::span<const ReduceBucket> buckets
  );

  /// The bytes to copy to the device, to an address aligned to 256 bytes.
  [[nodiscard]] std::span<const std::byte> image() const { return image_; }

  [[nodiscard]] DeviceReduceTable at(const void* image) const;

  [[nodiscard]] std::uint32_t places() const { return places_; }

  [[nodiscard]] std::uint32_t chunks() const { return chunks_; }

  /// The number of sums of all parts; `first_sum(part)` is that of a part's first.
  [[nodiscard]] std::uint32_t sums() const { return first_sum_.back(); }

  [[nodiscard]] std::uint32_t first_sum(std::uint32_t part) const { return first_sum_[part]; }

  [[nodiscard]] std::span<const ReduceBucket> buckets() const { return buckets_; }

  /// The most sums that a part of the bucket has.
  [[nodiscard]] std::uint32_t most_sums(std::uint32_t bucket) const { return most_sums_[bucket]; }

  /// All places that the passes over a bucket look at are among these.
  [[nodiscard]] PlaceRange places_of(std::uint32_t bucket) const { return places_of_[bucket]; }

 private:
  std::vector<std::byte> image_;
  std::size_t sums_offset_ = 0;
  std::size_t members_offset_ = 0;
  std::uint32_t places_ = 0;
  std::uint32_t chunks_ = 0;
  std::vector<std::uint32_t> first_sum_;
  std::vector<ReduceBucket> buckets_;
  std::vector<std::uint32_t> most_sums_;
  std::vector<PlaceRange> places_of_;
};

}  // namespace gradsync::kernels
