// Communicators: how they are joined, fail, and end. What is launched on them is in nccl_operations.cpp.

#include "sim/collectives/nccl_network.hpp"

#include "device/nccl/communicator_table.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace gradsync::sim {

Duration NcclNetwork::soon(std::int64_t least_us, std::int64_t most_us) {
  return world_.random().between(std::chrono::microseconds(least_us), std::chrono::microseconds(most_us));
}

bool NcclNetwork::strikes(Next what) {
  const bool now = next_.erase(what) != 0;
  if (now) {
    constexpr const char* kNames[] = {"", "late_member", "no_member", "error", "stall", "hung_abort"};
    world_.count(fmt::format("nccl_struck_{}", kNames[static_cast<std::size_t>(what)]));
  }
  return now;
}

NcclNetwork::Member* NcclNetwork::find(Handle handle) {
  const auto found = members_.find(handle);
  return found == members_.end() ? nullptr : &found->second;
}

/// A communicator may not be given to NCCL any more from its abort on.
NcclNetwork::Member* NcclNetwork::used(Handle handle, const char* what) {
  Member* const member = find(handle);
  if (member == nullptr || member->aborting) {
    world_.breach(fmt::format("{} of a communicator that was aborted", what));
    return nullptr;
  }
  return member;
}

NcclNetwork::Process NcclNetwork::begin(std::size_t daemon, Host& host) {
  processes_[++numbers_] = {daemon, &host};
  return numbers_;
}

void NcclNetwork::end(Process process, bool silent) {
  processes_.erase(process);
  std::erase_if(lines_, [process](const auto& each) { return each.second.process == process; });
  std::vector<Handle> gone;
  for (const auto& [handle, member] : members_) {
    if (member.process == process) {
      gone.push_back(handle);
    }
  }
  for (const Handle handle : gone) {
    leave(handle, silent);
  }
}

NcclUniqueId NcclNetwork::make_id(Process process) {
  const std::uint64_t number = ++numbers_;
  ids_.insert(number);
  groups_[number].maker = process;
  NcclUniqueId id;
  std::memcpy(id.bytes.data(), &number, sizeof number);
  return id;
}

void NcclNetwork::check_join(
    const Group& group, std::uint64_t id, Process process, int ranks, std::size_t own, const char* name
) {
  const std::uint64_t epoch = processes_.at(process).host->epoch();
  if (group.members[own]) {
    world_.breach(fmt::format("id {} is used twice: communicator {} has its member {} already", id, name, own));
  }
  if (group.members.size() != static_cast<std::size_t>(ranks) || group.name != name) {
    world_.breach(fmt::format("id {} is that of {} and of {}", id, group.name, name));
  }
  if (group.epoch != epoch) {
    world_.breach(fmt::format("id {} of communicator {} is used in epochs {} and {}", id, name, group.epoch, epoch));
  }
  const auto alive = std::ranges::count_if(members_, [process](const auto& each) {
    return each.second.process == process && !each.second.aborting;
  });
  if (static_cast<std::size_t>(alive) >= device::CommunicatorTable::kMost) {
    world_.breach(fmt::format("a worker has {} communicators", alive + 1));
  }
}

