#include "sim/daemon.hpp"

#include "sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ranges>

namespace gradsync::sim {

namespace {

constexpr Milliseconds kUnused{10'000};  // so long a worker that nothing uses stays

}  // namespace

/// The port of a job, seen from outside: which epoch has begun.
class SeenPort final : public engine::Peers {
 public:
  SeenPort(Daemon& daemon, JobNumber job, std::unique_ptr<app::PeerPort> port)
      : daemon_(daemon), job_(job), port_(std::move(port)) {}

  [[nodiscard]] engine::PeerEvents tell(engine::LocalEvent event) override {
    engine::PeerEvents events = port_->tell(std::move(event));
    daemon_.see(job_, events);
    return events;
  }

  [[nodiscard]] bool vote(const engine::Voted& voted) override { return port_->vote(voted); }

  [[nodiscard]] bool alone() const override { return false; }

  [[nodiscard]] std::string waits_for() const override { return port_->waits_for(); }

 private:
  Daemon& daemon_;
  JobNumber job_;
  std::unique_ptr<app::PeerPort> port_;
};

Daemon::Daemon(World& world, std::size_t index) : world_(world), index_(index) {}

Daemon::~Daemon() {
  engine_.reset();
  if (workers_) {
    workers_->kill_all(false);
  }
}

void Daemon::start() {
  ++life_;
  world_.trace(index_, "start", life_);
  data_.emplace(incarnation(), *this);
  lane_ = std::make_unique<SteppedLane>(*this);
  workers_.emplace(world_, index_);
  planner_ = std::make_unique<fakes::InlinePlanner>();
  engine::EngineOptions options;
  options.first_epoch = 1 + world_.random().below(1'000'000);
  options.history = 4;
  options.encode_report = [](const engine::StepReport& report, std::size_t) { return text_of(told_by(report)); };
  options.encoded_bytes = 4'096;
  options.policy_directory = world_.state_folder(index_);
  if (world_.options().arena) {
    options.buckets = {256, 512};
  }
  options.cpu_collectives = world_.options().nccl && !world_.options().sites;
  options.deadlines.unused_gpu = kUnused;
  if (!world_.options().texts) {
    options.measure_memory = [](const auto&) { return device::MemoryHeadroom{1u << 30, 0, 1u << 30}; };
  }
  options.make_peers = [this](JobNumber job, const engine::AttachRequest& first) { return make_port(job, first); };
  engine_ = std::make_unique<engine::Engine>(
      std::move(options), engine::Lanes(*lane_, &*workers_), *planner_, [](const engine::Event&) {}, world_.metrics()
  );
  engine_->advance(world_.clock().now());
}

void Daemon::kill(bool machine) {
  if (!up()) {
    return;
  }
  world_.trace(index_, machine ? "machine lost" : "kill", life_);
  ++life_;
  world_.data().daemon_died(index_, machine);
  engine_.reset();
  planner_.reset();
  lane_.reset();
  workers_->kill_all(machine);
  workers_.reset();
  prepared_ = last_begun_ = 0;
  data_.reset();
  seats_.clear();
  told_.clear();
  held_.clear();
  if (stopped_) {
    stood_still_ += world_.clock().now() - stopped_since_;
  }
  stopped_ = lane_works_ = planner_works_ = wires_wish_ = false;
  wakes_.reset();
  world_.data().collect();
  world_.network().daemon_died(index_, machine);
  world_.daemon_died(index_);
}

void Daemon::stop(Duration time) {
  if (!up()) {
    return;
  }
  if (!stopped_) {
    stopped_ = true;
    stopped_since_ = world_.clock().now();
  }
  world_.trace(index_, "stop", life_);
  world_.clock().after(time, [this, life = life_, stop = ++stops_] {
    if (life != life_ || stop != stops_) {
      return;
    }
    stopped_ = false;
    stood_still_ += world_.clock().now() - stopped_since_;
    world_.trace(index_, "continue", life_);
    for (auto& what : std::exchange(held_, {})) {
      if (life == life_) {
        turn(what);
      }
    }
  });
}

void Daemon::hold_lane(Duration time) { lane_until_ = std::max(lane_until_, world_.clock().now() + time); }

Duration Daemon::stood_still() const {
  return stood_still_ + (stopped_ ? world_.clock().now() - stopped_since_ : Duration{});
}

void Daemon::run(std::function<void(engine::Engine&)> what) {
  if (!up()) {
    return;
  }
  if (stopped_) {
    held_.push_back(std::move(what));
  } else {
    turn(what);
  }
}

void Daemon::turn(const std::function<void(engine::Engine&)>& what) {
  engine_->advance(world_.clock().now());
  what(*engine_);
  after_turn();
}

bool Daemon::begun(std::uint64_t epoch) const {
  return std::ranges::any_of(seats_, [epoch](const auto& each) { return each.second.begun == epoch; });
}

std::optional<JobNumber> Daemon::coordinating() const {
  for (const auto& [job, seat] : seats_) {
    if (!seat.replaced && seat.port->coordinates()) {
      return job;
    }
  }
  return std::nullopt;
}

std::string Daemon::incarnation() const { return fmt::format("{:016x}", (life_ << 16) + index_); }

std::string Daemon::address(std::size_t index) const { return fmt::format("10.{}.{}.1", index >> 8, index & 255); }

std::unique_ptr<engine::Peers> Daemon::make_port(JobNumber job, const engine::AttachRequest& first) {
  for (auto& [number, seat] : seats_) {  // as PeerBridge::replace_earlier
    if (!std::exchange(seat.replaced, true)) {
      data_->erase(number);
      for (const LinkNumber link : world_.network().close_all(index_, number)) {
        world_.clock().after({}, [this, life = life_, number, link] {
          if (life == life_) {
            on_link_ended(number, link, "another job of that name has begun on this node");
          }
        });
      }
    }
  }
  app::PeerPort::Options port;
  port.job = job;
  port.identity.job = {first.uid, first.job};
  port.identity.restart_count = first.restart_count;
  port.identity.world_size = first.world_size;
  port.identity.local_world_size = first.ranks_here();
  port.identity.meshes = first.meshes;
  port.identity.node = fmt::format("node{}", index_);
  port.identity.node_id = fmt::format("{:032x}", index_);
  port.identity.incarnation = incarnation();
  port.identity.address = address(index_);
  port.identity.port = 9478;
  port.coordinator = "coordinator";
  port.version = "1.0";
  port.first_epoch = world_.new_epochs();
  port.retry_seed = world_.random().next();
  port.now = [this] { return world_.clock().now(); };
  port.most_nodes = world_.options().daemons;
  auto made = std::make_unique<app::PeerPort>(std::move(port), engine_->declared_bytes(), *this);
  seats_[job] = Seat{made.get()};
  return std::make_unique<SeenPort>(*this, job, std::move(made));
}

void Daemon::see(JobNumber job, const engine::PeerEvents& events) {
  for (const engine::PeerEvent& event : events) {
    if (const auto* begin = std::get_if<engine::BeginEpoch>(&event)) {
      last_begun_ = seats_[job].begun = begin->epoch;
      world_.trace(index_, "begin", begin->epoch);
    } else if (const auto* prepare = std::get_if<engine::PrepareEpoch>(&event)) {
      prepared_ = prepare->epoch;
      world_.see_roster(*prepare);
    } else if (const auto* verdict = std::get_if<engine::VerdictReached>(&event)) {
      world_.trace(index_, "verdict", verdict->word);
    }
  }
}

void Daemon::to_port(JobNumber job, PortCall call) {
  run([this, job, call = std::move(call)](engine::Engine& engine) {
    const auto found = seats_.find(job);
    if (found == seats_.end()) {
      return;
    }
    on_told(job);
    engine::PeerEvents events = call(*found->second.port);
    see(job, events);
    if (!events.empty()) {
      engine.on_peer_events(job, std::move(events));
    }
  });
}

void Daemon::on_connected(JobNumber job, LinkNumber link) {
  const auto found = seats_.find(job);
  if (found == seats_.end() || found->second.replaced) {
    world_.network().close(link, Network::End::Member, "nobody wants it");
    return;
  }
  found->second.link = link;
  to_port(job, [own = address(index_)](app::PeerPort& port) { return port.on_own_link(own); });
}

void Daemon::on_not_connected(JobNumber job, std::uint64_t life, const std::string& why) {
  if (life == life_) {
    to_port(job, [why](app::PeerPort& port) { return port.on_own_link_ended(why); });
  }
}

void Daemon::on_accepted(JobNumber job, LinkNumber link, std::size_t member) {
  to_port(job, [link, seen = address(member)](app::PeerPort& port) { return port.on_link(link, seen); });
}

void Daemon::on_message(JobNumber job, LinkNumber link, engine::ToCoordinator message) {
  world_.trace(index_, "up", message.index());
  to_port(job, [this, link, message = std::move(message)](app::PeerPort& port) {
    const auto begin = std::chrono::steady_clock::now();
    engine::PeerEvents events = port.on_message(link, message);
    coordinator_time_ += std::chrono::steady_clock::now() - begin;
    return events;
  });
}

void Daemon::on_message(JobNumber job, LinkNumber link, engine::ToMember message) {
  world_.trace(index_, "down", message.index());
  if (const auto* prepare = std::get_if<engine::PeerPrepare>(&message)) {
    world_.see_names(*prepare);
  }
  to_port(job, [this, job, link, message = std::move(message)](app::PeerPort& port) {
    return seats_[job].link == link ? port.on_own_message(message) : engine::PeerEvents{};
  });
}

void Daemon::on_link_ended(JobNumber job, LinkNumber link, const std::string& why) {
  world_.trace(index_, "link ended", link);
  to_port(job, [this, job, link, why](app::PeerPort& port) {
    Seat& seat = seats_[job];
    if (port.coordinates()) {
      return port.on_link_ended(link, why);
    }
    if (seat.link != link) {
      return engine::PeerEvents{};
    }
    seat.link = 0;
    return port.on_own_link_ended(why);
  });
}

void Daemon::on_gone(JobNumber job) {
  if (up()) {
    world_.network().close_all(index_, job);
    data_->erase(job);
  }
  seats_.erase(job);
}

void Daemon::after_turn() {
  for (const JobNumber job : std::exchange(told_, {})) {
    flush(job);
  }
  work_lane();
  work_planner();
  wake_for_deadlines();
  world_.after_turn(index_);
}

/// What the port wants sent goes out when the job has performed what followed.
void Daemon::flush(JobNumber job) {
  const auto found = seats_.find(job);
  if (found == seats_.end()) {
    return;
  }
  for (app::Outgoing& each : found->second.port->take_outgoing()) {
    send(found->second, job, each);
  }
  if (engine::PeerEvents later = found->second.port->take_later(); !later.empty()) {
    auto kept = std::make_shared<engine::PeerEvents>(std::move(later));
    world_.clock().after({}, [this, life = life_, job, kept] {
      if (life == life_) {
        to_port(job, [kept](app::PeerPort&) { return std::exchange(*kept, {}); });
      }
    });
  }
}

void Daemon::send(Seat& seat, JobNumber job, app::Outgoing& each) {
  Network& network = world_.network();
  if (auto* down = std::get_if<engine::SendToMember>(&each)) {
    network.send(down->link, down->message);
  } else if (const auto* close = std::get_if<engine::CloseLink>(&each)) {
    network.close(close->link, Network::End::Coordinator, "closed");
  } else if (auto* up = std::get_if<engine::SendToCoordinator>(&each)) {
    network.send(seat.link, up->message);
  } else if (auto* wanted = std::get_if<engine::OpenDataLinks>(&each)) {
    open_data(job, seat, std::move(*wanted));
  } else if (std::holds_alternative<app::CloseDataLinks>(each)) {
    data_->forget(job);
  } else if (std::holds_alternative<engine::DropLink>(each)) {
    network.close(std::exchange(seat.link, 0), Network::End::Member, "dropped");
  } else if (std::holds_alternative<engine::OpenLink>(each) && !seat.replaced) {
    network.open(index_, job);
  }
}

void Daemon::work_lane() {
  if (lane_works_ || !lane_->has_work()) {
    return;
  }
  lane_works_ = true;
  const TimePoint when = std::max(lane_until_, world_.clock().now() + world_.random().between({}, Milliseconds(1)));
  world_.clock().at(when, [this, life = life_] {
    if (life == life_) {
      run([this](engine::Engine& engine) {
        lane_works_ = false;
        for (device::LaneReport& report : lane_->work()) {
          engine.on_lane_report(device::kHostLane, std::move(report));
        }
      });
    }
  });
}

void Daemon::work_planner() {
  if (planner_works_ || planner_->requests.empty()) {
    return;
  }
  planner_works_ = true;
  world_.clock().after(world_.random().between({}, Milliseconds(20)), [this, life = life_] {
    if (life == life_) {
      run([this](engine::Engine& engine) {
        planner_works_ = false;
        engine.on_plan(world_.plan(planner_->requests.front()));
        planner_->requests.pop_front();
      });
    }
  });
}

void Daemon::wake_for_deadlines() {
  if (const std::optional<TimePoint> next = engine_->next_deadline()) {
    wake_at(*next);
  }
  if (const std::optional<TimePoint> next = data_->next_deadline()) {
    wake_at(*next);
  }
  for (auto& [job, seat] : seats_) {
    if (const std::optional<TimePoint> next = seat.port->next_deadline()) {
      wake_at(*next);
    }
  }
}

void Daemon::wake_at(TimePoint when) {
  if (wakes_ && *wakes_ <= when) {
    return;
  }
  wakes_ = when;
  world_.clock().at(when, [this, life = life_, when] {
    if (life != life_ || !wakes_ || *wakes_ != when) {
      return;
    }
    wakes_.reset();
    run([this](engine::Engine& engine) { on_data_time(engine); });
    const TimePoint now = world_.clock().now();
    std::vector<JobNumber> due;
    for (const auto& [job, seat] : seats_) {
      if (const std::optional<TimePoint> next = seat.port->next_deadline(); next && *next <= now) {
        due.push_back(job);
      }
    }
    for (const JobNumber job : due) {
      to_port(job, [](app::PeerPort& port) { return port.on_time(); });
    }
  });
}

std::string Daemon::left_over() const {
  if (!up()) {
    return {};
  }
  std::string found;
  if (!seats_.empty()) {
    found += fmt::format(" {} ports", seats_.size());
  }
  if (const auto jobs = engine_->status(std::nullopt); !jobs.empty()) {
    found += fmt::format(" {} jobs", jobs.size());
  }
  if (engine_->next_deadline()) {
    found += " a deadline";
  }
  if (!engine_->idle()) {
    found += " calls or work";
  }
  return found.empty() ? found : fmt::format("daemon {} has left:{}", index_, found);
}

}  // namespace gradsync::sim
