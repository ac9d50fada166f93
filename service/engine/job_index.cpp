#include "engine/job_index.hpp"

#include <utility>

namespace gradsync::engine {

void JobIndex::touch(Job& job) {
  if (!std::exchange(job.facts.touched, true)) {
    touched_.push_back(&job);
    ++looks_;
  }
}

void JobIndex::settle() {
  count_computing();
  for (Job* const job : touched_) {
    set_due(*job, job->next_deadline());
    job->facts.touched = false;
  }
  touched_.clear();
}

void JobIndex::forget(Job& job) {
  set_due(job, std::nullopt);
  std::erase(touched_, &job);
}

void JobIndex::set_due(Job& job, const std::optional<TimePoint>& due) {
  JobFacts& facts = job.facts;
  if (facts.due && due && (*facts.due)->first == *due) {
    return;
  }
  if (facts.due) {
    facts.spare = deadlines_.extract(*std::exchange(facts.due, std::nullopt));
  }
  if (due && facts.spare) {
    facts.spare.key() = *due;
    facts.due = deadlines_.insert(std::move(facts.spare));
  } else if (due) {
    facts.due = deadlines_.emplace(*due, &job);
  }
}

std::optional<TimePoint> JobIndex::next_deadline() const {
  return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.begin()->first);
}

std::vector<Job*> JobIndex::due(TimePoint now) const {
  std::vector<Job*> due;
  for (auto at = deadlines_.begin(); at != deadlines_.end() && at->first <= now; ++at) {
    due.push_back(at->second);
  }
  return due;
}

void JobIndex::count_computing() {
  for (Job* const job : touched_) {
    const Computing now{job->computes() && !job->facts.closing, job->active_plan(), lanes_.next_id()};
    if (job->facts.computing != now) {
      job->facts.computing = now;
      count_anew(*job);
    }
  }
}

/// A job without a plan computes beside any lane.
void JobIndex::count_anew(Job& job) {
  for (const device::LaneId lane : job.facts.beside) {
    lanes_.add_computing(lane, -1);
  }
  job.facts.beside.clear();
  if (!job.facts.computing->computes) {
    return;
  }
  for (Lanes::Entry& entry : lanes_) {
    if (job.facts.computing->plan == 0 || job.runs_on(entry.id)) {
      ++entry.computing;
      job.facts.beside.push_back(entry.id);
    }
  }
}

}  // namespace gradsync::engine
