#include "device/collective/lane_collectives.hpp"

#include "device/device_error.hpp"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>
#include <variant>

namespace gradsync::device {

namespace {

/// From one look at what is under way to the next: NCCL wakes nobody.
constexpr std::chrono::microseconds kBetweenPolls{50};

}  // namespace

LaneCollectives::LaneCollectives(NcclOptions options, std::unique_ptr<CollectiveDevice> device)
    : options_(std::move(options)), device_(std::move(device)) {}

LaneCollectives::~LaneCollectives() {
  if (lost_ &&
      device_->has_threads()) {  // a call hangs, on a thread that ends with the process, and so may what it waits for
    static_cast<void>(communicators_.release());
    static_cast<void>(library_.release());
    static_cast<void>(device_.release());
  }
}

Communicators& LaneCollectives::usable() {
  if (lost_) {
    throw DeviceError(*lost_, DeviceError::Kind::DeviceLost);
  }
  if (communicators_ == nullptr) {
    if (options_.library.empty()) {
      throw DeviceError("this lane has no NCCL", "start its worker with --nccl");
    }
    if (library_ == nullptr) {
      library_ = device_->open(options_.library);
    }
    device_->use_on_this_thread();
    communicators_ = std::make_unique<Communicators>(*library_, *device_, options_.settings, [] {});
  }
  return *communicators_;
}

LoadedCommunicators LaneCollectives::load(
    PlanId plan, const LaneCommunicators& of_plan, std::vector<PlannedCollective> step, CollectiveUser& user
) {
  if (of_plan.needed.empty()) {  // nothing of it travels: no library is needed
    if (of_plan.fresh && communicators_ != nullptr && !lost_) {
      communicators_->end_idle(of_plan.job, device_->now());
      busy_ = true;
    }
    idle_.insert(plan);
    users_[plan] = &user;
    return {};
  }
  Communicators& all = usable();
  busy_ = true;
  if (of_plan.fresh) {
    all.end_idle(of_plan.job, device_->now());
  }
  std::vector<CommunicatorSpec> specs;
  for (const LaneCommunicator& one : of_plan.needed) {
    specs.push_back(one.spec);
  }
  std::vector<CommunicatorOffer> offers = all.load(plan, of_plan.job, specs, std::move(step), device_->now());
  users_[plan] = &user;
  return {library_->version(), std::move(offers)};
}

void LaneCollectives::connect(PlanId plan, const std::vector<CommunicatorId>& ids) {
  if (idle_.contains(plan) && ids.empty()) {
    to_tell_.emplace_back(Communicators::Connected{plan});
    return;
  }
  usable().connect(plan, ids, device_->now());
  busy_ = true;
}

void LaneCollectives::begin_step(PlanId plan) {
  if (!idle_.contains(plan)) {
    usable().begin_step(plan);
  }
}

void LaneCollectives::launch(
    PlanId plan, const PlannedCollective& planned, const std::byte* from, std::byte* to, std::uint64_t number
) {
  usable().launch(plan, planned, from, to, number, device_->now());
  busy_ = true;
}

void LaneCollectives::abort(PlanId plan) {
  if (idle_.contains(plan)) {
    to_tell_.emplace_back(Communicators::Aborted{plan});
    return;
  }
  usable().abort(plan, device_->now());
  busy_ = true;
}

void LaneCollectives::unload(PlanId plan) noexcept {
  const bool idle = idle_.erase(plan) != 0;
  if (users_.erase(plan) != 0 && !idle && communicators_ != nullptr && !lost_) {
    communicators_->unload(plan, device_->now());
    busy_ = true;
  }
}

void LaneCollectives::tell(PlanId plan, const auto& event, std::vector<PlanId>& told) {
  const auto found = users_.find(plan);
  if (found == users_.end()) {
    return;  // it was unloaded meanwhile
  }
  found->second->on(event);
  if (std::ranges::find(told, plan) == told.end()) {
    told.push_back(plan);
  }
}

void LaneCollectives::tell(const Communicators::Event& event, std::vector<PlanId>& told) {
  if (const auto* lost = std::get_if<Communicators::Lost>(&event)) {
    lost_ = lost->message;
    for (const auto& [plan, user] : users_) {
      tell(plan, *lost, told);
    }
    return;
  }
  std::visit(
      [&](const auto& each) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(each)>, Communicators::Lost>) {
          tell(each.plan, each, told);
        }
      },
      event
  );
}

std::optional<TimePoint> LaneCollectives::next_poll() const {
  if (!to_tell_.empty()) {
    return TimePoint();
  }
  if (communicators_ == nullptr || lost_) {
    return std::nullopt;
  }
  return busy_ ? polled_ + kBetweenPolls : communicators_->next_deadline();
}

void LaneCollectives::poll(std::vector<PlanId>& told) {
  for (const Communicators::Event& event : std::exchange(to_tell_, {})) {
    tell(event, told);
  }
  if (communicators_ == nullptr || lost_) {
    return;
  }
  polled_ = device_->now();
  try {
    busy_ = communicators_->advance(polled_);
  } catch (const DeviceError& error) {  // the GPU itself
    tell(Communicators::Lost{error.what()}, told);
    return;
  }
  for (const Communicators::Event& event : communicators_->take_events()) {
    tell(event, told);
  }
}

}  // namespace gradsync::device
