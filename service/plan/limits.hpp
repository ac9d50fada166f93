#pragma once
// The limits of a declaration that other layers must know too. A wire check that admits more only moves the refusal.

#include <cstddef>

namespace gradsync::plan {

/// The longest name or label in a declaration (tensors, meshes, axes, clip groups, layers, tied ids), in bytes of
/// UTF-8. The shortest has one byte.
inline constexpr std::size_t kMaxNameBytes = 512;

/// Each report names every clip group.
inline constexpr std::size_t kMaxClipGroups = 1000;

/// The most watching policies of one clip group. Each report says what every one of them would have done.
inline constexpr std::size_t kMaxWatchingPolicies = 8;

}  // namespace gradsync::plan
