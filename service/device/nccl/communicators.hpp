#pragma once
// The communicators of one GPU at work: performs what CommunicatorTable decides, with NCCL and the GPU. Nothing waits:
// `advance` goes on with whatever is under way, and is to be called again and again while it says that something is.
//
// Thread: that of the lane, which is the only one that launches; aborts are on a thread of their own.

#include "device/nccl/abort_thread.hpp"
#include "device/nccl/collective_device.hpp"
#include "device/nccl/collective_queue.hpp"
#include "device/nccl/communicator_agreement.hpp"
#include "device/nccl/communicator_table.hpp"
#include "device/nccl/launch_order.hpp"
#include "device/nccl/nccl_library.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {

struct CommunicatorSettings {
  int max_ctas = 8;
  int cga_cluster = 0;
  std::optional<int> traffic_class = {};
  CommunicatorTable::Deadlines deadlines = {};
  /// Float32 elements of the operations that a new communicator is warmed up with: one for each way in which NCCL moves
  /// them, because the first use allocates its buffers.
  std::vector<std::size_t> warm_up = {256, 64U << 10, 1U << 20};
};

class Communicators {
 public:
  struct Connected {
    PlanId plan = 0;
  };

  struct Broken {
    PlanId plan = 0;
    std::string message;
  };

  /// Nothing of the plan's job is written any more.
  struct Aborted {
    PlanId plan = 0;
  };

  /// The outcome of an operation. Not `done`: its output is of no use, and may still be written to until `Aborted`.
  struct Operated {
    PlanId plan = 0;
    std::uint64_t number = 0;
    bool done = false;
  };

  /// This process is of no use any more.
  struct Lost {
    std::string message;
  };

  using Event = std::variant<Connected, Broken, Aborted, Operated, Lost>;

  /// `wake` is called on the thread of aborts: there is something to `advance` with.
  Communicators(
      const NcclLibrary& library, CollectiveDevice& device, CommunicatorSettings settings, std::function<void()> wake
  );
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// A plan that needs these, and the collectives of each of its steps. Throws DeviceError, and nothing is kept then.
  [[nodiscard]] std::vector<CommunicatorOffer> load(
      PlanId plan,
      JobNumber job,
      const std::vector<CommunicatorSpec>& specs,
      std::vector<PlannedCollective> step,
      TimePoint now
  );

  /// Before `load`, where the last epoch failed: some node may have lost what is idle here.
  void end_idle(JobNumber job, TimePoint now);

  /// `Connected` or `Broken` follows. Throws DeviceError where these are not the ids of this plan.
  void connect(PlanId plan, const std::vector<CommunicatorId>& ids, TimePoint now);

  /// Throws DeviceError where the step before is not complete.
  void begin_step(PlanId plan);

  /// The next collective of the plan's step, which `Operated` follows by `number`. Both memories stay as they are until
  /// then. Throws DeviceError where it is not its turn, or the communicator is of no use.
  void launch(
      PlanId plan,
      const PlannedCollective& planned,
      const std::byte* from,
      std::byte* to,
      std::uint64_t number,
      TimePoint now
  );

  /// Everything that the job of the plan has under way fails at once; `Aborted` follows.
  void abort(PlanId plan, TimePoint now);
  void unload(PlanId plan, TimePoint now);

  /// True: something is under way, and nothing but another call says how far it is.
  bool advance(TimePoint now);

  [[nodiscard]] std::vector<Event> take_events() { return std::exchange(events_, {}); }

  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return table_.next_deadline(); }

  [[nodiscard]] const CommunicatorTable& table() const { return table_; }

 private:
  struct Job {
    std::unique_ptr<CollectiveQueue> queue;
    std::vector<std::unique_ptr<CollectiveQueue>> ending = {};  ///< what was aborted may still run on their streams
    std::set<PlanId> aborting = {};                             ///< `Aborted` is due
  };

  struct Handle {
    NcclCommunicator* communicator = nullptr;
    int ranks = 0;
    int own = 0;
  };

  void perform(CommunicatorTable::Actions actions, TimePoint now);
  void perform(const CommunicatorTable::Build& build, TimePoint now);
  void perform(const CommunicatorTable::WarmUp& warm_up, TimePoint now);
  void make_scratch();
  void perform(const CommunicatorTable::AbortGroup& group, TimePoint now);
  void perform(const CommunicatorTable::Connected& connected, TimePoint now);
  void perform(const CommunicatorTable::Broken& broken, TimePoint now);
  void perform(const CommunicatorTable::Gone& gone, TimePoint now);
  void perform(const CommunicatorTable::Lose& lose, TimePoint now);
  void poll_built(CommunicatorSlot slot, TimePoint now);
  void go_on(Job& job, TimePoint now);
  void note_done(const QueuedCollective& one, TimePoint now);
  void drop(JobNumber job);
  [[nodiscard]] Job& job_at(JobNumber number);
  [[nodiscard]] LaunchOrder& order_of(PlanId plan);
  [[nodiscard]] NcclResult state_of(const Handle& made) const;

  const NcclLibrary& library_;
  CollectiveDevice& device_;
  CommunicatorSettings settings_;
  CommunicatorTable table_;
  std::map<CommunicatorSlot, Handle> handles_;  ///< until they are given to the thread of aborts
  std::map<JobNumber, Job> jobs_;
  std::map<PlanId, LaunchOrder> orders_;
  std::vector<Event> events_;
  std::byte* scratch_ = nullptr;  ///< of warm-ups; what is in it does not matter
  std::unique_ptr<GroupAborts> aborts_;
};

}  // namespace gradsync::device
