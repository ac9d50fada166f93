#include "plan/layout/bucket_assignment.hpp"

#include "plan/interrupt.hpp"

#include <algorithm>
#include <unordered_map>

namespace gradsync::plan {

namespace {

struct OpenBucket {
  std::vector<std::uint32_t> items;
  std::uint64_t size_bytes = 0;
  std::uint64_t limit_bytes = 0;
};

using Open = std::unordered_map<std::uint32_t, OpenBucket>;  // by key; what it yields is sorted

void close_all(Open& open, std::vector<std::vector<std::uint32_t>>& buckets) {
  for (auto& [key, bucket] : open) {
    if (!bucket.items.empty()) {
      buckets.push_back(std::move(bucket.items));
    }
  }
}

}  // namespace

std::vector<std::vector<std::uint32_t>> assign_buckets(std::span<const BucketItem> items, BucketSizes sizes) {
  std::vector<std::vector<std::uint32_t>> buckets;
  Open open;
  std::uint64_t next_limit = sizes.first_bytes;
  for (std::size_t i = items.size(); i-- > 0;) {
    interruption_point();
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
  close_all(open, buckets);
  std::sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.back() > b.back(); });
  return buckets;
}

std::vector<std::vector<std::uint32_t>> assign_torch_buckets(std::span<const BucketItem> items, BucketSizes sizes) {
  std::vector<std::vector<std::uint32_t>> buckets;
  Open open;
  for (std::size_t i = 0; i < items.size(); ++i) {
    interruption_point();
    OpenBucket& bucket = open.try_emplace(items[i].key, OpenBucket{{}, 0, sizes.first_bytes}).first->second;
    bucket.items.push_back(static_cast<std::uint32_t>(i));
    bucket.size_bytes += items[i].size_bytes;
    if (bucket.size_bytes >= bucket.limit_bytes) {
      buckets.push_back(std::move(bucket.items));
      bucket = {{}, 0, sizes.bytes};
    }
  }
  close_all(open, buckets);
  std::sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.front() > b.front(); });
  return buckets;
}

}  // namespace gradsync::plan
