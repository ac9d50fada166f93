#pragma once
// A declaration as one byte string that is equal exactly where declarations are, on every platform: texts carry their
// length, numbers are decimal, doubles are their bits.

#include "plan/make_plan.hpp"
#include "plan/merge/merge_declarations.hpp"

#include <string>
#include <vector>

namespace gradsync::plan {

[[nodiscard]] std::string canonical_text(const DeclareOptions& options);

/// All that one rank declares of a tensor.
[[nodiscard]] std::string canonical_text(const TensorDeclaration& tensor);

/// Contains everything that a plan is made of: options, meshes and which rank holds which tensors. Where there are
/// buckets it contains their sizes, or the name of a rule that has its own sizes. Weight fingerprints are not in it.
[[nodiscard]] std::string canonical_text(
    Declarations by_rank, const Merged& merged, const std::vector<Mesh>& meshes, BucketSizes sizes
);

}  // namespace gradsync::plan
