#include "engine/step/lane_stop.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

std::optional<TimePoint> LaneStop::next_deadline(TimePoint moved, Milliseconds patience) const {
  return told_ && !stuck_ ? std::optional(std::max(*told_, moved) + patience) : std::nullopt;
}

std::optional<Error> LaneStop::on_time(
    TimePoint now,
    TimePoint moved,
    Milliseconds patience,
    const std::string& job,
    const std::optional<Error>& failure,
    EndedBy ended_by
) {
  const std::optional<TimePoint> due = next_deadline(moved, patience);
  if (!due || now < *due) {
    return std::nullopt;
  }
  const bool killed = ended_by == EndedBy::Kill;
  Error& error = stuck_.emplace(make_error(
      killed ? ErrorCode::StepFailed : ErrorCode::InternalError,
      fmt::format(
          "the lane did not stop within {:.1f} s after: {}; it may still change gradients",
          seconds(patience),
          failure ? failure->message : "the end of the attempt"
      ),
      killed
          ? "do not use the gradients; the worker of the GPU is killed if it does not answer, and then another takes "
            "its place: declare again"
          : "do not use the gradients; look at the daemon's threads (gdb, perf), then restart it and the ranks"
  ));
  error.job = job;
  if (failure) {
    error.node = failure->node;
    error.ranks = failure->ranks;
    error.step = failure->step;
  }
  return error;
}

}  // namespace gradsync::engine
