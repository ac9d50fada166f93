// Deadlines of a job: connections, declarations, steps, and the time of a lane that is told to stop.

#include "engine/job/job.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradsync::engine {

namespace {

void lower(std::optional<TimePoint>& earliest, const std::optional<TimePoint>& other) {
  if (other && (!earliest || *other < *earliest)) {
    earliest = other;
  }
}

}  // namespace

std::optional<TimePoint> Job::next_deadline() const {
  std::optional<TimePoint> earliest = epochs_.next_deadline();
  if (!attempt_.stuck) {
    lower(earliest, quiet_by());
  }
  if (machine_) {
    lower(earliest, machine_->next_deadline());
  }
  return earliest;
}

std::optional<TimePoint> Job::quiet_by() const {
  if (!attempt_.abort_at) {
    return std::nullopt;
  }
  TimePoint moved = *attempt_.abort_at;
  if (active_) {
    for (const LaneShare& share : active_->shares) {
      moved = std::max(moved, context_.lanes.last_report(share.lane));
    }
  }
  return moved + context_.options.deadlines.lane;
}

void Job::on_time() {
  perform(epochs_.on_time(context_.now));
  if (const auto due = quiet_by(); due && !attempt_.stuck && *due <= context_.now) {
    give_up_on_lane();
  }
  if (machine_) {
    run(machine_->on_time(context_.now, forming() ? epochs_.lacks() : ""));
  }
  follow_pauses();
}

void Job::perform(HalfTime& action) {
  publish_alert("deadline_half", fmt::format("half of the step's deadline is over; it waits for {}", action.waits_for));
}

// Does not wait for a lane that hangs, but does not say either that the gradients' memory may be used again.
void Job::give_up_on_lane() {
  Error error = make_error(
      ErrorCode::InternalError,
      fmt::format(
          "the lane did not stop within {:.1f} s after: {}; it may still change gradients",
          seconds(context_.options.deadlines.lane),
          machine_->failure() ? machine_->failure()->message : "the end of the attempt"
      ),
      "do not use the gradients; look at the daemon's threads (gdb, perf), then restart it and the ranks"
  );
  error.job = identity_.name;
  if (machine_->failure()) {
    error.ranks = machine_->failure()->ranks;
    error.step = machine_->failure()->step;
  }
  spdlog::error("lane stuck job={} epoch={} reason=\"{}\"", identity_.name, epochs_.epoch(), error.message);
  publish_alert("lane_stuck", error.message);
  attempt_.stuck = error;
  answer_failed(attempt_, error);
}

void Job::follow_pauses() {
  if (machine_) {
    machine_->follow_pauses(context_.now, epochs_.roster());
  }
}

}  // namespace gradsync::engine
