#include "device/nccl/launch_order.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace gradsync::device {

namespace {

std::string words_for(const PlannedCollective& one) {
  constexpr const char* kKinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
  return fmt::format(
      "the {} of {} elements on {}, stage {} of bucket {}",
      kKinds[static_cast<std::size_t>(one.kind)],
      one.elements,
      one.communicator,
      one.stage,
      one.bucket
  );
}

}  // namespace

LaunchOrder::LaunchOrder(std::vector<PlannedCollective> step) : step_(std::move(step)) {
  std::set<std::uint32_t> buckets;
  for (std::size_t at = 0; at < step_.size(); ++at) {
    const PlannedCollective& one = step_[at];
    const bool goes_on = at > 0 && step_[at - 1].bucket == one.bucket;
    // Chunks of a bucket are one stage after the other, so each of them begins again with its first stage.
    if (!goes_on ? !buckets.insert(one.bucket).second || one.stage != 0
                 : one.stage != 0 && one.stage != step_[at - 1].stage + 1) {
      throw DeviceError(fmt::format("the plan does not fit: {} is out of order", words_for(one)));
    }
  }
  next_ = step_.size();
}

void LaunchOrder::take(const PlannedCollective& launched) {
  if (complete()) {
    throw DeviceError(fmt::format("{} is none of this step, which has all of its collectives", words_for(launched)));
  }
  if (step_[next_] != launched) {
    throw DeviceError(
        fmt::format("{} is out of turn: every member launches {} now", words_for(launched), words_for(step_[next_]))
    );
  }
  ++next_;
}

void LaunchOrder::begin_step() {
  if (!complete()) {
    throw DeviceError(fmt::format("a step begins, and the one before has not launched {}", words_for(step_[next_])));
  }
  next_ = 0;
}

}  // namespace gradsync::device
