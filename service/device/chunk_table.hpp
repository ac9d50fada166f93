#pragma once
// Every tensor of a plan cut into chunks at fixed offsets from its start, and the chunks of each bucket grouped into
// tasks of about equal bytes, so that a thousand small tensors do not cost a thousand claims.

#include "device/lane.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace gradsync::device {

struct Chunk {
  std::uint32_t tensor = 0;
  std::uint32_t count = 0;  ///< elements, 1 … kChunkElements
  std::uint64_t first = 0;  ///< element of the tensor
};

struct ChunkRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct ChunkTable {
  std::vector<Chunk> chunks;          ///< bucket by bucket, tensors in the bucket's order, chunks in index order
  std::vector<ChunkRange> tasks;      ///< ranges of `chunks`; never across buckets
  std::vector<ChunkRange> of_tensor;  ///< its chunks; empty for a tensor without elements
  std::vector<ChunkRange> of_bucket;  ///< ranges of `tasks`
};

[[nodiscard]] ChunkTable make_chunk_table(const LanePlan& plan);

}  // namespace gradsync::device
