// Any bytes as the state of all policies of a job, as they are and with checksums that are right for them: what is
// taken is what would be written, and what is refused changes nothing. The first byte chooses the clip groups.

#include "base/text/hash.hpp"
#include "fuzz/fuzz.hpp"
#include "unit/engine/policies/group_steps.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace {

using namespace gradsync;          // NOLINT(google-build-using-namespace): a main file
using namespace gradsync::engine;  // NOLINT(google-build-using-namespace)

plan::Plan plan_of_choice(std::uint8_t choice) {
  switch (choice % 4) {
    case 0:
      return plan_of({clip(kMedian)});
    case 1:
      return plan_of({clip(plan::FixedPolicy{}, {kMedian, kScore}), clip(kScore)});
    case 2:
      return plan_of({});
    default:
      return every_kind();
  }
}

/// Walks as far as the bytes go, and sets the checksum of each state, then that of all.
void mend(std::string& bytes) {
  constexpr std::size_t kChecksum = sizeof(std::uint64_t);
  std::string hashed;
  std::size_t at = 0;
  std::size_t hashed_to = 0;
  const auto number = [&](std::size_t size) {
    std::uint64_t value = 0;
    if (size <= bytes.size() - at) {
      std::memcpy(&value, bytes.data() + at, size);
      at += size;
    } else {
      at = bytes.size();
    }
    return value;
  };
  at = std::min<std::size_t>(20, bytes.size());
  for (std::uint64_t groups = number(4); groups > 0 && at < bytes.size(); --groups) {
    const std::uint64_t name = number(4);
    std::uint64_t policies = number(4);
    at += std::min<std::uint64_t>(name, bytes.size() - at);
    for (; policies > 0 && at < bytes.size(); --policies) {
      const std::uint64_t size = number(8);
      if (size < kChecksum || size > bytes.size() - at) {
        return;
      }
      const std::uint64_t checksum = hash64(std::string_view(bytes).substr(at, size - kChecksum));
      std::memcpy(bytes.data() + at + size - kChecksum, &checksum, kChecksum);
      hashed.append(bytes, hashed_to, at - hashed_to).append(bytes, at + size - kChecksum, kChecksum);
      at += size;
      hashed_to = at;
    }
  }
  if (at + kChecksum == bytes.size()) {
    const std::uint64_t checksum = hash64(hashed.append(bytes, hashed_to, at - hashed_to));
    std::memcpy(bytes.data() + at, &checksum, kChecksum);
  }
}

void check(const plan::Plan& plan, const std::string& bytes) {
  GroupPolicies policies(plan);
  const std::size_t groups = plan.clip_groups.size();
  step(policies, std::vector<double>(groups, 0.5));
  const std::string before = saved(policies);
  const Result<void> restored = policies.restore(bytes);
  if (!restored) {
    REQUIRE(restored.error().path == "state");
    REQUIRE(!restored.error().message.empty() && !restored.error().hint.empty());
    REQUIRE(saved(policies) == before);
    return;
  }
  REQUIRE(saved(policies) == bytes);
  for (const double norm : {0.5, 1e300, std::numeric_limits<double>::quiet_NaN(), 0.0, 3.0}) {
    const Step done = step(policies, std::vector<double>(groups, norm));
    for (std::size_t group = 0; group < groups; ++group) {
      REQUIRE(done.outcomes[group].threshold >= 0);
      REQUIRE(done.watched[group].size() == plan.clip_groups[group].clip.watch.size());
    }
  }
  GroupPolicies again(plan);
  REQUIRE(again.restore(saved(policies)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const plan::Plan plan = plan_of_choice(data[0]);
  std::string bytes(fuzz::text_of(data + 1, size - 1));
  check(plan, bytes);
  mend(bytes);
  check(plan, bytes);
  return 0;
}
