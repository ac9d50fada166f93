#include "engine/lanes.hpp"

#include "base/assert.hpp"

#include <algorithm>

namespace gradsync::engine {

const Lanes::Entry* Lanes::find(device::LaneId id) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.id == id; });
  return entry == entries_.end() ? nullptr : &*entry;
}

void Lanes::add(device::LaneId id, device::Lane& lane) {
  GRADSYNC_ASSERT(find(id) == nullptr, "each lane has an id of its own");
  entries_.emplace_back().id = id;
  entries_.back().lane = &lane;
}

void Lanes::note_report(device::LaneId id, TimePoint now) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.id == id; });
  GRADSYNC_ASSERT(entry != entries_.end(), "a lane is added before it reports");
  entry->reported = now;
}

TimePoint Lanes::last_report(device::LaneId id) const { return find(id)->reported; }

device::Lane& Lanes::operator[](device::LaneId id) const {
  const Entry* entry = find(id);
  GRADSYNC_ASSERT(entry != nullptr, "a lane is added before anything is given to it");
  return *entry->lane;
}

}  // namespace gradsync::engine
