// Random small plans against plain loops.

#include "unit/device/host/sharded_oracle.hpp"
#include "unit/device/random_job.hpp"

#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

TEST(RandomPlans, leave_what_plain_loops_leave) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomJob random(seed);
    ShardedJob job = random.make();
    job.load();
    for (Tag tag = 1; tag <= 3; ++tag) {
      job.fill(random.random());
      const std::optional<double> limit = tag == 1 ? std::optional<double>() : 0.75;
      expect_step(job, tag, tag == 3 ? UnusedSet() : random.unused(job), limit);
    }
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace gradsync::device
