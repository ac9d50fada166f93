#pragma once
// Trials of memory that a process exported: the worker of its GPU opens it, reads and writes a few bytes, and closes
// it. Nothing is kept, so no rank, buffer or generation is named. Thread: io.
//
// Invariant: each probe is answered once, by the worker's report or its loss; after a halt none is.

#include "base/fair_budget.hpp"
#include "engine/lanes.hpp"
#include "engine/types.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace gradsync::engine {

/// Why exported memory cannot be used, whatever a worker finds: the handle's length, or a range outside the allocation.
[[nodiscard]] Result<void> check_range(const ExportedBuffer& exported);

class MemoryProbes {
 public:
  MemoryProbes(const Lanes& lanes, std::uint32_t own_uid) : lanes_(lanes), waiting_(kMostWaiting, own_uid) {}

  /// Why it cannot be tried now, before any worker is asked.
  [[nodiscard]] Result<void> check(const Holder& holder, const ExportedBuffer& exported) const;

  /// Has `lane` try it. It was checked; `number` is one that no buffer has.
  void start(
      std::uint64_t number,
      const Holder& holder,
      ExportedBuffer exported,
      device::LaneId lane,
      Reply<device::Probe> reply
  );

  void on_probed(device::LaneId lane, device::Probed report);
  /// False: the report is of a buffer.
  [[nodiscard]] bool on_failed(device::LaneId lane, const device::Failed& report);

  /// Those that wait are not answered any more.
  void forget() { probes_.clear(); }

  [[nodiscard]] bool on_lane(device::LaneId lane) const {
    return std::ranges::any_of(probes_, [lane](const auto& entry) { return entry.second.lane == lane; });
  }

 private:
  static constexpr std::uint64_t kMostWaiting = 32;  ///< a probe's deadline counts from when it was sent, behind others

  struct Waiting {
    device::LaneId lane;
    Reply<device::Probe> reply;
    FairBudget::Share share;
  };

  [[nodiscard]] Reply<device::Probe> take(device::LaneId lane, std::uint64_t number);

  const Lanes& lanes_;
  FairBudget waiting_;
  std::map<std::uint64_t, Waiting> probes_;
};

}  // namespace gradsync::engine
