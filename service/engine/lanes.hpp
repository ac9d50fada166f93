#pragma once
// The lanes of this daemon by id: that of the host, one for each GPU that buffers were registered for, and one for
// memory of CPUs whose sums travel by NCCL. A lane that is lost stays here until nothing uses it; the next buffer of
// its GPU, or the next plan, gets another one. Thread: io.

#include "base/clock.hpp"
#include "device/lane.hpp"
#include "engine/gpu_lanes.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

class Lanes {
 public:
  struct Entry {
    device::LaneId id = device::kHostLane;
    device::Lane* lane = nullptr;
    bool wide = false;                   ///< the value of its last `SetWidth`
    std::int64_t computing = 0;          ///< jobs that compute beside it
    TimePoint reported;                  ///< when it reported last: it does not hang
    std::string gpu = {};                ///< its UUID; empty: none
    bool cpu_collectives = false;        ///< its worker has NCCL, and works on memory of CPUs
    bool lost = false;                   ///< every command that it gets fails
    std::optional<TimePoint> ends = {};  ///< it is not used: its worker ends then

    [[nodiscard]] bool in_worker() const { return !gpu.empty() || cpu_collectives; }
  };

  /// `gpus`: null where there are none.
  explicit Lanes(device::Lane& host, GpuLanes* gpus = nullptr) : gpus_(gpus) { add(device::kHostLane, host); }

  void add(device::LaneId id, device::Lane& lane);  ///< an id that no lane has yet

  [[nodiscard]] device::Lane& operator[](device::LaneId id) const;  ///< an id that was added

  /// The lane of a GPU, by its UUID, which is started where there is none. NoGpu: it cannot be.
  [[nodiscard]] Result<device::LaneId> of_gpu(const std::string& gpu);
  [[nodiscard]] const std::string& gpu_of(device::LaneId id) const;  ///< an id that was added

  /// The lane of memory of CPUs whose sums travel by NCCL, which is started where there is none.
  [[nodiscard]] Result<device::LaneId> of_cpu_collectives();

  /// Whether lanes of GPUs may sum gradients with other nodes; UnsupportedPlacement otherwise.
  [[nodiscard]] Result<void> may_collect_on_gpus() const { return gpus_->may_collect(); }

  [[nodiscard]] bool is_lost(device::LaneId id) const;

  /// False: it was known before.
  bool lose(device::LaneId id);

  /// Notes which lanes in workers nothing uses, and ends those that are lost, or were not used for `patience`.
  template <typename IsUsed>
  void end_unused(IsUsed is_used, TimePoint now, Duration patience) {
    std::erase_if(entries_, [&](Entry& entry) {
      if (!entry.in_worker() || is_used(entry.id)) {
        entry.ends.reset();
        return false;
      }
      entry.ends = entry.lost ? now : entry.ends.value_or(now + patience);
      if (*entry.ends > now) {
        return false;
      }
      gpus_->stop(entry.id);
      return true;
    });
  }

  /// When the next lane ends, if nothing uses it until then.
  [[nodiscard]] std::optional<TimePoint> next_end() const;

  /// The lane reported something, of whatever job. A lane may be forgotten before its last report is here.
  void note_report(device::LaneId id, TimePoint now);
  [[nodiscard]] TimePoint last_report(device::LaneId id) const;

  /// The id of the next lane in a worker.
  [[nodiscard]] device::LaneId next_id() const { return next_; }

  /// One lane of this id computes beside so many jobs more. A lane that has ended is not counted.
  void add_computing(device::LaneId id, std::int64_t jobs);

  [[nodiscard]] auto begin() { return entries_.begin(); }

  [[nodiscard]] auto end() { return entries_.end(); }

 private:
  [[nodiscard]] const Entry* find(device::LaneId id) const;
  [[nodiscard]] Entry* find(device::LaneId id);
  [[nodiscard]] Result<Entry*> add_started(const Result<device::Lane*>& started);

  GpuLanes* gpus_;
  device::LaneId next_ = device::kHostLane + 1;
  std::vector<Entry> entries_;  ///< few, and looked up by every command
};

}  // namespace gradsync::engine
