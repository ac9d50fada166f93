#include "device/stats/box_hash.hpp"

#include "base/text/hash.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string_view>

namespace gradsync::device {

namespace {

static_assert(std::endian::native == std::endian::little, "nodes hash rows as they are in memory");

/// Below it hashes say which rank has a tied copy alone; no job has more ranks.
constexpr std::uint64_t kLeastOfRows = 4'096 + 1;

/// What has to be equal in rows of equal gradients.
StatsRow compared_part(StatsRow row, HashSums sums) {
  row.stamp = 0;
  if (sums == HashSums::Out || row.nonfinite != 0) {  // of values that are not finite nothing checks the sum
    row.power_sum = row.power_sum_low = 0;
    row.scale = 1;
  }
  return row;
}

template <typename Item>
std::uint64_t hash_of_items(std::span<const Item> items) {
  return hash64(std::string_view(reinterpret_cast<const char*>(items.data()), items.size_bytes()));
}

}  // namespace

std::uint64_t hash_of_box(std::span<StatsRow> rows, std::uint32_t rank, HashSums sums) {
  std::size_t distinct = 0;  // they are kept in front
  for (const StatsRow& row : rows) {
    if (row.stamp == 0) {
      continue;
    }
    const StatsRow part = compared_part(row, sums);
    if (const auto kept = rows.first(distinct); std::ranges::find(kept, part) == kept.end()) {
      rows[distinct++] = part;
    }
  }
  if (distinct == 0) {
    return 0;
  }
  const std::uint64_t hash = hash_of_items(std::span<const StatsRow>(rows.first(distinct)));
  return std::max(kLeastOfRows, distinct == 1 ? hash : hash_of_unlike(hash, rank));
}

std::uint64_t hash_of_unlike(std::uint64_t box, std::uint32_t rank) {
  const std::array<std::uint64_t, 2> of_node{box, rank};
  return std::max(kLeastOfRows, hash_of_items(std::span<const std::uint64_t>(of_node)));
}

std::uint64_t hash_of_copies_alone(std::uint32_t rank) { return std::uint64_t{rank} + 1; }

bool is_uncounted(std::uint64_t hash) { return hash < kLeastOfRows; }

std::uint64_t hash_of_class(std::span<const std::uint64_t> boxes) { return hash_of_items(boxes); }

}  // namespace gradsync::device
