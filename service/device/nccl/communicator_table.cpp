#include "device/nccl/communicator_table.hpp"

#include "base/text/hash.hpp"
#include "device/device_error.hpp"
#include "plan/transfer/communicator_name.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace gradsync::device {

namespace {

std::string name_of(const CommunicatorSpec& spec) { return plan::communicator_name(spec.axes, spec.ranks); }

void check(bool right, const std::string& message) {
  if (!right) {
    throw DeviceError(message);
  }
}

void check_members(const CommunicatorSpec& spec) {
  const std::string name = name_of(spec);
  check(spec.ranks.size() > 1, fmt::format("communicator {} has one member: that is a copy", name));
  check(
      spec.own < spec.ranks.size(),
      fmt::format("communicator {}: this GPU is member {} of {}", name, spec.own, spec.ranks.size())
  );
  const std::set<std::int64_t> distinct(spec.ranks.begin(), spec.ranks.end());
  check(
      distinct.size() == spec.ranks.size(),
      fmt::format("communicator {}: a rank is twice in [{}]", name, fmt::join(spec.ranks, ", "))
  );
}

}  // namespace

InstanceHash instance_of(const NcclUniqueId& id) { return hash64(std::string_view(id.bytes.data(), id.bytes.size())); }

std::optional<CommunicatorSlot> CommunicatorTable::find(JobNumber job, const std::string& name) const {
  const auto found = std::ranges::find_if(entries_, [&](const auto& each) {
    return each.second.job == job && each.second.facts.name == name && lives(each.second);
  });
  return found == entries_.end() ? std::nullopt : std::optional(found->first);
}

CommunicatorSlot CommunicatorTable::add(JobNumber job, const CommunicatorSpec& spec, const std::string& name) {
  Entry entry;
  entry.job = job;
  entry.spec = spec;
  entry.facts.name = name;
  entry.facts.ranks = spec.ranks;
  entries_.emplace(next_slot_, std::move(entry));
  return next_slot_++;
}

void CommunicatorTable::check_specs(JobNumber job, const std::vector<CommunicatorSpec>& specs) const {
  std::map<std::string, const CommunicatorSpec*> seen;
  for (const CommunicatorSpec& spec : specs) {
    check_members(spec);
    const std::string name = name_of(spec);
    const CommunicatorSpec* other = seen.try_emplace(name, &spec).first->second;
    if (const auto slot = find(job, name)) {
      other = &entries_.at(*slot).spec;
    }
    check(
        other->ranks == spec.ranks && other->own == spec.own,
        fmt::format(
            "communicator {} is wanted of ranks [{}] as member {}, and of ranks [{}] as member {}",
            name,
            fmt::join(other->ranks, ", "),
            other->own,
            fmt::join(spec.ranks, ", "),
            spec.own
        )
    );
  }
}

/// Those that make room, the one that was idle for longest first.
std::vector<CommunicatorSlot> CommunicatorTable::idle_to_end(
    const std::map<std::string, CommunicatorSpec>& wanted, JobNumber job
) const {
  std::size_t total = wanted.size();
  std::vector<CommunicatorSlot> idle;
  std::vector<std::string> names;
  for (const auto& [slot, entry] : entries_) {
    if (!lives(entry) || (entry.job == job && wanted.contains(entry.facts.name))) {
      continue;
    }
    ++total;
    if (entry.users.empty()) {
      idle.push_back(slot);
    } else {
      names.push_back(entry.facts.name);
    }
  }
  const std::size_t surplus = total - std::min(total, kMost);
  if (surplus > idle.size()) {
    throw DeviceError(
        fmt::format(
            "the plan needs {} communicators on this GPU beside {} that are in use ({}), and {} is the limit",
            wanted.size(),
            names.size(),
            fmt::join(names, ", "),
            kMost
        ),
        "use fewer mesh axes that gradients are reduced over, or fewer jobs on one GPU",
        DeviceError::Kind::Unsupported
    );
  }
  std::ranges::stable_sort(idle, {}, [&](CommunicatorSlot slot) { return entries_.at(slot).idle_since; });
  idle.resize(surplus);
  return idle;
}

