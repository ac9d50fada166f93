#pragma once
// Decides which tensors travel together. Pure; takes linear time.

#include "plan/make_plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace gradsync::plan {

/// A tensor as bucket assignment sees it. Tensors of different `key` never share a bucket.
struct BucketItem {
  std::uint32_t key = 0;
  std::uint64_t size_bytes = 0;
};

/// Buckets of item indices, in launch order. Items become ready from the last to the first, as a backward pass visits a
/// model: so a bucket is filled in that order and closes after the item that reaches the limit, as DDP's do. The bucket
/// that is opened first is limited to `first_bytes`, all others to `bytes`. Launch order is the order in which buckets
/// are complete, that is of their last member.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> assign_buckets(
    std::span<const BucketItem> items, BucketSizes sizes
);

/// The limits of torch's DistributedDataParallel: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, and
/// _DEFAULT_BUCKET_CAP_MB of torch/nn/parallel/distributed.py.
inline constexpr BucketSizes kTorchBucketSizes{1u << 20, 25u << 20};

/// The same as reversed(torch.distributed._compute_bucket_assignment_by_size(tensors, [first, cap])), which is what
/// DistributedDataParallel gives its reducer: filled from the first item to the last, each key with a small bucket of
/// its own at the front of the model, then ordered by lowest member, the last first.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> assign_torch_buckets(
    std::span<const BucketItem> items, BucketSizes sizes = kTorchBucketSizes
);

}  // namespace gradsync::plan
