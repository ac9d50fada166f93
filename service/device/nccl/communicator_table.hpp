#pragma once
// The communicators of one GPU: which there are, who uses them, and what is to be done next. Events in, actions out; it
// reads no clock and calls no library (docs/adr/0037 has its states). Time: the caller's.
//
// Invariants: communicators with equal axes and ranks of one job are one, whatever plans use it. A job has one in the
// making at a time, by name, which all of its GPUs do in the same order. An id is used once in the life of a process.
// The first failure fails all of its job, until they are gone. Jobs wait for nothing of each other.

#include "base/clock.hpp"
#include "device/lane.hpp"
#include "device/nccl/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::device {

using CommunicatorSlot = std::uint32_t;  ///< one communicator of this process, never used again

enum class CommunicatorState : std::uint8_t { Wanted, Building, Warming, Ready, Failed, Aborting };

/// What status and metrics say of one.
struct CommunicatorFacts {
  std::string name;
  std::vector<std::int64_t> ranks;
  CommunicatorState state = CommunicatorState::Wanted;
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
  std::optional<TimePoint> used = {};
};

class CommunicatorTable {
 public:
  using State = CommunicatorState;

  static constexpr std::size_t kMost = 5;  ///< on one GPU, of all jobs
  static constexpr Milliseconds kIdle{60'000};

  struct Deadlines {
    Milliseconds build{120'000};  ///< from `connect` until all of a plan's are warm
    Milliseconds abort{10'000};   ///< then the process is of no use any more
  };

  // ---- actions

  /// Initialise it, without waiting; `on_built` or `on_error` follows.
  struct Build {
    CommunicatorSlot slot = 0;
    NcclUniqueId id;
    std::string name;
    int ranks = 0;
    int own = 0;
  };

  /// Use it once in each size class; `on_warm` or `on_error` follows.
  struct WarmUp {
    CommunicatorSlot slot = 0;
  };

  /// All of them in one group, on the thread of aborts; `on_aborted` follows.
  struct AbortGroup {
    std::vector<CommunicatorSlot> slots;
  };

  /// All that the plan needs can be used.
  struct Connected {
    PlanId plan = 0;
  };

  /// What the plan has under way, or waits for, has failed; once until its job's are gone.
  struct Broken {
    PlanId plan = 0;
    std::string message;
  };

  /// Nothing of the job writes to memory any more.
  struct Gone {
    JobNumber job = 0;
  };

  /// This process has to be killed.
  struct Lose {
    std::string message;
  };

  using Action = std::variant<Build, WarmUp, AbortGroup, Connected, Broken, Gone, Lose>;
  using Actions = std::vector<Action>;

  explicit CommunicatorTable(Deadlines deadlines) : deadlines_(deadlines) {}

  // ---- events

  /// A plan that is loaded needs these. Throws DeviceError where that cannot be, and changes nothing then. The actions
  /// end idle ones of other plans, if there would be too many.
  [[nodiscard]] Actions want(PlanId plan, JobNumber job, const std::vector<CommunicatorSpec>& specs, TimePoint now);

  /// Nothing of an earlier epoch is to be used again, because some node may have lost it: ends the job's idle ones.
  [[nodiscard]] Actions end_idle(JobNumber job, TimePoint now);

  struct Held {
    std::string name;
    std::uint32_t members = 0;
    std::uint32_t own = 0;
    std::optional<InstanceHash> instance = {};  ///< that is here, and works
  };

  /// The plan's communicators by name, for the other nodes to hear. Of those that are not here the first member makes
  /// an id. Throws DeviceError where they were aborted for another plan.
  [[nodiscard]] std::vector<Held> held(PlanId plan) const;

  /// This process made that id for the plan. It serves for nothing else.
  void note_offered(PlanId plan, const std::string& name, const NcclUniqueId& id);

  /// One id for each name of the plan: of the instance that is here, or of one to be built. Throws DeviceError where
  /// ids are missing, used or not those that were made, and changes nothing then.
  [[nodiscard]] Actions connect(PlanId plan, const std::vector<CommunicatorId>& ids, TimePoint now);

  [[nodiscard]] Actions on_built(CommunicatorSlot slot);
  [[nodiscard]] Actions on_warm(CommunicatorSlot slot, TimePoint now);
  [[nodiscard]] Actions on_error(CommunicatorSlot slot, const std::string& message, TimePoint now);

  /// Ends all communicators of the plan's job. `Gone` follows, at once where there are none.
  [[nodiscard]] Actions abort(PlanId plan, TimePoint now);

  /// The plan is unloaded. What works stays for the next one, idle; the rest is ended.
  [[nodiscard]] Actions release(PlanId plan, TimePoint now);

  [[nodiscard]] Actions on_aborted(const std::vector<CommunicatorSlot>& slots);
  [[nodiscard]] Actions on_time(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // ---- questions

  /// The communicator of that name, for an operation of the plan; none: it cannot be used, now or at all.
  [[nodiscard]] std::optional<CommunicatorSlot> ready(PlanId plan, const std::string& name) const;

  /// Whether what was done on it may count: it is built, no error was seen, and no abort was asked for.
  [[nodiscard]] bool counts(CommunicatorSlot slot) const;

  [[nodiscard]] JobNumber job_of_slot(CommunicatorSlot slot) const { return entries_.at(slot).job; }

  [[nodiscard]] std::vector<CommunicatorSlot> slots_in(CommunicatorState state) const;

  [[nodiscard]] JobNumber job_of(PlanId plan) const { return plans_.at(plan).job; }

  [[nodiscard]] bool knows(PlanId plan) const { return plans_.contains(plan); }

  void note_use(CommunicatorSlot slot, std::uint64_t bytes, TimePoint now);
  [[nodiscard]] std::vector<CommunicatorFacts> facts() const;

  /// Ids that were made here, and nobody will come to: each is a thread and a socket until this process ends.
  [[nodiscard]] std::size_t unused_ids() const { return unused_ids_; }

 private:
  struct Entry {
    JobNumber job = 0;
    CommunicatorSpec spec;
    CommunicatorFacts facts;
    std::set<PlanId> users = {};
    std::optional<NcclUniqueId> id = {};        ///< to be built with
    std::optional<InstanceHash> instance = {};  ///< of that id: Building or later, so there is something to abort
    TimePoint idle_since{};
    std::optional<TimePoint> abort_deadline = {};
  };

  struct Plan {
    JobNumber job = 0;
    std::map<std::string, CommunicatorSlot> by_name = {};
    std::map<std::string, InstanceHash> offered = {};
    std::optional<TimePoint> deadline = {};  ///< it is being connected
    bool connected = false;
  };

  [[nodiscard]] bool is_ready(CommunicatorSlot slot) const;

  [[nodiscard]] static bool lives(const Entry& entry) {
    return entry.facts.state != CommunicatorState::Failed && entry.facts.state != CommunicatorState::Aborting;
  }

  [[nodiscard]] CommunicatorSlot add(JobNumber job, const CommunicatorSpec& spec, const std::string& name);
  [[nodiscard]] std::optional<CommunicatorSlot> find(JobNumber job, const std::string& name) const;
  void check_specs(JobNumber job, const std::vector<CommunicatorSpec>& specs) const;
  [[nodiscard]] std::vector<CommunicatorSlot> idle_to_end(
      const std::map<std::string, CommunicatorSpec>& wanted, JobNumber job
  ) const;
  void check_id(const Plan& plan, const CommunicatorId& given) const;
  void check_ids(const Plan& plan, const std::vector<CommunicatorId>& ids) const;
  void build_next(JobNumber job, Actions& actions);
  void note_connected(JobNumber job, Actions& actions);
  void break_job(JobNumber job, const std::string& message, Actions& actions);
  void end(std::vector<CommunicatorSlot> slots, TimePoint now, Actions& actions);
  [[nodiscard]] std::string words_for_overdue(const Plan& plan) const;

  Deadlines deadlines_;
  std::map<CommunicatorSlot, Entry> entries_;
  std::map<PlanId, Plan> plans_;
  std::set<InstanceHash> used_;  ///< 8 bytes for each communicator that was ever built here
  std::set<JobNumber> ending_;   ///< of which `Gone` is due
  CommunicatorSlot next_slot_ = 1;
  std::size_t unused_ids_ = 0;
  bool lost_ = false;
};

}  // namespace gradsync::device
