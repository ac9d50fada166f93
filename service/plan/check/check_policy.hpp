#pragma once

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <cstdint>
#include <string>

namespace gradsync::plan {

/// Checks the policy of a clip group and its watching policies. Errors: InvalidParams, its path begins with `path`.
[[nodiscard]] Result<void> check_policies(const ClipOptions& clip, const std::string& path);

/// The most norms that all policies of a declaration may remember together, watching ones included. A state has to fit
/// into a message at 16 hex digits per norm, and is stored with every step.
inline constexpr std::int64_t kMaxRememberedNorms = 50'000;

/// The most watching policies over all clip groups of a declaration. Every report says what each would have done.
inline constexpr std::size_t kMaxWatchingInAll = 256;

/// The most norms that the policy of the group and its watching policies remember.
[[nodiscard]] std::int64_t remembered_norms(const ClipOptions& clip);

/// Checks one policy.
[[nodiscard]] Result<void> check_policy(const PolicyOptions& policy, const std::string& path);

}  // namespace gradsync::plan
