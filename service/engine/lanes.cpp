#include "engine/lanes.hpp"

#include "base/assert.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::engine {

const Lanes::Entry* Lanes::find(device::LaneId id) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.id == id; });
  return entry == entries_.end() ? nullptr : &*entry;
}

Lanes::Entry* Lanes::find(device::LaneId id) { return const_cast<Entry*>(std::as_const(*this).find(id)); }

void Lanes::add(device::LaneId id, device::Lane& lane) {
  GRADSYNC_ASSERT(find(id) == nullptr, "each lane has an id of its own");
  entries_.emplace_back().id = id;
  entries_.back().lane = &lane;
}

Result<device::LaneId> Lanes::of_gpu(const std::string& gpu) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return !entry.lost && !entry.gpu.empty() && entry.gpu == gpu;
  });
  if (found != entries_.end()) {
    return found->id;
  }
  if (gpus_ == nullptr) {
    return make_error(ErrorCode::NoGpu, "this daemon works on memory of CPUs only", "gradients on CPUs are served");
  }
  const Result<Entry*> added = add_started(gpus_->start(next_, gpu));
  if (!added) {
    return added.error();
  }
  (*added)->gpu = gpu;
  return (*added)->id;
}

Result<device::LaneId> Lanes::of_cpu_collectives() {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return !entry.lost && entry.cpu_collectives;
  });
  if (found != entries_.end()) {
    return found->id;
  }
  if (gpus_ == nullptr) {
    return make_error(ErrorCode::UnsupportedPlacement, "this daemon has no worker with NCCL", "set [nccl] library");
  }
  const Result<Entry*> added = add_started(gpus_->start_cpu_collectives(next_));
  if (!added) {
    return added.error();
  }
  (*added)->cpu_collectives = true;
  return (*added)->id;
}

Result<Lanes::Entry*> Lanes::add_started(const Result<device::Lane*>& started) {
  if (!started) {
    return started.error();
  }
  add(next_++, **started);
  return &entries_.back();
}

bool Lanes::is_lost(device::LaneId id) const {
  const Entry* const entry = find(id);
  return entry == nullptr || entry->lost;
}

const std::string& Lanes::gpu_of(device::LaneId id) const { return find(id)->gpu; }

bool Lanes::lose(device::LaneId id) {
  Entry* const entry = find(id);
  return entry != nullptr && !std::exchange(entry->lost, true);
}

std::optional<TimePoint> Lanes::next_end() const {
  std::optional<TimePoint> next;
  for (const Entry& entry : entries_) {
    next = entry.ends && (!next || *entry.ends < *next) ? entry.ends : next;
  }
  return next;
}

void Lanes::note_report(device::LaneId id, TimePoint now) {
  if (Entry* const entry = find(id)) {
    entry->reported = now;
  }
}

void Lanes::add_computing(device::LaneId id, std::int64_t jobs) {
  if (Entry* const entry = find(id)) {
    entry->computing += jobs;
  }
}

TimePoint Lanes::last_report(device::LaneId id) const { return find(id)->reported; }

device::Lane& Lanes::operator[](device::LaneId id) const {
  const Entry* entry = find(id);
  GRADSYNC_ASSERT(entry != nullptr, "a lane is added before anything is given to it");
  return *entry->lane;
}

}  // namespace gradsync::engine
