#pragma once

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <cstdint>
#include <string>

namespace gradsync::plan {

/// The policy of a clip group and those that watch. Errors: InvalidParams, its path begins with `path`.
[[nodiscard]] Result<void> check_policies(const ClipOptions& clip, const std::string& path);

/// Of all policies of a declaration, those that watch included: 16 bytes each.
inline constexpr std::int64_t kMaxRememberedNorms = 1'000'000;

/// How many norms the policy of the group and those that watch hold at most.
[[nodiscard]] std::int64_t remembered_norms(const ClipOptions& clip);

/// One of them.
[[nodiscard]] Result<void> check_policy(const PolicyOptions& policy, const std::string& path);

}  // namespace gradsync::plan
