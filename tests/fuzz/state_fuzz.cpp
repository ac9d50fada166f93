// Any bytes as the state of a policy, with a checksum that is right for them: what is taken is what would be written,
// and what is refused changes nothing. The first byte chooses the policy.

#include "base/text/hash.hpp"
#include "fuzz/fuzz.hpp"
#include "policy/policy.hpp"

#include <cmath>
#include <iterator>
#include <optional>
#include <string>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

policy::Policy policy_of(std::uint8_t choice) {
  const plan::PolicyOptions kinds[] = {
      plan::FixedPolicy{},
      plan::ObservePolicy{},
      plan::PercentilePolicy{95, 8, 2},
      plan::ZScorePolicy{2.5, 0.97, 4},
      plan::AutoPolicy{{95, 8, 2}}};
  plan::ClipOptions clip;
  clip.max_norm = 1;
  clip.policy = kinds[choice % std::size(kinds)];
  clip.spike = plan::SpikeAction::Skip;
  return {clip, plan::ClipMode::Strict, plan::DType::Float64};
}

std::string saved(const policy::Policy& policy) {
  std::string bytes;
  policy.save(bytes);
  return bytes;
}

void check(policy::Policy& policy, const std::string& bytes) {
  const std::string before = saved(policy);
  const Result<void> restored = policy.restore(bytes);
  if (!restored) {
    REQUIRE(restored.error().path == "state");
    REQUIRE(!restored.error().message.empty() && !restored.error().hint.empty());
    REQUIRE(saved(policy) == before);
    return;
  }
  REQUIRE(saved(policy) == bytes);
  if (const std::optional<double> ceiling = policy.rule().max_norm) {
    REQUIRE(plan::apply_clip_rule(policy.rule(), 0.5, 1).threshold <= *ceiling);
  }
  for (const double norm : {0.5, 1e300, std::nan(""), 0.0, 3.0}) {
    const plan::ClipOutcome outcome = plan::apply_clip_rule(policy.rule(), norm, 1);
    REQUIRE(outcome.threshold >= 0);
    policy.record(outcome);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  policy::Policy policy = policy_of(data[0]);
  std::string bytes(fuzz::text_of(data + 1, size - 1));
  check(policy, bytes);
  const std::uint64_t checksum = hash64(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  policy = policy_of(data[0]);
  check(policy, bytes);
  return 0;
}
