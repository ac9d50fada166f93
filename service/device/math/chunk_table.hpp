#pragma once
// Every part of a plan cut into chunks at fixed places, and the chunks of each bucket grouped into tasks of about equal
// bytes, so that a thousand small tensors do not cost a thousand claims.
//
// Invariant: chunks, their order and thereby the bits of a norm depend on the plan alone; how many of them make a task,
// on the number of threads as well.

#include "device/lane.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace gradsync::device {

/// Some elements of a part, 1 … kChunkElements of them: one piece of a run, or whole runs at the distance of the part's
/// innermost stride, never across its end. A chunk takes as many runs of a tensor as would fill it if all were its
/// longest, so that chunks of different parts begin and end at the same place of the input.
struct Chunk {
  std::uint64_t source = 0;  ///< element of the input at which it begins
  std::uint64_t first = 0;   ///< element of the part, hence of the output
  std::uint32_t part = 0;
  std::uint16_t run = 0;  ///< elements of each run
  std::uint16_t runs = 1;

  [[nodiscard]] std::size_t count() const { return std::size_t{run} * runs; }
};

struct ChunkRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct ChunkTable {
  /// Bucket by bucket, tensors in the bucket's order, parts in order, chunks in the order of the output.
  std::vector<Chunk> chunks;
  /// Indices of `chunks` in the order of the work: those of one tensor by their place in the input, so that parts that
  /// share its cache lines read them one after the other.
  std::vector<std::uint32_t> work;
  std::vector<ChunkRange> tasks;      ///< ranges of `work`; never across buckets
  std::vector<ChunkRange> of_tensor;  ///< its chunks; empty for a tensor without elements, and for a tied copy
  std::vector<ChunkRange> of_bucket;  ///< ranges of `tasks`
};

/// Cuts a plan that was checked, for a pool of `threads`; of its parts only those whose sums are marked in `cut`, if it
/// is given, by LanePlan::sums. Throws DeviceError when there would be more chunks than 2^32.
[[nodiscard]] ChunkTable make_chunk_table(
    const LanePlan& plan, std::size_t threads, const std::vector<bool>* cut = nullptr
);

}  // namespace gradsync::device
