#pragma once
// The limits of a declaration that others must know as well: a wire check that admits more only moves the refusal.

#include <cstddef>

namespace gradsync::plan {

/// Of each name and label of a declaration: tensors, meshes, axes, clip groups, layers, tied ids. UTF-8; at least 1.
inline constexpr std::size_t kMaxNameBytes = 512;

/// Each report names every clip group.
inline constexpr std::size_t kMaxClipGroups = 1000;

/// Of a clip group. Each report says what every one of them would have done.
inline constexpr std::size_t kMaxWatchingPolicies = 8;

}  // namespace gradsync::plan
