#include "plan/check/check_max_norm.hpp"

#include <fmt/format.h>

#include <cmath>

namespace gradsync::plan {

Result<void> check_max_norm(const ClipOptions& clip, const std::string& path) {
  if (!clip.max_norm) {
    return {};
  }
  const double max_norm = *clip.max_norm;
  if (!std::isfinite(max_norm)) {
    return invalid_params(
        path,
        fmt::format("max_norm is {}, a finite number is expected", max_norm),
        "leave max_norm None to measure only"
    );
  }
  if (max_norm < 0) {
    return invalid_params(
        path,
        fmt::format("max_norm is {}, a number > 0 is expected", max_norm),
        "give a positive max_norm, or None to measure only"
    );
  }
  if (max_norm == 0 && clip.zero_rule == ZeroRule::Refuse) {
    return invalid_params(
        path,
        "max_norm is 0, and references disagree on what that means: some switch clipping off, others zero the "
        "gradients",
        "say zero_rule=\"off\" or zero_rule=\"zero\", or leave max_norm None to measure only"
    );
  }
  return {};
}

}  // namespace gradsync::plan
