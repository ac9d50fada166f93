// What runs out: connections, declarations and steps, and what a pause does to it.

#include "engine/job.hpp"

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

TimePoint deadline_after(TimePoint now, Milliseconds timeout) {
  constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);
  return now + std::clamp(timeout, Milliseconds(0), kLongest);
}

std::optional<TimePoint> Job::next_deadline() const {
  std::optional<TimePoint> earliest;
  for (const Rank& rank : ranks_) {
    lower(earliest, rank.reconnect_until);
    if (rank.declare_reply && !declare_suspended_) {
      lower(earliest, rank.declare_deadline);
    }
  }
  if (!stuck_) {
    lower(earliest, quiet_by_);
  }
  if (machine_ && !step_suspended_) {
    lower(earliest, machine_->deadline());
    if (!half_warned_) {
      lower(earliest, machine_->half_time());
    }
  }
  return earliest;
}

void Job::lane_moved() {
  if (quiet_by_) {
    quiet_by_ = context_.now + context_.options.deadlines.lane;
  }
}

void Job::on_time() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rank.reconnect_until && *rank.reconnect_until <= context_.now) {
      leave(
          static_cast<std::int64_t>(i),
          fmt::format(
              "lost its connection and process {} did not come back within {:.1f} s",
              rank.pid,
              seconds(context_.options.deadlines.reconnect)
          ),
          true
      );
      continue;
    }
    if (rank.declare_reply && !declare_suspended_ && rank.declare_deadline <= context_.now) {
      time_out_declare(rank);
    }
  }
  if (quiet_by_ && !stuck_ && *quiet_by_ <= context_.now) {
    give_up_on_lane();
  }
  if (machine_ && !step_suspended_) {
    const std::optional<TimePoint> half = machine_->half_time();
    if (!half_warned_ && half && *half <= context_.now) {
      half_warned_ = true;
      publish_alert(
          "deadline_half", fmt::format("half of the step's deadline is over; it waits for {}", machine_->waits_for())
      );
    }
    run(machine_->on_deadline(context_.now, all_committed() ? "" : forming_reason()));
  }
  follow_pauses();
}

// Nobody is kept waiting for a lane that hangs, but nobody is told either that the gradients' memory is his again.
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
  error.job = name_;
  if (machine_->failure()) {
    error.ranks = machine_->failure()->ranks;
    error.step = machine_->failure()->step;
  }
  spdlog::error("lane stuck job={} epoch={} reason=\"{}\"", name_, epoch_, error.message);
  publish_alert("lane_stuck", error.message);
  stuck_ = error;
  answer_failed(error);
}

void Job::time_out_declare(Rank& rank) {
  Error error = make_error(
      ErrorCode::DeclareTimeout,
      fmt::format(
          "not all ranks declared within {:.1f} s: {}", seconds(context_.now - rank.declare_since), forming_reason()
      ),
      "look why these ranks do not reach gradients.declare, or raise the timeout"
  );
  error.job = name_;
  error.waited_s = seconds(context_.now - rank.declare_since);
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    if (lacks_declaration(ranks_[other])) {
      error.ranks.push_back(static_cast<std::int64_t>(other));
    }
  }
  cancel_forming();
  drop_declaration(rank);
  answer_declare(rank, error);
}

bool Job::step_waits_for_paused() const {
  if (!machine_ || machine_->failing() || !machine_->any_waiting()) {
    return false;
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].paused && !machine_->waiting(static_cast<std::int64_t>(rank))) {
      return true;
    }
  }
  return false;
}

bool Job::declare_waits_for_paused() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return bool(rank.declare_reply); }) &&
         std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
           return rank.paused && !rank.declare_reply && lacks_declaration(rank);
         });
}

// After everything that may change who waits for whom. The time somebody waited for a paused rank does not count; that
// of a pause nobody waited for does not count twice, and neither do two pauses at once.
void Job::follow_pauses() {
  if (const bool waits = step_waits_for_paused(); waits != step_suspended_.has_value()) {
    if (step_suspended_ && machine_) {
      machine_->extend_deadlines(*step_suspended_, context_.now);
    }
    step_suspended_ = waits ? std::optional(context_.now) : std::nullopt;
  }
  if (const bool waits = declare_waits_for_paused(); waits != declare_suspended_.has_value()) {
    for (Rank& rank : ranks_) {
      if (declare_suspended_ && rank.declare_reply) {
        rank.declare_deadline += context_.now - std::max(*declare_suspended_, rank.declare_since);
      }
    }
    declare_suspended_ = waits ? std::optional(context_.now) : std::nullopt;
  }
}

}  // namespace gradsync::engine
