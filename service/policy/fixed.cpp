#include "policy/fixed.hpp"

#include "base/hash.hpp"
#include "plan/canonical_text.hpp"
#include "plan/check_max_norm.hpp"

namespace gradsync::policy {

Result<plan::ClipRule> fixed_rule(
    const plan::ClipOptions& declared,
    bool override_max_norm,
    std::optional<double> max_norm,
    plan::ClipMode mode,
    plan::DType norm_dtype
) {
  const plan::ClipOptions clip{override_max_norm ? max_norm : declared.max_norm, declared.zero_rule};
  if (const auto checked = plan::check_max_norm(clip, "max_norm"); !checked) {
    return checked.error();
  }
  plan::ClipRule rule;
  rule.max_norm = clip.max_norm;
  rule.mode = mode;
  rule.zero_rule = clip.zero_rule;
  rule.norm_dtype = norm_dtype;
  return rule;
}

std::string policy_digest(const plan::DeclareOptions& options) {
  plan::DeclareOptions deciding = options;
  deciding.accumulate = 1;  // how often a gradient is added to has no say in how it is clipped
  return digest("fixed " + plan::canonical_text(deciding));
}

}  // namespace gradsync::policy
