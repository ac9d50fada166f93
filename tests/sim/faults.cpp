// The faults of a world, each of which may come at any time.

#include "sim/world.hpp"

#include <string>
#include <utility>
#include <vector>

namespace gradsync::sim {

const World::Faults World::kFaults = {
    {"kill_daemon", &World::kill_daemon},
    {"kill_coordinator", &World::kill_coordinator},
    {"kill_rank", &World::kill_rank},
    {"kill_node", &World::kill_node},
    {"lose_machine", &World::lose_machine},
    {"stop_daemon", &World::stop_daemon},
    {"stop_rank", &World::stop_rank},
    {"pause", &World::pause_rank},
    {"delay", &World::delay_link},
    {"drop", &World::drop_message},
    {"partition_both", &World::partition_both},
    {"partition_one_way", &World::partition_one_way},
    {"half_open", &World::half_open_link},
    {"late_join", &World::late_join},
    {"duplicate_rank", &World::duplicate_rank},
    {"other_world_size", &World::other_world_size},
    {"restart", &World::restart_all},
    {"wrong_row", &World::wrong_row},
    {"other_plan", &World::other_plan},
    {"slow_lane", &World::slow_lane},
};

Trainer& World::any_trainer() { return *trainers_[random_.below(trainers_.size())]; }

bool World::kill_daemon_of(std::size_t daemon, bool machine) {
  if (!daemons_[daemon]->up()) {
    return false;
  }
  daemons_[daemon]->kill(machine);
  clock_.after(random_.between(Milliseconds(50), Milliseconds(3'000)), [this, daemon] { daemons_[daemon]->start(); });
  return true;
}

bool World::kill_daemon() { return kill_daemon_of(any_member(), false); }

bool World::kill_coordinator() { return kill_daemon_of(0, false); }

bool World::kill_rank() {
  Trainer& trainer = any_trainer();
  if (!trainer.alive()) {
    return false;
  }
  trainer.die();
  replace(trainer.place().rank, Milliseconds(100), Milliseconds(3'000));
  return true;
}

/// The daemon and all ranks of a node.
bool World::lose_node(bool machine) {
  const std::size_t node = random_.one_in(4) ? 0 : any_member();
  const bool was_up = kill_daemon_of(node, machine);
  for (const std::shared_ptr<Trainer>& trainer : trainers_) {
    if (trainer->place().node == node && trainer->alive()) {
      trainer->die();
      replace(trainer->place().rank, Milliseconds(500), Milliseconds(4'000));
    }
  }
  return was_up;
}

bool World::kill_node() { return lose_node(false); }

bool World::lose_machine() { return lose_node(true); }

bool World::stop_daemon() {
  Daemon& daemon = *daemons_[random_.below(daemons_.size())];
  daemon.stop(random_.between(Milliseconds(100), Milliseconds(9'000)));
  return daemon.up();
}

bool World::stop_rank() {
  Trainer& trainer = any_trainer();
  trainer.stop(random_.between(Milliseconds(100), Milliseconds(9'000)));
  return trainer.alive();
}

bool World::pause_rank() { return any_trainer().pause(random_.between(Milliseconds(100), Milliseconds(12'000))); }

bool World::delay_link() {
  network_.slow_down(
      any_member(), random_.between(std::chrono::microseconds(1), Milliseconds(3'000)), std::chrono::seconds(5)
  );
  return true;
}

bool World::drop_message() { return network_.lose_one(any_member()); }

bool World::partition_both() {
  partition(true, true);
  return true;
}

bool World::partition_one_way() {
  const bool up = random_.one_in(2);
  partition(up, !up);
  return true;
}

/// Parts a member from all other nodes.
void World::partition(bool up, bool down) {
  const std::size_t member = any_member();
  const Duration time = random_.between(Milliseconds(100), Milliseconds(9'000));
  network_.block(member, up, down, time);
  if (options_.arena) {
    data_.block_node(member, up, down, time);
    nccl_.block_node(member, time);
  }
}

bool World::half_open_link() { return network_.half_open(any_member()); }

/// A node joins anew over a slow path, and its daemon is replaced while the JOIN is on its way: it counts when it
/// arrives (Network::arrive).
bool World::late_join() {
  const std::size_t member = any_member();
  network_.slow_down(member, Milliseconds(800), std::chrono::seconds(3));
  static_cast<void>(network_.half_open(member));
  clock_.after(Milliseconds(1'200), [this, member] { static_cast<void>(kill_daemon_of(member, false)); });
  return false;
}

/// A process says that it is a rank which another process is, on the same node or another one.
bool World::duplicate_rank() {
  Trainer::Place place = any_trainer().place();
  place.node = random_.one_in(2) ? place.node : random_.below(daemons_.size());
  const auto twin = std::make_shared<Trainer>(*this, place);
  twin->stays = trainers_.size() > 2;  // where two ranks are all, it would take steps that the other one then lacks
  twin->begin();
  clock_.after(Milliseconds(500), [twin] { twin->die(); });
  return true;
}

bool World::other_world_size() {
  restart_job(ranks_per_daemon_ == 1 ? options_.ranks_per_daemon : 1);
  return true;
}

bool World::restart_all() {
  restart_job(ranks_per_daemon_);
  return true;
}

bool World::wrong_row() {
  any_trainer().writes_wrong_row = true;
  return !options_.arena;  // else there are no rows
}

bool World::other_plan() {
  any_trainer().declares_otherwise = true;
  return true;
}

bool World::slow_lane() {
  daemons_[random_.below(daemons_.size())]->hold_lane(random_.between(Milliseconds(1), Milliseconds(1'500)));
  return true;
}

}  // namespace gradsync::sim
