#pragma once
// The commands of a lane that have no report yet, in the order of submission. A report is matched with the oldest
// command that it answers, so that each command gets exactly one, whatever a worker sends. Those of an attempt are
// answered in their order, and what a report names exists in its plan: its reader trusts both. Pure; one thread.

#include "base/clock.hpp"
#include "device/lane.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace gradsync::device {

class OutstandingCommands {
 public:
  /// How long a worker may take for what must not hang.
  struct Patience {
    Milliseconds abort{0};
    Milliseconds import{0};   ///< for memory of another process to be mapped
    Milliseconds other{0};    ///< for what is about memory or a plan; what works on an attempt has an Abort to end it
    Milliseconds connect{0};  ///< for communicators of a plan, whose own deadline is to end first
    Milliseconds abort_of_communicators{0};  ///< where the plan has any: their own deadline is to end first
  };

  /// A SetWidth is not kept: it has no report.
  void add(const LaneCommand& command, TimePoint now, const Patience& patience);

  /// Forgets the command that `report` answers. False: it answers none.
  [[nodiscard]] bool answered_by(const LaneReport& report);

  /// Forgets the oldest command and returns its Failed report, without a message. There must be one.
  [[nodiscard]] Failed take_oldest();

  struct Deadline {
    TimePoint when;
    const char* what;  ///< the command, in words
    Milliseconds patience{0};
  };

  /// The earliest one.
  [[nodiscard]] std::optional<Deadline> next_deadline() const;

  [[nodiscard]] bool empty() const { return commands_.empty(); }

 private:
  /// How many there are of what a report may name.
  struct PlanSize {
    std::size_t tensors = 0;
    std::size_t ranks = 0;
    std::size_t groups = 0;
    std::size_t layers = 0;
    std::size_t classes = 0;
    std::size_t rows = 0;
  };

  struct Plan {
    PlanSize size;
    std::vector<std::size_t> boxes;  ///< by class
    bool communicators = false;
  };

  struct Waiting {
    std::size_t report = 0;  ///< the alternative of LaneReport that says it was done
    Failed failure;          ///< the one that says it was not
    std::optional<Deadline> deadline = {};
    std::optional<std::uint32_t> bucket;  ///< of a ReduceBucket
    std::optional<PlanSize> size;         ///< of what reports findings, or reads rows
    bool raw = false;                     ///< a FinishStep
    std::size_t hashes = 0;               ///< of boxes, that a ReadRows asks for
    bool rows = false;                    ///< it asks for rows
    std::uint64_t probed_bytes = 0;       ///< of a ProbeMemory
  };

  void note_plan(const LoadPlan& load);
  void note_plan(const LoadStats& load);
  void note_plan(PlanId id, PlanSize size, const std::vector<std::vector<StatsBox>>& classes);
  void note_rows(const ReadRows& read, Waiting& waiting) const;
  [[nodiscard]] PlanSize size_of(PlanId plan) const;
  [[nodiscard]] static bool names_what_exists(const LaneReport& report, const Waiting& waiting);
  [[nodiscard]] static bool names_what_exists(const Finished& finished, const Waiting& waiting);
  [[nodiscard]] static bool names_what_exists(const RowsRead& read, const Waiting& waiting);
  [[nodiscard]] static bool names_what_exists(const StepMath& math, const PlanSize& size);

  std::deque<Waiting> commands_;
  std::map<PlanId, Plan> plans_;  ///< that the lane has, or is about to have
};

}  // namespace gradsync::device
