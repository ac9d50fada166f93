// The paths of data connections: how they are made, how slow they are, and where nothing gets through.

#include "sim/data/data_network.hpp"
#include "sim/world.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr Milliseconds kDialGivesUp{5'000};  // to connect, and for the answer
constexpr std::uint64_t kFails = 150;        // one dial of so many
constexpr std::uint64_t kSlow = 300;
constexpr std::uint64_t kRestarted = 1'200;

}  // namespace

/// As PeerOptions::connect has it: what takes longer has failed.
Duration DataNetwork::time_of_dial(const Dial& dial) {
  Random& random = world_.random();
  Duration time = random.between(std::chrono::microseconds(40), std::chrono::microseconds(600)) +
                  path(dial.from, dial.to).delay + path(dial.to, dial.from).delay;
  if (!world_.disturbed()) {
    return time;
  }
  if (random.one_in(kSlow)) {
    world_.count("dial_slow");
    time += random.between(Milliseconds(100), Milliseconds(7'000));
  } else if (random.one_in(kRestarted) && world_.kill_daemon_of(dial.to, false)) {
    time += Milliseconds(3'100);  // the daemon is back by then
  }
  return time;
}

DataNetwork::Number DataNetwork::dial(std::size_t from, std::size_t to, net::DataLinkHello hello) {
  const Number number = ++made_;
  dials_.emplace(number, Dial{from, to, world_.daemon(from).life(), std::move(hello)});
  // The daemon that dials is in the middle of something, and must not end now.
  world_.clock().after({}, [this, number] {
    const auto found = dials_.find(number);
    if (found == dials_.end()) {
      return;
    }
    const Dial& dial = found->second;
    if (world_.disturbed() && world_.random().one_in(kFails)) {
      world_.count("dial_fails");
      fail(number, "connection refused");
      return;
    }
    const bool blocked = path(dial.from, dial.to).blocked || path(dial.to, dial.from).blocked;
    const Duration time = blocked ? kDialGivesUp : time_of_dial(dial);
    if (blocked || time >= kDialGivesUp) {
      world_.clock().after(kDialGivesUp, [this, number] { fail(number, "timed out"); });
    } else {
      world_.clock().after(time, [this, number] { arrive(number); });
    }
  });
  return number;
}

void DataNetwork::drop(Number dial) {
  if (const auto found = dials_.find(dial); found != dials_.end()) {
    found->second.dropped = true;
    found->second.socket.reset();
  }
}

void DataNetwork::arrive(Number number) {
  const auto found = dials_.find(number);
  if (found == dials_.end()) {
    return;
  }
  Dial& dial = found->second;
  Daemon& other = world_.daemon(dial.to);
  if (!other.up()) {
    fail(number, "connection refused");
    return;
  }
  if (dial.hello.to != other.incarnation()) {
    world_.count("dial_to_another_life");
  }
  auto near = connect(dial);
  if (dial.dropped || world_.daemon(dial.from).life() != dial.life) {
    world_.count("dial_given_up");  // its request was on the way, and nobody is at this end any more
    near[0].reset();
  }
  dial.socket = std::move(near[0]);
  world_.clock().after(kDialGivesUp, [this, number] { fail(number, "no answer"); });
  other.on_data_arrived(number, dial.from, dial.hello, std::move(near[1]));
  collect();
}

void DataNetwork::answer(Number number) {
  world_.clock().after(world_.random().between({}, std::chrono::microseconds(300)), [this, number] {
    auto dial = dials_.extract(number);
    if (dial.empty()) {
      return;
    }
    Daemon& own = world_.daemon(dial.mapped().from);
    if (own.life() == dial.mapped().life && !dial.mapped().dropped) {
      own.on_data_connected(number, std::move(dial.mapped().socket));
    }
    dial.mapped().socket.reset();
    collect();
  });
}

void DataNetwork::fail(Number number, const std::string& why) {
  auto dial = dials_.extract(number);
  if (dial.empty()) {
    return;
  }
  dial.mapped().socket.reset();
  collect();
  if (Daemon& own = world_.daemon(dial.mapped().from); own.life() == dial.mapped().life) {
    own.on_data_failed(number, why);
  }
}

void DataNetwork::schedule_between(std::size_t from, std::size_t to) {
  std::vector<std::pair<Number, std::size_t>> ways;
  for (const auto& [number, connection] : connections_) {
    for (std::size_t side = 0; side < 2; ++side) {
      if (connection.ends[side].daemon == from && connection.ends[1 - side].daemon == to) {
        ways.emplace_back(number, side);
      }
    }
  }
  for (const auto& [number, side] : ways) {
    schedule(number, side);
  }
}

void DataNetwork::block(std::size_t from, std::size_t to, bool back, Duration time) {
  if (back) {
    block(to, from, false, time);
  }
  Path& blocked = path(from, to);
  blocked.blocked = true;
  world_.clock().after(time, [this, from, to, block = ++blocked.blocks] {
    if (path(from, to).blocks == block) {
      path(from, to).blocked = false;
      schedule_between(from, to);
    }
  });
}

void DataNetwork::block_node(std::size_t node, bool out, bool in, Duration time) {
  for (std::size_t other = 0; other < daemons_; ++other) {
    if (other != node && out) {
      block(node, other, false, time);
    }
    if (other != node && in) {
      block(other, node, false, time);
    }
  }
}

void DataNetwork::slow_down(std::size_t a, std::size_t b, Duration delay, Duration time) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    Path& slow = path(from, to);
    slow.delay = delay;
    world_.clock().after(time, [this, from = from, to = to, mark = ++slow.slows] {
      if (path(from, to).slows == mark) {
        path(from, to).delay = {};
      }
    });
  }
}

void DataNetwork::heal() {
  next_ = Ends::Nothing;
  for (std::size_t from = 0; from < daemons_; ++from) {
    for (std::size_t to = 0; to < daemons_; ++to) {
      Path& healed = path(from, to);
      healed.delay = {};
      if (std::exchange(healed.blocked, false)) {
        ++healed.blocks;
        schedule_between(from, to);
      }
    }
  }
}

}  // namespace gradsync::sim
