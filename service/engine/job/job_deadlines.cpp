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
  lower(earliest, attempt_.stop.next_deadline(last_report(), context_.options.deadlines.lane));
  if (machine_) {
    lower(earliest, machine_->next_deadline());
  }
  return earliest;
}

TimePoint Job::last_report() const {
  TimePoint last;
  if (active_) {
    for (const LaneShare& share : active_->shares) {
      last = std::max(last, context_.lanes.last_report(share.lane));
    }
  }
  return last;
}

LaneStop::EndedBy Job::ended_by() const {
  const auto on_gpu = [this](const LaneShare& share) { return !context_.lanes.gpu_of(share.lane).empty(); };
  const bool killed = active_ && std::ranges::all_of(active_->shares, on_gpu);
  return killed ? LaneStop::EndedBy::Kill : LaneStop::EndedBy::Restart;
}

std::string Job::lacks() const {
  const std::string elsewhere = peers_->waits_for();
  return elsewhere.empty() ? epochs_.lacks() : fmt::format("{} ({})", epochs_.lacks(), elsewhere);
}

/// Declare calls whose time is over: the epoch machine knows its own seats only.
void Job::name_other_nodes(EpochActions& due) const {
  const std::string elsewhere = peers_->waits_for();
  for (EpochAction& action : due) {
    auto* answer = std::get_if<AnswerDeclare>(&action);
    if (answer == nullptr || !answer->error || answer->error->code != ErrorCode::DeclareTimeout) {
      continue;
    }
    std::string& text = answer->error->message;
    text += elsewhere.empty() ? "" : fmt::format(" ({})", elsewhere);
    if (const std::string& reason = epochs_.not_begun(); !reason.empty()) {
      text += "; an epoch that formed meanwhile did not begin: " + reason;
    }
  }
}

void Job::on_time() {
  EpochActions due = epochs_.on_time(context_.now);
  name_other_nodes(due);
  perform(due);
  const std::optional<Error> failure = machine_ ? machine_->failure() : std::nullopt;
  const Milliseconds patience = context_.options.deadlines.lane;
  if (const auto stuck =
          attempt_.stop.on_time(context_.now, last_report(), patience, identity_.name, failure, ended_by())) {
    give_up_on_lane(*stuck);
  }
  if (machine_) {
    run(machine_->on_time(context_.now, forming() ? lacks() : ""));
  }
  follow_pauses();
}

void Job::perform(HalfTime& action) {
  publish_alert("deadline_half", fmt::format("half of the step's deadline is over; it waits for {}", action.waits_for));
}

void Job::give_up_on_lane(const Error& stuck) {
  spdlog::error("lane stuck job={} epoch={} reason=\"{}\"", identity_.name, epochs_.epoch(), stuck.message);
  publish_alert("lane_stuck", stuck.message);
  keep_dump(stuck);
  answer_failed(attempt_, stuck);
}

void Job::follow_pauses() {
  if (machine_) {
    machine_->follow_pauses(context_.now, epochs_.roster());
  }
}

}  // namespace gradsync::engine