CommunicatorTable::Actions CommunicatorTable::want(
    PlanId plan, JobNumber job, const std::vector<CommunicatorSpec>& specs, TimePoint now
) {
  check(!plans_.contains(plan), fmt::format("plan {} has its communicators already", plan));
  check_specs(job, specs);
  std::map<std::string, CommunicatorSpec> wanted;
  for (const CommunicatorSpec& spec : specs) {
    wanted.emplace(name_of(spec), spec);
  }
  Actions actions;
  end(idle_to_end(wanted, job), now, actions);
  Plan& added = plans_[plan];
  added.job = job;
  for (const auto& [name, spec] : wanted) {
    const auto there = find(job, name);
    const CommunicatorSlot slot = there ? *there : add(job, spec, name);
    entries_.at(slot).users.insert(plan);
    added.by_name.emplace(name, slot);
  }
  return actions;
}

std::vector<CommunicatorTable::Held> CommunicatorTable::held(PlanId plan) const {
  std::vector<Held> held;
  for (const auto& [name, slot] : plans_.at(plan).by_name) {
    const auto found = entries_.find(slot);
    check(found != entries_.end() && lives(found->second), fmt::format("communicator {} was aborted", name));
    const Entry& entry = found->second;
    held.push_back({name, static_cast<std::uint32_t>(entry.spec.ranks.size()), entry.spec.own, {}});
    if (entry.facts.state == State::Ready) {
      held.back().instance = entry.instance;
    }
  }
  return held;
}

void CommunicatorTable::note_offered(PlanId plan, const std::string& name, const NcclUniqueId& id) {
  plans_.at(plan).offered[name] = instance_of(id);
}

void CommunicatorTable::check_id(const Plan& plan, const CommunicatorId& given) const {
  const auto known = plan.by_name.find(given.name);
  check(known != plan.by_name.end(), fmt::format("communicator {} is not one of this plan", given.name));
  const auto found = entries_.find(known->second);
  check(
      found != entries_.end() && lives(found->second),
      fmt::format("communicator {} was aborted: load the plan again", given.name)
  );
  const Entry& entry = found->second;
  if (entry.instance == given.instance || (entry.id && instance_of(*entry.id) == given.instance)) {
    return;  // it is here, or about to be, for another plan of the job
  }
  check(given.id.has_value(), fmt::format("communicator {} is not here any more, and has no id", given.name));
  check(instance_of(*given.id) == given.instance, fmt::format("the id of communicator {} is another one", given.name));
  check(
      entry.users.size() == 1 || (!entry.instance && !entry.id),
      fmt::format("communicator {} is used by another plan, and is to be built anew", given.name)
  );
  check(!used_.contains(given.instance), fmt::format("the id of communicator {} was used before", given.name));
  const auto made = plan.offered.find(given.name);
  check(
      entry.spec.own != 0 || (made != plan.offered.end() && made->second == given.instance),
      fmt::format("the id of communicator {} is not the one that its first member made for this epoch", given.name)
  );
}

void CommunicatorTable::check_ids(const Plan& plan, const std::vector<CommunicatorId>& ids) const {
  std::set<std::string> names;
  std::set<InstanceHash> instances;
  for (const CommunicatorId& given : ids) {
    check(
        names.insert(given.name).second && instances.insert(given.instance).second,
        fmt::format("communicator {} has an id that is there twice", given.name)
    );
    check_id(plan, given);
  }
  for (const auto& [name, slot] : plan.by_name) {
    check(names.contains(name), fmt::format("communicator {} has no id", name));
  }
}

