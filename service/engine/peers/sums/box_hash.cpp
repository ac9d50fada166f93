#include "engine/peers/sums/box_hash.hpp"

#include "base/hash.hpp"

#include <algorithm>
#include <bit>
#include <string_view>
#include <vector>

namespace gradsync::engine {

namespace {

static_assert(std::endian::native == std::endian::little, "nodes hash rows as they are in memory");

/// What has to be equal in rows of equal gradients.
device::StatsRow compared_part(device::StatsRow row, HashSums sums) {
  row.stamp = 0;
  if (sums == HashSums::Out) {
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

std::uint64_t hash_of_box(std::span<const device::StatsRow> rows, HashSums sums) {
  std::vector<device::StatsRow> distinct;
  for (const device::StatsRow& row : rows) {
    if (row.stamp == 0) {
      continue;
    }
    const device::StatsRow part = compared_part(row, sums);
    if (std::ranges::find(distinct, part) == distinct.end()) {
      distinct.push_back(part);
    }
  }
  return distinct.empty() ? 0 : std::max<std::uint64_t>(1, hash_of_items(std::span<const device::StatsRow>(distinct)));
}

std::uint64_t hash_of_class(std::span<const std::uint64_t> boxes) { return hash_of_items(boxes); }

}  // namespace gradsync::engine
