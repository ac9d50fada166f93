#pragma once
// The lanes of this daemon by id. They are set once, before the engine is built. Thread: io.

#include "base/clock.hpp"
#include "device/lane.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::engine {

class Lanes {
 public:
  struct Entry {
    device::LaneId id = device::kHostLane;
    device::Lane* lane = nullptr;
    bool wide = false;           ///< the value of its last `SetWidth`
    std::int64_t computing = 0;  ///< jobs that compute beside it
    TimePoint reported;          ///< when it reported last: it does not hang
  };

  explicit Lanes(device::Lane& host) { add(device::kHostLane, host); }

  void add(device::LaneId id, device::Lane& lane);  ///< an id that no lane has yet

  [[nodiscard]] device::Lane& operator[](device::LaneId id) const;  ///< an id that was added

  /// The lane reported something, of whatever job.
  void note_report(device::LaneId id, TimePoint now);
  [[nodiscard]] TimePoint last_report(device::LaneId id) const;

  [[nodiscard]] std::size_t size() const { return entries_.size(); }

  [[nodiscard]] auto begin() { return entries_.begin(); }

  [[nodiscard]] auto end() { return entries_.end(); }

 private:
  [[nodiscard]] const Entry* find(device::LaneId id) const;

  std::vector<Entry> entries_;  ///< few, and looked up by every command
};

}  // namespace gradsync::engine
