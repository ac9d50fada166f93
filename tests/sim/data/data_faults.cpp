// The faults of a world in which gradients travel. What happens to single messages and dials is in DataNetwork.

#include "sim/world.hpp"

#include <utility>

namespace gradsync::sim {

const World::Faults World::kDataFaults = {
    {"data_cut", &World::data_cut},
    {"data_cut_sending", &World::data_cut_sending},
    {"data_delay", &World::data_delay},
    {"data_partition_both", &World::data_partition_both},
    {"data_partition_one_way", &World::data_partition_one_way},
    {"data_half_open", &World::data_half_open},
    {"data_old_message", &World::data_old_message},
    {"data_kill_sender", &World::data_kill_sender},
    {"wrong_step", &World::wrong_step},
};

std::pair<std::size_t, std::size_t> World::any_pair() {
  const std::size_t one = random_.below(options_.daemons);
  return {one, (one + 1 + random_.below(options_.daemons - 1)) % options_.daemons};
}

bool World::data_cut() { return data_.cut(); }

bool World::data_cut_sending() {
  data_.cut_in_next();
  return true;
}

bool World::data_delay() {
  const auto [one, other] = any_pair();
  data_.slow_down(
      one, other, random_.between(std::chrono::microseconds(1), Milliseconds(1'500)), std::chrono::seconds(5)
  );
  return true;
}

bool World::data_partition_both() {
  const auto [one, other] = any_pair();
  data_.block(one, other, true, random_.between(Milliseconds(100), Milliseconds(9'000)));
  return true;
}

bool World::data_partition_one_way() {
  const auto [one, other] = any_pair();
  data_.block(one, other, false, random_.between(Milliseconds(100), Milliseconds(9'000)));
  return true;
}

bool World::data_half_open() { return data_.half_open(); }

bool World::data_old_message() { return data_.repeat(); }

bool World::data_kill_sender() {
  data_.kill_in_next();
  return true;
}

/// Where two ranks are all, both may ask for the wrong one, which is a step then.
bool World::wrong_step() {
  any_trainer().asks_wrong_step = trainers_.size() > 2;
  return trainers_.size() > 2;
}

}  // namespace gradsync::sim
