#pragma once
// NCCL on a lane: the library, opened when the first plan needs it, the communicators of this process, and which plan
// has to hear what becomes of them.
//
// Thread: that of the lane, as for Communicators.

#include "base/clock.hpp"
#include "device/nccl/collective_device.hpp"
#include "device/nccl/communicators.hpp"
#include "device/nccl/nccl_library.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gradsync::device {

struct NcclOptions {
  std::string library;  ///< its path, or a name that the loader finds; empty: plans that need one are refused
  CommunicatorSettings settings;
};

/// A plan that uses communicators hears this.
class CollectiveUser {
 public:
  virtual ~CollectiveUser() = default;

  virtual void on(const Communicators::Connected& connected) = 0;
  virtual void on(const Communicators::Broken& broken) = 0;
  virtual void on(const Communicators::Operated& operated) = 0;
  virtual void on(const Communicators::Aborted& aborted) = 0;
  virtual void on(const Communicators::Lost& lost) = 0;
};

class LaneCollectives {
 public:
  LaneCollectives(NcclOptions options, std::unique_ptr<CollectiveDevice> device);
  ~LaneCollectives();
  LaneCollectives(const LaneCollectives&) = delete;
  LaneCollectives& operator=(const LaneCollectives&) = delete;

  /// The user hears of the plan until it is unloaded. Throws DeviceError, and nothing is kept then.
  [[nodiscard]] LoadedCommunicators load(
      PlanId plan, const LaneCommunicators& of_plan, std::vector<PlannedCollective> step, CollectiveUser& user
  );

  /// As Communicators has them. Each throws DeviceError where this process has to be killed.
  void connect(PlanId plan, const std::vector<CommunicatorId>& ids);
  void begin_step(PlanId plan);
  void launch(
      PlanId plan, const PlannedCollective& planned, const std::byte* from, std::byte* to, std::uint64_t number
  );
  void abort(PlanId plan);

  void unload(PlanId plan) noexcept;

  /// When `poll` is to be called next: soon, while something is under way. Nothing: not before another call.
  [[nodiscard]] std::optional<TimePoint> next_poll() const;

  /// Goes on with what is under way, tells users, and appends their plans.
  void poll(std::vector<PlanId>& told);

 private:
  [[nodiscard]] Communicators& usable();
  void tell(PlanId plan, const auto& event, std::vector<PlanId>& told);
  void tell(const Communicators::Event& event, std::vector<PlanId>& told);

  NcclOptions options_;
  std::unique_ptr<CollectiveDevice> device_;
  std::unique_ptr<NcclLibrary> library_;
  std::unique_ptr<Communicators> communicators_;
  std::map<PlanId, CollectiveUser*> users_;
  std::set<PlanId> idle_;                      ///< those without communicators
  std::vector<Communicators::Event> to_tell_;  ///< of these, with the next `poll`
  std::optional<std::string> lost_;
  bool busy_ = false;
  TimePoint polled_{};
};

}  // namespace gradsync::device
