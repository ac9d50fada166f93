#pragma once
// A policy as written on a command line: "percentile", "percentile:percentile=90,window=500,max_norm=2",
// "zscore:z=3,spike=skip". Names and defaults are those of a declaration, but max_norm is 1 unless given; "none"
// means none. "auto" has formula torch unless another is given, and a max_norm of 0 makes its gradients 0.

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <string>

namespace gradsync::app {

struct NamedPolicy {
  std::string text;  ///< as written
  plan::ClipOptions clip;
  plan::ClipMode mode = plan::ClipMode::Strict;
};

/// Errors: InvalidParams, its path the name that is wrong.
[[nodiscard]] Result<NamedPolicy> read_policy(const std::string& text);

}  // namespace gradsync::app
