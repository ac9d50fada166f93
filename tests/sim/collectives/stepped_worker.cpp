#include "sim/collectives/stepped_worker.hpp"

#include "device/host/host_device.hpp"
#include "engine/types.hpp"
#include "sim/collectives/stepped_device.hpp"
#include "sim/collectives/stepped_gpu.hpp"
#include "sim/world.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

namespace gradsync::sim {

namespace {

constexpr Milliseconds kBuild{8'000};
constexpr Milliseconds kAbort{2'000};
constexpr Milliseconds kLook{250};  // for deadlines: what NCCL does wakes a worker here

device::NcclOptions nccl_options() {
  device::NcclOptions options{"simulated", {}};
  options.settings.deadlines = {kBuild, kAbort};
  options.settings.warm_up = {16};
  return options;
}

}  // namespace

SteppedWorker::SteppedWorker(World& world, std::size_t daemon, device::LaneId id, std::string gpu)
    : world_(world),
      daemon_(daemon),
      life_(world.daemon(daemon).life()),
      id_(id),
      gpu_(std::move(gpu)),
      process_(world.nccl().begin(daemon, *this)) {
  queue_ = std::make_unique<device::LaneQueue>(
      [this](const std::atomic<bool>& cancel) -> std::unique_ptr<device::LaneDevice> {
        auto collectives = std::make_unique<device::LaneCollectives>(
            nccl_options(), std::make_unique<SteppedDevice>(world_, process_)
        );
        if (gpu_.empty()) {
          return std::make_unique<device::HostDevice>(1, cancel, std::move(collectives));
        }
        return std::make_unique<SteppedGpu>(world_, gpu_, cancel, std::move(collectives));
      },
      [this](device::LaneReport report) { reports_.push_back(std::move(report)); },
      device::MakeWire(),
      device::LaneThread::Caller
  );
}

void SteppedWorker::submit(device::LaneCommand command) {
  outstanding_.add(command, world_.clock().now(), {});
  if (!lives()) {
    world_.clock().after({}, [self = shared_from_this()] { self->fail_outstanding(); });
    return;
  }
  if (std::holds_alternative<device::ConnectNodes>(command)) {
    epoch_ = world_.daemon(daemon_).prepared();
  } else if (const auto* reduce = std::get_if<device::ReduceBucket>(&command)) {
    attempt_ = engine::attempt_word({world_.daemon(daemon_).last_begun(), reduce->tag});
  }
  queue_->submit(std::move(command));
  work_soon();
}

void SteppedWorker::kill(const std::string& why, bool silent) {
  if (!lives()) {
    return;
  }
  world_.trace(daemon_, "worker ends", process_);
  why_ = gpu_.empty() ? why : gpu_ + " " + why;
  world_.nccl().end(process_, silent);
  queue_.reset();
  reports_.clear();
  fail_outstanding();
}

void SteppedWorker::stop(Duration time) { stopped_until_ = std::max(stopped_until_, world_.clock().now() + time); }

void SteppedWorker::fail_outstanding() {
  while (!outstanding_.empty()) {
    device::Failed failed = outstanding_.take_oldest();
    failed.message = why_;
    failed.lane_lost = true;
    tell(std::move(failed));
  }
}

/// Behind what its daemon does now, and when that runs.
void SteppedWorker::tell(device::LaneReport report) {
  auto kept = std::make_shared<device::LaneReport>(std::move(report));
  world_.clock().after({}, [self = shared_from_this(), kept] {
    Daemon& daemon = self->world_.daemon(self->daemon_);
    if (daemon.life() == self->life_) {
      daemon.run([kept, id = self->id_](engine::Engine& engine) { engine.on_lane_report(id, std::move(*kept)); });
    }
  });
}

void SteppedWorker::when_it_runs(void (SteppedWorker::*what)()) {
  if (stopped_until_ > world_.clock().now()) {
    world_.clock().at(stopped_until_, [self = shared_from_this(), what] { self->when_it_runs(what); });
  } else {
    (this->*what)();
  }
}

void SteppedWorker::work_soon() {
  if (lives() && !works_ && queue_->has_work()) {
    works_ = true;
    const TimePoint when = world_.clock().now() + world_.random().between({}, Milliseconds(1));
    world_.clock().at(std::max(when, world_.daemon(daemon_).lane_until()), [self = shared_from_this()] {
      self->when_it_runs(&SteppedWorker::work);
    });
  }
}

void SteppedWorker::work() {
  works_ = false;
  if (!lives() || !queue_->has_work()) {
    return;
  }
  {
    const Calling calling(world_.nccl(), process_);
    queue_->work();
  }
  take_reports();
  work_soon();
  poll_within(std::chrono::microseconds(100));
}

void SteppedWorker::poll_within(Duration most) {
  if (lives() && !std::exchange(polls_, true)) {
    world_.clock().after(world_.random().between({}, most), [self = shared_from_this()] {
      self->when_it_runs(&SteppedWorker::poll);
    });
  }
}

void SteppedWorker::poll() {
  polls_ = false;
  if (!lives() || !queue_->has_collectives()) {
    return;
  }
  {
    const Calling calling(world_.nccl(), process_);
    queue_->poll();
  }
  take_reports();
  work_soon();
  if (lives() && !std::exchange(looks_, true)) {
    world_.clock().after(kLook, [self = shared_from_this()] { self->when_it_runs(&SteppedWorker::look_again); });
  }
}

void SteppedWorker::look_again() {
  looks_ = false;
  poll_within({});
}

/// As a ProcessLane takes them.
void SteppedWorker::take_reports() {
  for (device::LaneReport& report : std::exchange(reports_, {})) {
    if (const auto* failed = std::get_if<device::Failed>(&report); failed != nullptr && failed->lane_lost) {
      kill(failed->message);
      return;
    }
    if (!outstanding_.answered_by(report)) {
      world_.breach("a worker reports what nobody asked for");
    }
    tell(std::move(report));
  }
}

Result<device::Lane*> SteppedWorkers::start(device::LaneId id, const std::string& gpu) {
  return workers_.emplace(id, std::make_shared<SteppedWorker>(world_, daemon_, id, gpu)).first->second.get();
}

void SteppedWorkers::stop(device::LaneId id) {
  if (const auto found = workers_.extract(id)) {
    found.mapped()->kill("nothing uses it");
  }
}

void SteppedWorkers::kill_all(bool silent) {
  for (const auto& [id, worker] : std::exchange(workers_, {})) {
    worker->kill("its daemon has ended", silent);
  }
}

SteppedWorker* SteppedWorkers::any() const {
  std::vector<SteppedWorker*> alive;
  for (const auto& [id, worker] : workers_) {
    if (worker->lives()) {
      alive.push_back(worker.get());
    }
  }
  return alive.empty() ? nullptr : alive[alive.size() == 1 ? 0 : world_.random().below(alive.size())];
}

}  // namespace gradsync::sim
