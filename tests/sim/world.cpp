#include "sim/world.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr TimePoint kBegin{std::chrono::seconds(1'000)};
constexpr Duration kHealing = std::chrono::seconds(150);  // steps have to go on within it
constexpr Duration kEnding = std::chrono::seconds(30);    // calls have to be answered within it, and nothing be left
constexpr std::int64_t kFurther = 3;
constexpr std::int64_t kSinceCheckpoint = 4;  // steps

}  // namespace

World::World(Options options)
    : options_(std::move(options)),
      random_(options_.seed * 0x9E3779B97F4A7C15u + 1),
      truth_([this](std::string what) { breach(std::move(what)); }),
      network_(*this),
      data_(*this),
      nccl_(*this),
      gpus_(options_.seed, options_.sites),
      ranks_per_daemon_(options_.ranks_per_daemon) {
  for (std::size_t index = 0; index < options_.daemons; ++index) {
    daemons_.push_back(std::make_unique<Daemon>(*this, index));
  }
}

World::~World() {
  daemons_.clear();
  if (!options_.state_folder.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(options_.state_folder, ignored);
  }
}

std::string World::state_folder(std::size_t daemon) const {
  if (options_.state_folder.empty()) {
    return {};
  }
  const std::string folder = fmt::format("{}/{}", options_.state_folder, daemon);
  std::filesystem::create_directories(folder);
  return folder;
}

void World::breach(std::string what) {
  if (breach_.empty()) {
    breach_ = fmt::format("after {:.3f} s: {}", seconds(clock_.now() - kBegin), what);
  }
}

void World::trace(std::size_t node, std::string_view name, std::uint64_t word) {
  const std::string line =
      fmt::format("{} {} {} {} {}", digest_, clock_.now().time_since_epoch().count(), node, name, word);
  digest_ = XXH3_64bits(line.data(), line.size());
  ++events_;
  if (options_.says_all) {
    fmt::print("{:10.6f} node {} {} {:x}\n", seconds(clock_.now() - kBegin), node, name, word);
  }
}

void World::see_roster(const engine::PrepareEpoch& prepare) {
  const std::vector<engine::NodeNumber>& nodes = prepare.node_of_rank;
  truth_.roster(prepare.epoch, XXH3_64bits(nodes.data(), nodes.size() * sizeof nodes.front()));
}

void World::see_names(const engine::PeerPrepare& prepare) {
  if (prepare.roster.identity() != seen_.identity()) {
    std::string text;
    for (const engine::RosterNode& node : prepare.roster) {
      text += fmt::format("{} {} {},", node.node, node.address, node.incarnation);
    }
    seen_ = prepare.roster;
    seen_hash_ = XXH3_64bits(text.data(), text.size());
  }
  truth_.names(prepare.epoch, seen_hash_);
}

/// What the record of a daemon says is looked at after each of its events, and the memory of its ranks.
void World::after_turn(std::size_t daemon) {
  const auto first = daemon * static_cast<std::size_t>(ranks_per_daemon_);
  if (options_.arena) {
    data_.collect();
    for (std::size_t rank = first; rank < first + static_cast<std::size_t>(ranks_per_daemon_); ++rank) {
      if (rank < trainers_.size()) {
        trainers_[rank]->check_at_rest();
      }
    }
  }
  for (std::size_t rank = first; rank < first + static_cast<std::size_t>(ranks_per_daemon_); ++rank) {
    if (rank < trainers_.size() && trainers_[rank]->alive() && trainers_[rank]->record()) {
      const std::uint64_t done = trainers_[rank]->record()->done();
      if (done != 0 && std::exchange(stored_[daemon], done) != done) {
        truth_.stored(done);
      }
      return;
    }
  }
}

void World::daemon_died(std::size_t daemon) {
  for (const std::shared_ptr<Trainer>& trainer : trainers_) {
    if (trainer->place().node == daemon) {
      clock_.after(std::chrono::microseconds(500), [trainer] { trainer->on_connection_lost(); });
    }
  }
}

void World::pauses(bool more) {
  if (more) {
    paused_since_ = pausing_++ == 0 ? clock_.now() : paused_since_;
  } else if (--pausing_ == 0) {
    paused_ += clock_.now() - paused_since_;
  }
}

Duration World::paused() const { return paused_ + (pausing_ > 0 ? clock_.now() - paused_since_ : Duration{}); }

void World::begin_job() {
  if (options_.arena) {
    gradients_ = std::make_shared<const Gradients>(
        static_cast<std::int64_t>(options_.daemons), ranks_per_daemon_, options_.sites
    );
  }
  const std::int64_t world = static_cast<std::int64_t>(options_.daemons) * ranks_per_daemon_;
  trainers_.clear();
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const auto node = static_cast<std::size_t>(rank / ranks_per_daemon_);
    trainers_.push_back(
        std::make_shared<Trainer>(*this, Trainer::Place{rank, world, ranks_per_daemon_, node, restarts_})
    );
    clock_.after(random_.between({}, Milliseconds(300)), [trainer = trainers_.back()] {
      if (trainer->alive()) {
        trainer->begin();
      }
    });
  }
}

/// All ranks end and come again from a checkpoint, as a launcher does it.
void World::restart_job(std::int64_t ranks_per_daemon) {
  trace(0, "restart", static_cast<std::uint64_t>(ranks_per_daemon));
  for (const std::shared_ptr<Trainer>& trainer : trainers_) {
    trainer->die();
  }
  ++restarts_;
  ranks_per_daemon_ = ranks_per_daemon;
  begin_job();
  truth_.begin(
      static_cast<std::int64_t>(options_.daemons) * ranks_per_daemon,
      std::max<std::int64_t>(0, truth_.steps() - kSinceCheckpoint),
      gradients_
  );
}

