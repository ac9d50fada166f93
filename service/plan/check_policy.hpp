#pragma once

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <string>

namespace gradsync::plan {

/// The policy of a clip group and those that watch. Errors: InvalidParams, its path begins with `path`.
[[nodiscard]] Result<void> check_policies(const ClipOptions& clip, const std::string& path);

/// One of them.
[[nodiscard]] Result<void> check_policy(const PolicyOptions& policy, const std::string& path);

}  // namespace gradsync::plan
