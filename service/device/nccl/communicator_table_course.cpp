// How communicators are built, fail and end; what plans want of them is in communicator_table.cpp.

#include "device/nccl/communicator_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

std::string words_for(const CommunicatorFacts& facts) {
  return fmt::format("communicator {} of ranks [{}]", facts.name, fmt::join(facts.ranks, ", "));
}

}  // namespace

void CommunicatorTable::build_next(JobNumber job, Actions& actions) {
  std::map<CommunicatorSlot, Entry>::iterator next = entries_.end();
  for (auto each = entries_.begin(); each != entries_.end(); ++each) {
    const Entry& entry = each->second;
    if (entry.job != job) {
      continue;
    }
    if (entry.facts.state == State::Building || entry.facts.state == State::Warming) {
      return;  // its members all build this one now
    }
    if (entry.facts.state == State::Wanted && entry.id &&
        (next == entries_.end() || entry.facts.name < next->second.facts.name)) {
      next = each;
    }
  }
  if (next == entries_.end()) {
    return;
  }
  auto& [slot, entry] = *next;
  const NcclUniqueId id = *std::exchange(entry.id, std::nullopt);
  entry.instance = instance_of(id);
  entry.facts.state = State::Building;
  actions.emplace_back(Build{
      slot, id, entry.facts.name, static_cast<int>(entry.spec.ranks.size()), static_cast<int>(entry.spec.own)});
}

void CommunicatorTable::note_connected(JobNumber job, Actions& actions) {
  for (auto& [number, plan] : plans_) {
    const bool done = plan.job == job && plan.deadline &&
                      std::ranges::all_of(plan.by_name, [&](const auto& each) { return is_ready(each.second); });
    if (done) {
      plan.deadline.reset();
      plan.connected = true;
      actions.emplace_back(Connected{number});
    }
  }
}

CommunicatorTable::Actions CommunicatorTable::on_built(CommunicatorSlot slot) {
  const auto found = entries_.find(slot);
  if (found == entries_.end() || found->second.facts.state != State::Building) {
    return {};  // it has failed meanwhile
  }
  found->second.facts.state = State::Warming;
  return {WarmUp{slot}};
}

CommunicatorTable::Actions CommunicatorTable::on_warm(CommunicatorSlot slot, TimePoint now) {
  Actions actions;
  const auto found = entries_.find(slot);
  if (found == entries_.end() || found->second.facts.state != State::Warming) {
    return actions;
  }
  found->second.facts.state = State::Ready;
  found->second.idle_since = now;
  build_next(found->second.job, actions);
  note_connected(found->second.job, actions);
  return actions;
}

CommunicatorTable::Actions CommunicatorTable::on_error(
    CommunicatorSlot slot, const std::string& message, TimePoint now
) {
  Actions actions;
  const auto found = entries_.find(slot);
  if (found == entries_.end() || !lives(found->second)) {
    return actions;
  }
  if (found->second.users.empty()) {
    end({slot}, now, actions);  // it was idle: nothing is lost
  } else {
    break_job(found->second.job, fmt::format("{}: {}", words_for(found->second.facts), message), actions);
  }
  return actions;
}

void CommunicatorTable::break_job(JobNumber job, const std::string& message, Actions& actions) {
  for (auto& [slot, entry] : entries_) {
    if (entry.job == job && lives(entry)) {
      entry.facts.state = State::Failed;
    }
  }
  for (auto& [number, plan] : plans_) {
    if (plan.job == job && (plan.deadline || plan.connected)) {
      plan.deadline.reset();
      plan.connected = false;
      actions.emplace_back(Broken{number, message});
    }
  }
}

void CommunicatorTable::end(std::vector<CommunicatorSlot> slots, TimePoint now, Actions& actions) {
  if (slots.empty()) {
    return;
  }
  for (const CommunicatorSlot slot : slots) {
    Entry& entry = entries_.at(slot);
    entry.facts.state = State::Aborting;
    entry.users.clear();
    entry.abort_deadline = now + deadlines_.abort;
  }
  actions.emplace_back(AbortGroup{std::move(slots)});
}

