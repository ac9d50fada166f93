// The data connections of a daemon, as PeerBridge has them, and the wires of its lane.

#include "sim/daemon.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

namespace gradsync::sim {

/// The node of rank 0 is reached as its own members reach it.
net::LinkId Daemon::dial(const std::string& address, const net::DataLinkHello& hello) {
  std::size_t high = 0;
  std::size_t low = 0;
  if (std::sscanf(address.c_str(), "10.%zu.%zu.1", &high, &low) != 2 && address != "coordinator") {
    world_.breach("there is no daemon at " + address);
  }
  return world_.data().dial(index_, (high << 8) + low, hello);
}

void Daemon::drop(net::LinkId dial) { world_.data().drop(dial); }

void Daemon::open_data(JobNumber job, const Seat& seat, engine::OpenDataLinks wanted) {
  if (seat.replaced) {
    return;
  }
  auto verdict = std::make_shared<std::optional<app::DataVerdict>>(
      data_->want(world_.clock().now(), job, seat.port->key(), std::move(wanted))
  );
  if (*verdict) {
    world_.clock().after({}, [this, life = life_, verdict] {
      if (life == life_) {
        run([this, verdict](engine::Engine& engine) { give(engine, std::move(*verdict)); });
      }
    });
  }
}

void Daemon::give(engine::Engine& engine, std::optional<app::DataVerdict> verdict) {
  if (verdict && seats_.contains(verdict->first)) {
    engine::PeerEvents events;
    events.push_back(std::move(verdict->second));
    engine.on_peer_events(verdict->first, std::move(events));
  }
}

void Daemon::on_data_time(engine::Engine& engine) {
  for (app::DataVerdict& verdict : data_->on_time(world_.clock().now())) {
    give(engine, std::move(verdict));
  }
}

/// Whoever has the token is answered; then it is seen whether anybody wants the connection.
void Daemon::on_data_arrived(std::uint64_t dial, std::size_t from, const net::DataLinkHello& hello, UniqueFd socket) {
  auto link = std::make_shared<net::DataLink>(net::DataLink{hello, address(from), std::move(socket)});
  run([this, dial, link](engine::Engine& engine) {
    world_.data().answer(dial);
    give(engine, data_->on_arrived(world_.clock().now(), std::move(*link)));
  });
}

void Daemon::on_data_connected(std::uint64_t dial, UniqueFd socket) {
  auto kept = std::make_shared<UniqueFd>(std::move(socket));
  run([this, dial, kept](engine::Engine& engine) { give(engine, data_->on_dialled(dial, std::move(*kept))); });
}

void Daemon::on_data_failed(std::uint64_t dial, const std::string& why) {
  run([this, dial, why](engine::Engine&) { data_->on_dial_failed(world_.clock().now(), dial, why); });
}

void Daemon::on_data_moved() { run_wires(); }

void Daemon::on_wish() {
  if (!std::exchange(wires_wish_, true)) {
    world_.clock().after(world_.random().between({}, std::chrono::microseconds(60)), [this, life = life_] {
      if (life == life_) {
        wires_wish_ = false;
        run_wires();
      }
    });
  }
}

void Daemon::on_sent_too_much(std::string what) { world_.breach(fmt::format("daemon {}: {}", index_, what)); }

/// Threads of their own: nothing of the engine takes part.
void Daemon::run_wires() {
  if (!up() || wires_.empty()) {
    return;
  }
  if (stopped_) {
    held_.push_back([this](engine::Engine&) { run_wires(); });
    return;
  }
  for (SteppedWire* const wire : wires_) {
    wire->run();
  }
  world_.data().collect();
  work_lane();
}

}  // namespace gradsync::sim
