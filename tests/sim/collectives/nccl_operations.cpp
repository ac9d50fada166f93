// Operations of communicators: each stream does one after the other, and each operation waits for all members.

#include "sim/collectives/nccl_network.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::byte kGarbage{0x5A};

std::size_t size_of(device::NcclType type) { return type == device::NcclType::Float64 ? 8 : 4; }

template <typename Number>
void add(const std::byte* from, std::size_t elements, std::byte* to) {
  for (std::size_t i = 0; i < elements; ++i) {
    Number one = 0;
    Number sum = 0;
    std::memcpy(&one, from + i * sizeof one, sizeof one);
    std::memcpy(&sum, to + i * sizeof sum, sizeof sum);
    sum += one;
    std::memcpy(to + i * sizeof sum, &sum, sizeof sum);
  }
}

}  // namespace

NcclNetwork::Stream NcclNetwork::make_stream(Process process) {
  lines_[++numbers_].process = process;
  return numbers_;
}

void NcclNetwork::end_stream(Stream stream) {
  const auto found = lines_.find(stream);
  if (found == lines_.end()) {
    return;  // its process has ended
  }
  if (!found->second.queued.empty()) {
    world_.breach("a stream is given back, and operations run on it");
  }
  lines_.erase(found);
}

void NcclNetwork::mark(Stream stream) {
  Line& line = lines_.at(stream);
  line.marks.push_back(line.enqueued);
}

std::uint64_t NcclNetwork::passed(Stream stream) {
  Line& line = lines_.at(stream);
  while (!line.marks.empty() && line.marks.front() <= line.done) {
    line.marks.pop_front();
    ++line.passed;
  }
  return line.passed;
}

NcclResult NcclNetwork::launch(Handle handle, Launch launch) {
  Member* const member = used(handle, "an operation");
  if (member == nullptr || member->state != NcclResult::Success) {
    return member == nullptr || member->state == NcclResult::InProgress ? NcclResult::InvalidUsage : member->state;
  }
  Group& group = groups_.at(member->id);
  launch.attempt = processes_.at(member->process).host->attempt();
  const std::uint64_t number = member->launched++;
  Operation& operation = group.operations[number];
  operation.launches.resize(group.members.size());
  operation.launches[member->own] = launch;
  member->stream = launch.stream;
  Line& line = lines_.at(launch.stream);
  line.queued.push_back({handle, number});
  ++line.enqueued;
  if (line.queued.size() == 1) {
    arrive(line.queued.front());
  }
  return NcclResult::Success;
}

/// It is the next one on its stream.
void NcclNetwork::arrive(const Queued& queued) {
  const Member& member = members_.at(queued.handle);
  Group& group = groups_.at(member.id);
  Operation& operation = group.operations.at(queued.number);
  operation.stalls = operation.stalls || strikes(Next::Stalls);
  if (strikes(Next::Error)) {
    world_.clock().after(soon(10, 400), [this, queued] { end_with_error(queued); });
    operation.stalls = true;
  }
  if (++operation.arrived == group.members.size()) {
    world_.clock().after(soon(20, 1'500), [this, id = member.id, number = queued.number] { sum(id, number); });
  }
}

/// Half of it is done, and the event behind it says success.
void NcclNetwork::end_with_error(const Queued& queued) {
  if (const Member* const member = find(queued.handle); member != nullptr && !member->aborting && member->stream) {
    const Member before = *member;
    leave_stream(before, queued.handle);
    fail(queued.handle, world_.random().one_in(2) ? NcclResult::SystemError : NcclResult::RemoteError);
  }
}

void NcclNetwork::sum(std::uint64_t id, std::uint64_t number) {
  Group& group = groups_.at(id);
  const auto found = group.operations.find(number);
  if (found == group.operations.end() || found->second.stalls || !may_meet(group)) {
    return;
  }
  if (parted(group)) {
    world_.clock().after(Milliseconds(20), [this, id, number] { sum(id, number); });
    return;
  }
  check_alike(group, number, found->second);
  ++operations_;
  const auto all = std::make_shared<const Bytes>(sum_of(found->second));
  for (const std::optional<Handle>& handle : group.members) {
    world_.clock().after(soon(0, 300), [this, queued = Queued{*handle, number}, all] { finish(queued, *all); });
  }
}

/// The first operation of a communicator warms it up, and is of no attempt.
void NcclNetwork::check_alike(const Group& group, std::uint64_t number, const Operation& operation) {
  const Launch& first = *operation.launches.front();
  for (const std::optional<Launch>& each : operation.launches) {
    if (each->elements != first.elements || each->type != first.type || each->scatters != first.scatters) {
      world_.breach(fmt::format("members of communicator {} disagree about its operation {}", group.name, number));
    }
    if (number != 0 && each->attempt != first.attempt) {
      world_.breach(fmt::format(
          "operation {} of communicator {} adds up attempts {:x} and {:x}",
          number,
          group.name,
          first.attempt,
          each->attempt
      ));
    }
  }
}

NcclNetwork::Bytes NcclNetwork::sum_of(const Operation& operation) {
  const Launch& first = *operation.launches.front();
  const std::size_t elements = first.elements * (first.scatters ? operation.launches.size() : 1);
  Bytes all(elements * size_of(first.type));
  for (const std::optional<Launch>& each : operation.launches) {
    first.type == device::NcclType::Float64 ? add<double>(each->from, elements, all.data())
                                            : add<float>(each->from, elements, all.data());
  }
  return all;
}

void NcclNetwork::finish(const Queued& queued, const Bytes& sum) {
  const Member* const member = find(queued.handle);
  if (member == nullptr || member->aborting || !member->stream) {
    return;
  }
  const Launch& launch = *groups_.at(member->id).operations.at(queued.number).launches[member->own];
  const std::size_t bytes = launch.elements * size_of(launch.type);
  std::memcpy(launch.to, sum.data() + (launch.scatters ? member->own * bytes : 0), bytes);
  const Process process = member->process;  // it may be another one that goes on
  pop(*member->stream);
  wake(process);
}

void NcclNetwork::write_half(const Queued& queued) {
  const Member& member = members_.at(queued.handle);
  const Launch& launch = *groups_.at(member.id).operations.at(queued.number).launches[member.own];
  std::fill_n(launch.to, launch.elements * size_of(launch.type) / 2, kGarbage);
}

/// What it has on its stream is over: of the one that runs half is written. What is behind operations of others is over
/// when its turn comes.
void NcclNetwork::leave_stream(const Member& member, Handle handle) {
  const auto found = member.stream ? lines_.find(*member.stream) : lines_.end();
  if (found == lines_.end()) {
    return;
  }
  const auto& [stream, line] = *found;
  if (Member* const left = find(handle)) {
    left->left = true;
    left->stream.reset();
  }
  if (!line.queued.empty() && line.queued.front().handle == handle) {
    write_half(line.queued.front());
    pop(stream);
  }
}

void NcclNetwork::pop(Stream stream) {
  Line& line = lines_.at(stream);
  const auto is_over = [this](const Queued& queued) {
    const Member* const member = find(queued.handle);
    return member == nullptr || member->left;
  };
  do {
    const Handle handle = line.queued.front().handle;
    line.queued.pop_front();
    ++line.done;
    Member* const member = find(handle);
    if (member != nullptr && std::ranges::count(line.queued, handle, &Queued::handle) == 0) {
      member->stream.reset();
    }
  } while (!line.queued.empty() && is_over(line.queued.front()));
  if (!line.queued.empty()) {
    arrive(line.queued.front());
  }
}

}  // namespace gradsync::sim
