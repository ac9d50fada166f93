#pragma once
// The elements of a piece as runs in memory: of the output, where they lie together, and of the input, where they need
// not. Both in chunks of kChunkElements at most.

#include "device/lane.hpp"
#include "device/math/chunk_math.hpp"
#include "device/math/chunk_table.hpp"

#include <algorithm>
#include <cstdint>

namespace gradsync::device {

/// Calls `take` with the chunks of elements [first, first + elements) of a part, in single runs.
template <typename Take>
void for_each_output_run(std::uint32_t part, std::uint64_t first, std::uint64_t elements, Take take) {
  for (std::uint64_t at = 0; at < elements; at += kChunkElements) {
    const std::uint64_t count = std::min<std::uint64_t>(kChunkElements, elements - at);
    take(Chunk{0, first + at, part, static_cast<std::uint16_t>(count), 1});
  }
}

/// Where in the input the row of innermost runs with this number begins.
[[nodiscard]] inline std::uint64_t begin_of_row(const LanePart& part, std::uint64_t row) {
  std::uint64_t place = part.first;
  for (std::size_t level = 1; level < part.strides.size(); ++level) {
    place += row % part.strides[level].count * part.strides[level].distance;
    row /= part.strides[level].count;
  }
  return place;
}

/// The same for the input: some elements of one run, or whole runs at the innermost distance.
template <typename Take>
void for_each_input_run(
    const LanePart& part, std::uint32_t number, std::uint64_t first, std::uint64_t elements, Take take
) {
  const LaneStride inner = part.strides.empty() ? LaneStride{} : part.strides[0];
  const std::uint64_t row_elements = part.run * inner.count;
  const std::uint64_t end = first + elements;
  for (std::uint64_t at = first; at < end;) {
    const std::uint64_t row = at / row_elements;
    const std::uint64_t place = begin_of_row(part, row);
    const std::uint64_t row_end = std::min(end, (row + 1) * row_elements);
    while (at < row_end) {
      const std::uint64_t run = at % row_elements / part.run;
      const std::uint64_t into = at % part.run;  // a row is whole runs
      const std::uint64_t from = place + run * inner.distance + into;
      const bool whole = into == 0 && part.run <= kChunkElements && row_end - at >= part.run;
      const std::uint64_t count =
          whole ? part.run : std::min({part.run - into, row_end - at, std::uint64_t{kChunkElements}});
      const std::uint64_t runs = whole ? std::min((row_end - at) / part.run, kChunkElements / part.run) : 1;
      take(Chunk{from, at, number, static_cast<std::uint16_t>(count), static_cast<std::uint16_t>(runs)});
      at += count * runs;
    }
  }
}

}  // namespace gradsync::device
