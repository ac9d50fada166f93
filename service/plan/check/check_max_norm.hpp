#pragma once
// The one check of a threshold, for what is declared and for what a step overrides.

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <string>

namespace gradsync::plan {

/// Errors: InvalidParams at `path` for a negative, NaN or infinite max_norm, and for 0 unless zero_rule says what it
/// means.
[[nodiscard]] Result<void> check_max_norm(const ClipOptions& clip, const std::string& path);

}  // namespace gradsync::plan
