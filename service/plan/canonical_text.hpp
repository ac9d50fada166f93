#pragma once
// A declaration as one byte string that is equal exactly where declarations are, on every platform: texts carry their
// length, numbers are decimal, doubles are their bits.

#include "plan/make_plan.hpp"
#include "plan/merge_declarations.hpp"

#include <string>
#include <vector>

namespace gradsync::plan {

[[nodiscard]] std::string canonical_text(const DeclareOptions& options);

/// All that `make_plan` takes: world and bucket sizes, options, meshes and tensors; not the weight fingerprints.
[[nodiscard]] std::string canonical_text(
    const RankDeclaration& declaration, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
);

/// The same of a job whose ranks hold different tensors.
[[nodiscard]] std::string canonical_text(Declarations by_rank, const Merged& merged, const std::vector<Mesh>& meshes);

}  // namespace gradsync::plan
