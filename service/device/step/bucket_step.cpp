#include "device/step/bucket_step.hpp"

#include "device/device_error.hpp"
#include "device/step/chunk_sums.hpp"
#include "device/step/contributions.hpp"

#include <fmt/format.h>

namespace gradsync::device {

namespace {

void check_command(const LoadedPlan& plan, const ReduceBucket& command) {
  const LanePlan& layout = plan.layout();
  if (command.bucket >= layout.buckets.size()) {
    throw DeviceError(fmt::format("bucket {} is not one of the plan's {}", command.bucket, layout.buckets.size()));
  }
  if (plan.attempt().buckets[command.bucket].reduced == command.tag) {
    throw DeviceError(fmt::format("bucket {} was already reduced in attempt {}", command.bucket, command.tag));
  }
  for (const UnusedTensor& unused : command.unused) {
    const bool known = unused.tensor < layout.tensors.size() && unused.rank >= 0 &&
                       static_cast<std::size_t>(unused.rank) < plan.world() && plan.is_here(unused.rank);
    if (!known || layout.tensors[unused.tensor].bucket != command.bucket) {
      throw DeviceError(
          fmt::format("unused tensor {} of rank {} is not in bucket {}", unused.tensor, unused.rank, command.bucket)
      );
    }
  }
}

}  // namespace

void begin_bucket(LoadedPlan& plan, const ReduceBucket& command) {
  check_command(plan, command);
  begin_attempt(plan, command);
  plan.attempt().buckets[command.bucket].deferred = command.defer && plan.nodes() == nullptr;
}

void end_bucket(LoadedPlan& plan, const ReduceBucket& command, const StepPasses& passes) {
  combine_chunks(plan, plan.layout().buckets[command.bucket], passes);
  plan.attempt().buckets[command.bucket].reduced = command.tag;
}

void reduce_bucket(LoadedPlan& plan, const ReduceBucket& command, const StepPasses& passes) {
  begin_bucket(plan, command);
  passes.reduce(plan, command);
  end_bucket(plan, command, passes);
}

}  // namespace gradsync::device