CommunicatorTable::Actions CommunicatorTable::connect(
    PlanId plan, const std::vector<CommunicatorId>& ids, TimePoint now
) {
  const auto known = plans_.find(plan);
  check(known != plans_.end(), fmt::format("plan {} is not loaded, so it has no communicators", plan));
  Plan& connected = known->second;
  check(!connected.connected && !connected.deadline, fmt::format("plan {} is connected already", plan));
  check_ids(connected, ids);
  Actions actions;
  std::vector<CommunicatorSlot> replaced;
  for (const CommunicatorId& each : ids) {
    CommunicatorSlot& slot = connected.by_name.at(each.name);
    if (entries_.at(slot).instance == each.instance || entries_.at(slot).id) {
      continue;
    }
    if (entries_.at(slot).instance) {  // another node lost the one that works here
      replaced.push_back(slot);
      slot = add(connected.job, entries_.at(slot).spec, each.name);
      entries_.at(slot).users.insert(plan);
    }
    entries_.at(slot).id = each.id;
    used_.insert(each.instance);
  }
  end(std::move(replaced), now, actions);
  connected.deadline = now + deadlines_.build;
  build_next(connected.job, actions);
  note_connected(connected.job, actions);
  return actions;
}

CommunicatorTable::Actions CommunicatorTable::release(PlanId plan, TimePoint now) {
  Actions actions;
  const auto known = plans_.find(plan);
  if (known == plans_.end()) {
    return actions;
  }
  const Plan released = std::move(known->second);
  plans_.erase(known);
  unused_ids_ += static_cast<std::size_t>(std::ranges::count_if(released.offered, [&](const auto& each) {
    return !used_.contains(each.second);
  }));
  std::vector<CommunicatorSlot> ends;
  for (auto each = entries_.begin(); each != entries_.end();) {
    auto& [slot, entry] = *each;
    if (entry.job != released.job || entry.facts.state == State::Aborting ||
        (entry.users.erase(plan) == 0 && entry.facts.state != State::Failed) || !entry.users.empty()) {
      ++each;
      continue;
    }
    if (!entry.instance) {
      each = entries_.erase(each);  // nothing was ever made of it
      continue;
    }
    if (entry.facts.state == State::Ready) {
      entry.idle_since = now;
    } else {
      ends.push_back(slot);
    }
    ++each;
  }
  end(std::move(ends), now, actions);
  build_next(released.job, actions);
  return actions;
}

std::optional<CommunicatorSlot> CommunicatorTable::ready(PlanId plan, const std::string& name) const {
  const auto known = plans_.find(plan);
  if (known == plans_.end() || !known->second.connected) {
    return std::nullopt;
  }
  const auto found = known->second.by_name.find(name);
  return found != known->second.by_name.end() && is_ready(found->second) ? std::optional(found->second) : std::nullopt;
}

bool CommunicatorTable::is_ready(CommunicatorSlot slot) const {
  const auto found = entries_.find(slot);
  return found != entries_.end() && found->second.facts.state == State::Ready;
}

bool CommunicatorTable::counts(CommunicatorSlot slot) const {
  const auto found = entries_.find(slot);
  return found != entries_.end() &&
         (found->second.facts.state == State::Ready || found->second.facts.state == State::Warming);
}

std::vector<CommunicatorSlot> CommunicatorTable::slots_in(CommunicatorState state) const {
  std::vector<CommunicatorSlot> slots;
  for (const auto& [slot, entry] : entries_) {
    if (entry.facts.state == state) {
      slots.push_back(slot);
    }
  }
  return slots;
}

void CommunicatorTable::note_use(CommunicatorSlot slot, std::uint64_t bytes, TimePoint now) {
  CommunicatorFacts& facts = entries_.at(slot).facts;
  ++facts.operations;
  facts.bytes += bytes;
  facts.used = now;
}

std::vector<CommunicatorFacts> CommunicatorTable::facts() const {
  std::vector<CommunicatorFacts> all;
  for (const auto& [slot, entry] : entries_) {
    all.push_back(entry.facts);
  }
  return all;
}

}  // namespace gradsync::device