void World::on_unknown_outcome() {
  if (leaving_ || std::exchange(restarting_, true)) {
    return;
  }
  clock_.after(Milliseconds(300), [this] {
    restarting_ = false;
    count("unknown_outcome");
    restart_job(ranks_per_daemon_);
  });
}

void World::replace(std::int64_t rank, Duration least, Duration most) {
  const auto index = static_cast<std::size_t>(rank);
  clock_.after(random_.between(least, most), [this, index, gone = trainers_[index]] {
    if (index < trainers_.size() && trainers_[index] == gone) {
      trainers_[index] = std::make_shared<Trainer>(*this, gone->place());
      trainers_[index]->begin();
    }
  });
}

void World::disturb() {
  static const Faults kNone;
  const Faults& travelling = !options_.arena ? kNone : options_.nccl ? kNcclFaults : kDataFaults;
  const Faults& of_sites = options_.sites ? kSiteFaults : kNone;
  std::size_t chosen = random_.below(kFaults.size() + travelling.size() + of_sites.size());
  const Faults* faults = &kFaults;
  for (const Faults* const more : {&travelling, &of_sites}) {
    if (chosen >= faults->size()) {
      chosen -= std::exchange(faults, more)->size();
    }
  }
  const auto& [name, fault] = (*faults)[chosen];
  trace(0, name, 0);
  if ((this->*fault)()) {  // else it did nothing, or is counted elsewhere
    count(name);
  }
}

bool World::all_have(std::int64_t steps) const {
  return std::ranges::all_of(trainers_, [steps](const std::shared_ptr<Trainer>& trainer) {
    return trainer->alive() && trainer->steps() >= steps;
  });
}

/// Without new faults, until every rank has taken some steps more.
void World::go_on() {
  disturbed_ = false;
  network_.heal();
  if (options_.arena) {
    data_.heal();
    nccl_.heal();
  }
  for (const std::shared_ptr<Trainer>& trainer : trainers_) {
    trainer->end_pause();
  }
  const TimePoint end = clock_.now() + kHealing;
  const std::int64_t wanted = truth_.steps() + kFurther;
  while (breach_.empty() && !all_have(wanted)) {
    if (!clock_.advance(end)) {
      std::string state = "steps do not go on";
      for (std::size_t rank = 0; rank < std::min<std::size_t>(trainers_.size(), 16); ++rank) {
        state += "\n    " + trainers_[rank]->state();
      }
      breach(state);
    }
  }
}

bool World::any_waits() const {
  return std::ranges::any_of(trainers_, [](const std::shared_ptr<Trainer>& trainer) { return trainer->waits(); });
}

void World::leave() {
  leaving_ = true;
  for (const std::shared_ptr<Trainer>& trainer : trainers_) {
    trainer->stays = false;
  }
  const TimePoint last = clock_.now() + kEnding;
  const TimePoint idle = clock_.now() + options_.ending;
  while (breach_.empty() && clock_.advance(idle)) {
  }
  while (breach_.empty() && any_waits() && clock_.advance(last)) {
  }
  for (const std::shared_ptr<Trainer>& trainer : trainers_) {
    if (trainer->waits()) {
      breach("a call was never answered: " + trainer->state());
    }
    truth_.weighs(trainer->place().rank, trainer->steps(), trainer->weight());
    trainer->leave();
  }
  const TimePoint end = clock_.now() + kEnding;
  while (breach_.empty() && clock_.advance(end)) {
  }
  for (const auto& daemon : daemons_) {
    if (const std::string left = daemon->left_over(); !left.empty()) {
      breach(left);
    }
  }
  if (network_.links() != 0) {
    breach(fmt::format("{} links are left", network_.links()));
  }
  for (const std::string& left : {data_.left_over(), nccl_.left_over()}) {
    if (!left.empty()) {
      breach(left);
    }
  }
}

Outcome World::run() {
  for (const auto& daemon : daemons_) {
    daemon->start();
  }
  begin_job();
  truth_.begin(static_cast<std::int64_t>(options_.daemons) * ranks_per_daemon_, 0, gradients_);
  disturbed_ = true;
  TimePoint next = clock_.now() + std::chrono::seconds(2);
  for (std::size_t fault = 0; fault < options_.faults && breach_.empty(); ++fault) {
    while (breach_.empty() && clock_.advance(next)) {
    }
    disturb();
    next = clock_.now() + random_.between(Milliseconds(1), options_.between_faults);
  }
  go_on();
  if (breach_.empty()) {
    leave();
  }
  Outcome outcome;
  outcome.seed = options_.seed;
  outcome.daemons = options_.daemons;
  outcome.breach = breach_;
  outcome.faults = faults_;
  outcome.trace_digest = digest_;
  outcome.events = events_;
  outcome.done = truth_.attempts_done();
  outcome.failed = truth_.attempts_failed();
  outcome.data_messages = data_.messages();
  outcome.data_bytes = data_.bytes();
  outcome.communicators = nccl_.built();
  outcome.operations = nccl_.operations();
  outcome.virtual_s = seconds(clock_.now() - kBegin);
  outcome.coordinator_s = seconds(network_.coordinator_time() + daemons_[0]->coordinator_time());
  return outcome;
}

}  // namespace gradsync::sim
