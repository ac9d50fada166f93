#pragma once
// The fixed threshold: what was declared, unless this step says otherwise. Pure.

#include "base/error.hpp"
#include "plan/clip_rule.hpp"

#include <optional>
#include <string>

namespace gradsync::policy {

/// The rule of one clip group for one step. With `override_max_norm` the step's `max_norm` (empty: measure only)
/// replaces the declared one; what 0 means stays as declared.
/// Errors: InvalidParams with path `max_norm`.
[[nodiscard]] Result<plan::ClipRule> fixed_rule(
    const plan::ClipOptions& declared,
    bool override_max_norm,
    std::optional<double> max_norm,
    plan::ClipMode mode,
    plan::DType norm_dtype
);

/// Digest of everything that decides how gradients are clipped: 16 hex digits, equal on every rank that declared the
/// same.
[[nodiscard]] std::string policy_digest(const plan::DeclareOptions& options);

}  // namespace gradsync::policy
