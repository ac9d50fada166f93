// The faults of a world in which gradients travel by NCCL. What strikes a single member, operation or abort is in
// NcclNetwork.

#include "sim/world.hpp"

#include <string>
#include <utility>
#include <vector>

namespace gradsync::sim {

const World::Faults World::kNcclFaults = {
    {"nccl_kill_worker", &World::nccl_kill_worker},
    {"nccl_stop_worker", &World::nccl_stop_worker},
    {"nccl_late_member", &World::nccl_late_member},
    {"nccl_no_member", &World::nccl_no_member},
    {"nccl_error", &World::nccl_error},
    {"nccl_stall", &World::nccl_stall},
    {"nccl_hung_abort", &World::nccl_hung_abort},
    {"nccl_partition", &World::nccl_partition},
    {"wrong_step", &World::wrong_step},
};

const World::Faults World::kSiteFaults = {
    {"wrong_copy", &World::wrong_copy},
    {"not_finite", &World::not_finite},
};

SteppedWorker* World::any_worker() { return daemons_[random_.below(daemons_.size())]->worker(); }

/// What one rank gives differs from what it should be a copy of.
bool World::wrong_copy() {
  any_trainer().writes_wrong_copy = true;
  return true;
}

bool World::not_finite() {
  any_trainer().writes_nan = true;
  return true;
}

bool World::nccl_kill_worker() {
  SteppedWorker* const worker = any_worker();
  if (worker != nullptr) {
    worker->kill("was ended by signal 9");
  }
  return worker != nullptr;
}

bool World::nccl_stop_worker() {
  SteppedWorker* const worker = any_worker();
  if (worker != nullptr) {
    worker->stop(random_.between(Milliseconds(50), Milliseconds(6'000)));
  }
  return worker != nullptr;
}

/// Members join, and communicators are aborted, when one is gone.
bool World::nccl_late_member() {
  nccl_.strike_next(NcclNetwork::Next::Late);
  return nccl_kill_worker();
}

bool World::nccl_no_member() {
  nccl_.strike_next(NcclNetwork::Next::Never);
  return nccl_kill_worker();
}

bool World::nccl_error() {
  nccl_.strike_next(NcclNetwork::Next::Error);
  return true;
}

bool World::nccl_stall() {
  nccl_.strike_next(NcclNetwork::Next::Stalls);
  return true;
}

bool World::nccl_hung_abort() {
  nccl_.strike_next(NcclNetwork::Next::AbortHangs);
  return nccl_kill_worker();
}

bool World::nccl_partition() {
  const auto [one, other] = any_pair();
  nccl_.block(one, other, random_.between(Milliseconds(100), Milliseconds(9'000)));
  return true;
}

}  // namespace gradsync::sim
