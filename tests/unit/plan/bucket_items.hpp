#pragma once
// Items of two dtypes, as the tests of both rules for buckets put them together.

#include "plan/layout/bucket_assignment.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::plan {

using Buckets = std::vector<std::vector<std::uint32_t>>;

inline constexpr std::uint32_t kFloat = 0;
inline constexpr std::uint32_t kDouble = 1;

inline const std::vector<BucketItem> kAlternating{
    {kFloat, 200}, {kDouble, 200}, {kFloat, 200}, {kDouble, 200}, {kFloat, 200}, {kDouble, 200}};

}  // namespace gradsync::plan
