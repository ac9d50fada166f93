#pragma once
// What declarations and plans take of the memory, about: structures and texts, with one allocation for each list. Pure.

#include "plan/plan.hpp"
#include "plan/transfer/bucket_transfer.hpp"

#include <cstdint>

namespace gradsync::plan {

[[nodiscard]] std::uint64_t memory_of(const TensorDeclaration& tensor);

/// That of a declaration without its tensors, which ranks may share.
[[nodiscard]] std::uint64_t memory_beside_tensors(const RankDeclaration& declaration);

/// That of the plan and of what a lane makes of it.
[[nodiscard]] std::uint64_t memory_of(const Plan& plan);

/// The same of what travels of a bucket; without staging memory.
[[nodiscard]] std::uint64_t memory_of(const BucketTransfer& transfer);

}  // namespace gradsync::plan
