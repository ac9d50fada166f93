#include "plan/bucket_assignment.hpp"

#include <algorithm>
#include <unordered_map>

namespace gradsync::plan {

namespace {

struct OpenBucket {
  std::vector<std::uint32_t> items;
  std::uint64_t size_bytes = 0;
  std::uint64_t limit_bytes = 0;
};

}  // namespace

std::vector<std::vector<std::uint32_t>> assign_buckets(std::span<const BucketItem> items, BucketSizes sizes) {
  std::vector<std::vector<std::uint32_t>> buckets;
  std::unordered_map<std::uint32_t, OpenBucket> open;  // by key; never iterated before it is sorted below
  std::uint64_t next_limit = sizes.first_bytes;
  for (std::size_t i = items.size(); i-- > 0;) {
    OpenBucket& bucket = open[items[i].key];
    if (bucket.items.empty()) {
      bucket.limit_bytes = next_limit;
      next_limit = sizes.bytes;
    }
    bucket.items.push_back(static_cast<std::uint32_t>(i));
    bucket.size_bytes += items[i].size_bytes;
    if (bucket.size_bytes >= bucket.limit_bytes) {
      buckets.push_back(std::move(bucket.items));
      bucket = {};
    }
  }
  for (auto& [key, bucket] : open) {
    if (!bucket.items.empty()) {
      buckets.push_back(std::move(bucket.items));
    }
  }
  std::sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.back() > b.back(); });
  return buckets;
}

}  // namespace gradsync::plan
