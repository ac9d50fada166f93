#pragma once

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <cstdint>
#include <string>

namespace gradsync::plan {

/// The policy of a clip group and those that watch. Errors: InvalidParams, its path begins with `path`.
[[nodiscard]] Result<void> check_policies(const ClipOptions& clip, const std::string& path);

/// Of all policies of a declaration, those that watch included: a state has to fit into a message, 16 hex digits each,
/// and is written down with every step.
inline constexpr std::int64_t kMaxRememberedNorms = 50'000;

/// Of all clip groups of a declaration: what each would have done is in every report.
inline constexpr std::size_t kMaxWatchingInAll = 256;

/// How many norms the policy of the group and those that watch hold at most.
[[nodiscard]] std::int64_t remembered_norms(const ClipOptions& clip);

/// One of them.
[[nodiscard]] Result<void> check_policy(const PolicyOptions& policy, const std::string& path);

}  // namespace gradsync::plan