NcclResult NcclNetwork::join(
    Process process, const NcclUniqueId& given, int ranks, int own, const char* name, Handle& made
) {
  std::uint64_t id = 0;
  std::memcpy(&id, given.bytes.data(), sizeof id);
  if (!ids_.contains(id)) {
    world_.breach(fmt::format("communicator {} is built with an id that nobody made", name));
    return NcclResult::InvalidArgument;
  }
  Group& group = groups_[id];
  if (group.members.empty()) {
    group.epoch = processes_.at(process).host->epoch();
    group.name = name;
    group.members.resize(static_cast<std::size_t>(ranks));
  }
  check_join(group, id, process, ranks, static_cast<std::size_t>(own), name);
  made = ++numbers_;
  members_[made] = Member{process, id, static_cast<std::size_t>(own)};
  group.members[static_cast<std::size_t>(own)] = made;
  world_.trace(processes_.at(process).daemon, "join", id);
  if (strikes(Next::Never)) {
    return NcclResult::InProgress;
  }
  const Duration late =
      strikes(Next::Late) ? world_.random().between(Milliseconds(50), Milliseconds(6'000)) : Duration{};
  world_.clock().after(late + soon(20, 800), [this, handle = made] { come(handle); });
  return NcclResult::InProgress;
}

/// The member has reached the process that made the id, which may be gone, or is told that another one is.
void NcclNetwork::come(Handle handle) {
  const Member* const member = find(handle);
  if (member == nullptr || member->aborting) {
    return;
  }
  Group& group = groups_[member->id];
  ++group.came;
  if (group.any_gone || !processes_.contains(group.maker)) {
    if (world_.random().one_in(2)) {
      fail(handle, NcclResult::SystemError);
    }
  } else if (group.came == group.members.size()) {
    build(member->id);
  }
}

bool NcclNetwork::parted(const Group& group) const {
  const auto daemon = [&](const std::optional<Handle>& handle) {
    return processes_.at(members_.at(*handle).process).daemon;
  };
  return std::ranges::any_of(blocked_, [&](const auto& each) {
    const auto& [one, other] = each.first;
    const auto has = [&](std::size_t wanted) {
      return std::ranges::any_of(group.members, [&](const auto& handle) { return daemon(handle) == wanted; });
    };
    return each.second > world_.clock().now() && has(one) && has(other);
  });
}

/// Whether all members are still there, so that something can be done together.
bool NcclNetwork::may_meet(const Group& group) const {
  return !group.any_gone && std::ranges::all_of(group.members, [&](const std::optional<Handle>& handle) {
    const auto found = handle ? members_.find(*handle) : members_.end();
    return found != members_.end() && !found->second.aborting;
  });
}

void NcclNetwork::build(std::uint64_t id) {
  const auto found = groups_.find(id);
  if (found == groups_.end() || !may_meet(found->second)) {
    return;
  }
  if (parted(found->second)) {
    world_.clock().after(Milliseconds(20), [this, id] { build(id); });
    return;
  }
  ++built_;
  for (const std::optional<Handle>& handle : found->second.members) {
    world_.clock().after(soon(50, 3'000), [this, handle] {
      if (Member* const member = find(*handle); member != nullptr && member->state == NcclResult::InProgress) {
        member->state = NcclResult::Success;
        wake(member->process);
      }
    });
  }
}

NcclResult NcclNetwork::state_of(Handle handle) {
  const Member* const member = used(handle, "ncclCommGetAsyncError");
  return member == nullptr ? NcclResult::InvalidArgument : member->state;
}

std::pair<int, int> NcclNetwork::ranks_and_own(Handle handle) {
  const Member* const member = used(handle, "ncclCommCount");
  return member == nullptr
             ? std::pair(0, 0)
             : std::pair(static_cast<int>(groups_.at(member->id).members.size()), static_cast<int>(member->own));
}

void NcclNetwork::fail(Handle handle, NcclResult error) {
  Member* const member = find(handle);
  if (member != nullptr && !member->aborting &&
      (member->state == NcclResult::InProgress || member->state == NcclResult::Success)) {
    member->state = error;
    wake(member->process);
  }
}

void NcclNetwork::wake(Process process) {
  if (const auto found = processes_.find(process); found != processes_.end()) {
    found->second.host->on_nccl();
  }
}

void NcclNetwork::leave(Handle handle, bool silent) {
  const auto found = members_.find(handle);
  if (found == members_.end()) {
    return;
  }
  const std::uint64_t id = found->second.id;
  members_.erase(found);
  Group& group = groups_.at(id);
  group.any_gone = true;
  tell_others(group, silent);
  if (std::ranges::none_of(group.members, [&](const auto& each) { return each && members_.contains(*each); })) {
    group.operations.clear();
  }
}

/// Whoever does something together with it notices; whoever is idle may not.
void NcclNetwork::tell_others(const Group& group, bool silent) {
  for (const std::optional<Handle>& each : group.members) {
    const auto other = each ? members_.find(*each) : members_.end();
    if (silent || other == members_.end()) {
      continue;
    }
    const bool busy = other->second.state == NcclResult::InProgress || other->second.stream;
    if (busy || world_.random().one_in(2)) {
      world_.clock().after(soon(100, 5'000), [this, handle = *each] { fail(handle, NcclResult::RemoteError); });
    }
  }
}

void NcclNetwork::abort(Process process, const std::vector<Handle>& handles, std::function<void()> done) {
  if (!lives(process)) {
    return;
  }
  const bool hangs = strikes(Next::AbortHangs);
  const Duration time = soon(100, 20'000);
  for (const Handle handle : handles) {
    Member* const member = used(handle, "ncclCommAbort");
    if (member == nullptr) {
      continue;
    }
    member->aborting = true;
    world_.clock().after(world_.random().between({}, time), [this, handle] {
      if (const Member* const ended = find(handle)) {
        leave_stream(*ended, handle);
        wake(ended->process);
      }
    });
  }
  if (hangs) {
    return;
  }
  world_.clock().after(time, [this, process, handles, done = std::move(done)] {
    if (!lives(process)) {
      return;
    }
    for (const Handle handle : handles) {
      if (const Member* const member = find(handle)) {
        leave_stream(*member, handle);
        leave(handle, false);
      }
    }
    done();
    wake(process);
  });
}

void NcclNetwork::block(std::size_t one, std::size_t other, Duration time) {
  TimePoint& until = blocked_[std::minmax(one, other)];
  until = std::max(until, world_.clock().now() + time);
}

void NcclNetwork::block_node(std::size_t node, Duration time) {
  for (std::size_t other = 0; other < world_.options().daemons; ++other) {
    if (other != node) {
      block(node, other, time);
    }
  }
}

void NcclNetwork::heal() {
  blocked_.clear();
  next_.clear();
}

std::string NcclNetwork::left_over() const {
  if (members_.empty() && processes_.empty() && lines_.empty()) {
    return {};
  }
  return fmt::format(
      "{} members of communicators are left, {} workers and {} streams",
      members_.size(),
      processes_.size(),
      lines_.size()
  );
}

}  // namespace gradsync::sim
