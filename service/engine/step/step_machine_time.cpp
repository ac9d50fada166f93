// What an attempt waits for, and until when.

#include "base/text/text.hpp"
#include "engine/step/step_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradsync::engine {

std::vector<std::int64_t> StepMachine::missing_ranks() const {
  std::vector<std::int64_t> missing;
  for (std::size_t seat = 0; seat < ranks_.size(); ++seat) {
    if (!ranks_[seat].ask) {
      missing.push_back(locals_.rank_of(seat));
    }
  }
  return missing;
}

std::string StepMachine::waits_for() const {
  if (course_.error) {
    const char* const waits = busy()         ? "the lane to stop after: "
                              : over_nodes() ? "the other nodes to hear of: "
                                             : "the coordinator to hear of: ";
    return waits + course_.error->message;
  }
  if (course_.phase == Phase::Asking) {
    return over_nodes() ? "the ranks of other nodes" : "the coordinator of this node";
  }
  if (course_.phase == Phase::Voting) {
    return "the verdict of all nodes";
  }
  const std::vector<std::int64_t> missing = missing_ranks();
  if (missing.size() == ranks_.size()) {
    return course_.phase == Phase::NormGiven ? "clip.apply of every rank" : "the next step";
  }
  if (missing.empty()) {
    return "the lane: " + lane_work();
  }
  return fmt::format("rank{} {}", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "));
}

std::string StepMachine::lane_work() const {
  if (plan_->options.data_path == plan::DataPath::Stats) {
    return "the tables of all ranks are filled, the norm is not known";
  }
  const char* const with = !over_nodes() ? (is_sites() ? " on all GPUs" : "")
                           : travels()   ? " with the other nodes"
                                         : "";
  return fmt::format("{} of {} buckets reduced{}", reduced(), plan_->buckets.size(), with);
}

std::optional<TimePoint> StepMachine::deadline() const {
  std::optional<TimePoint> earliest;
  if (course_.error || course_.suspended || !any_waiting() || course_.overdue) {
    return earliest;
  }
  for (const Rank& rank : ranks_) {
    if (rank.ask && (!earliest || rank.ask->deadline < *earliest)) {
      earliest = rank.ask->deadline;
    }
  }
  return earliest;
}

TimePoint StepMachine::first_deadline() const {
  return std::ranges::min(ranks_, {}, [](const Rank& rank) { return rank.ask->deadline; }).ask->deadline;
}

std::optional<TimePoint> StepMachine::half_time() const {
  std::optional<TimePoint> earliest;
  const bool none_missing = all_waiting() && (voting() || !waits_for_nodes());
  if (course_.error || course_.suspended || course_.half_warned || !any_waiting() || none_missing) {
    return earliest;
  }
  for (const Rank& rank : ranks_) {
    if (rank.ask && (!earliest || rank.ask->half < *earliest)) {
      earliest = rank.ask->half;
    }
  }
  return earliest;
}

std::optional<TimePoint> StepMachine::next_deadline() const {
  const std::optional<TimePoint> due = deadline();
  const std::optional<TimePoint> half = half_time();
  return half && due ? std::min(*half, *due) : due;
}

void StepMachine::follow_pauses(TimePoint now, const Roster& roster) {
  const auto is_waited_for = [this](const auto& seat) {
    const std::optional<std::size_t> own = seat.second.paused ? locals_.seat_of(seat.first) : std::nullopt;
    // A rank that has no seat before the next plan took that of one which is waited for.
    return seat.second.paused && !(own && ranks_[*own].ask);
  };
  const bool waits =
      !course_.error && any_waiting() && (peers_paused_ || std::any_of(roster.begin(), roster.end(), is_waited_for));
  if (waits == course_.suspended.has_value()) {
    return;
  }
  for (Rank& rank : ranks_) {
    if (course_.suspended && rank.ask) {
      const Duration by = now - std::max(*course_.suspended, rank.ask->since);
      rank.ask->half += by;
      rank.ask->deadline += by;
    }
  }
  course_.suspended = waits ? std::optional(now) : std::nullopt;
}

std::vector<std::string> StepMachine::missing_tensors() const {
  std::vector<std::string> tensors;
  for (std::size_t seat = 0; seat < ranks_.size(); ++seat) {
    if (ranks_[seat].ask) {
      continue;
    }
    for (std::string& name : unready_tensors(locals_.rank_of(seat))) {
      if (tensors.size() > kNamedTensors) {
        return tensors;
      }
      if (std::find(tensors.begin(), tensors.end(), name) == tensors.end()) {
        tensors.push_back(std::move(name));
      }
    }
  }
  return tensors;
}

Actions StepMachine::on_time(TimePoint now, const std::string& forming) {
  Actions actions;
  if (const std::optional<TimePoint> half = half_time(); half && *half <= now) {
    course_.half_warned = true;
    if (waits_for_nodes()) {
      actions.emplace_back(overdue(now, true));
    } else {
      actions.emplace_back(HalfTime{waits_for()});
    }
  }
  if (const std::optional<TimePoint> due = deadline(); due && *due <= now) {
    if (waits_for_nodes()) {  // who is late is known to the nodes together
      course_.overdue = true;
      actions.emplace_back(overdue(now, false));
      return actions;
    }
    Actions failing = fail_here(timeout(now, forming));
    std::move(failing.begin(), failing.end(), std::back_inserter(actions));
  }
  return actions;
}

const Ask& StepMachine::longest_ask() const {
  const auto longest = std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
    return a.ask && (!b.ask || a.ask->since < b.ask->since);
  });
  return *longest->ask;
}

PeersOverdue StepMachine::overdue(TimePoint now, bool half) const {
  const Ask& ask = longest_ask();
  return {half, ask.step, seconds(now - ask.since)};
}

Error StepMachine::timeout(TimePoint now, const std::string& forming) const {
  const Ask& longest = longest_ask();
  const double waited_s = seconds(now - longest.since);
  const std::vector<std::int64_t> missing = missing_ranks();
  std::vector<std::string> tensors = missing_tensors();
  std::string what;
  if (missing.empty()) {
    what = fmt::format("the lane did not finish within {:.1f} s: {}", waited_s, lane_work());
  } else if (!forming.empty()) {
    what = fmt::format("waited {:.1f} s, but the epoch is not complete: {}", waited_s, forming);
  } else {
    what = fmt::format(
        "waited {:.1f} s for rank{} {}; not ready there: {}",
        waited_s,
        missing.size() > 1 ? "s" : "",
        fmt::join(missing, ", "),
        tensors.empty() ? "nothing (the finish call itself is missing)" : enumerate_names(tensors, kNamedTensors)
    );
  }
  Error error = make_error(
      ErrorCode::StepTimeout,
      std::move(what),
      "look at what these ranks do (py-spy, gradsyncd status); raise the timeout when the step is just long"
  );
  error.ranks = missing;
  tensors.resize(std::min(tensors.size(), kNamedTensors));
  error.tensors = std::move(tensors);
  error.step = longest.step;
  error.waited_s = waited_s;
  return error;
}

}  // namespace gradsync::engine