CommunicatorTable::Actions CommunicatorTable::end_idle(JobNumber job, TimePoint now) {
  std::vector<CommunicatorSlot> idle;
  for (const auto& [slot, entry] : entries_) {
    if (entry.job == job && entry.users.empty() && lives(entry)) {
      idle.push_back(slot);
    }
  }
  Actions actions;
  end(std::move(idle), now, actions);
  return actions;
}

CommunicatorTable::Actions CommunicatorTable::abort(PlanId plan, TimePoint now) {
  const JobNumber job = plans_.at(plan).job;
  Actions actions;
  plans_.at(plan).deadline.reset();  // it is told that it is aborted, and not that it is broken
  plans_.at(plan).connected = false;
  break_job(job, "the job's communicators were aborted", actions);
  std::vector<CommunicatorSlot> ends;
  bool ending = false;
  for (const auto& [slot, entry] : entries_) {
    if (entry.job == job && entry.facts.state == State::Aborting) {
      ending = true;
    } else if (entry.job == job && entry.instance) {
      ends.push_back(slot);
    }
  }
  if (!ending && ends.empty()) {
    actions.emplace_back(Gone{job});
    return actions;
  }
  ending_.insert(job);
  end(std::move(ends), now, actions);
  return actions;
}

CommunicatorTable::Actions CommunicatorTable::on_aborted(const std::vector<CommunicatorSlot>& slots) {
  Actions actions;
  for (const CommunicatorSlot slot : slots) {
    entries_.erase(slot);
  }
  std::erase_if(ending_, [&](JobNumber job) {
    const bool gone = std::ranges::none_of(entries_, [&](const auto& each) {
      return each.second.job == job && each.second.facts.state == State::Aborting;
    });
    if (gone) {
      actions.emplace_back(Gone{job});
    }
    return gone;
  });
  return actions;
}

std::string CommunicatorTable::words_for_overdue(const Plan& plan) const {
  for (const auto& [name, slot] : plan.by_name) {
    const auto found = entries_.find(slot);
    // Those that wait for another one are not at fault.
    if (found != entries_.end() &&
        (found->second.facts.state == State::Building || found->second.facts.state == State::Warming)) {
      return fmt::format(
          "{} was {} after {} s: a member did not come to it, or cannot be reached",
          words_for(found->second.facts),
          found->second.facts.state == State::Building ? "not built" : "built but not warm",
          seconds(deadlines_.build)
      );
    }
  }
  return fmt::format("communicators of the job's other plans were not built after {} s", seconds(deadlines_.build));
}

CommunicatorTable::Actions CommunicatorTable::on_time(TimePoint now) {
  Actions actions;
  for (const auto& [number, plan] : plans_) {
    if (plan.deadline && *plan.deadline <= now) {
      break_job(plan.job, words_for_overdue(plan), actions);
    }
  }
  std::vector<CommunicatorSlot> idle;
  for (const auto& [slot, entry] : entries_) {
    if (entry.abort_deadline && *entry.abort_deadline <= now && !lost_) {
      lost_ = true;
      actions.emplace_back(Lose{
          fmt::format("{}: NCCL did not abort it within {} s", words_for(entry.facts), seconds(deadlines_.abort))});
    }
    if (entry.facts.state == State::Ready && entry.users.empty() && entry.idle_since + kIdle <= now) {
      idle.push_back(slot);
    }
  }
  end(std::move(idle), now, actions);
  return actions;
}

std::optional<TimePoint> CommunicatorTable::next_deadline() const {
  std::optional<TimePoint> next;
  const auto note = [&](TimePoint when) { next = next ? std::min(*next, when) : when; };
  for (const auto& [number, plan] : plans_) {
    if (plan.deadline) {
      note(*plan.deadline);
    }
  }
  for (const auto& [slot, entry] : entries_) {
    if (entry.abort_deadline && !lost_) {
      note(*entry.abort_deadline);
    }
    if (entry.facts.state == State::Ready && entry.users.empty()) {
      note(entry.idle_since + kIdle);
    }
  }
  return next;
}

}  // namespace gradsync::device
