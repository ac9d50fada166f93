#include "sim/data/data_network.hpp"

#include "device/wire/wire_frame.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <variant>

namespace gradsync::sim {

namespace {

constexpr Duration kFastest = std::chrono::microseconds(20);
constexpr Duration kSlowest = std::chrono::microseconds(300);
constexpr Milliseconds kSilence{10'000};  // then the kernel finds that nobody is there (wire_socket.cpp)
constexpr std::uint64_t kInPieces = 40;   // one message of so many

std::pair<UniqueFd, UniqueFd> sockets() {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    throw std::runtime_error("no socket pair");
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

}  // namespace

DataNetwork::DataNetwork(World& world)
    : world_(world), daemons_(world.options().daemons), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
  paths_.resize(world.options().arena ? daemons_ * daemons_ : 0);
}

DataNetwork::Path& DataNetwork::path(std::size_t from, std::size_t to) { return paths_[from * daemons_ + to]; }

/// Both ends of a connection, for the daemons; the world keeps those that they are connected to.
std::array<UniqueFd, 2> DataNetwork::connect(const Dial& dial) {
  const Number number = ++made_;
  Connection& connection = connections_[number];
  std::array<UniqueFd, 2> near;
  for (std::size_t side = 0; side < 2; ++side) {
    End& end = connection.ends[side];
    end.daemon = side == 0 ? dial.from : dial.to;
    std::tie(near[side], end.far) = sockets();
    epoll_event event{EPOLLIN, {}};
    event.data.u64 = 2 * number + side;
    ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, end.far.get(), &event);
  }
  return near;
}

void DataNetwork::collect() {
  if (connections_.empty()) {
    return;
  }
  std::array<epoll_event, 64> events;
  for (int found = 1; found > 0;) {
    found = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<std::uint64_t> ready;
    for (int i = 0; i < found; ++i) {
      ready.push_back(events[static_cast<std::size_t>(i)].data.u64);
    }
    std::ranges::sort(ready);
    for (const std::uint64_t each : ready) {
      drain(each / 2, each % 2);
    }
  }
}

void DataNetwork::drain(Number number, std::size_t side) {
  const auto found = connections_.find(number);
  if (found == connections_.end() || found->second.ends[side].closed) {
    return;
  }
  Connection& connection = found->second;
  std::array<std::byte, 4'096> bytes;
  while (true) {
    const ssize_t got = ::recv(connection.ends[side].far.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) {
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        close_side(number, side);
      }
      return;
    }
    if (!connection.silent && !connection.ways[side].over) {
      Bytes& begun = connection.ways[side].begun;
      begun.insert(begun.end(), bytes.begin(), bytes.begin() + got);
      cut_into_messages(number, side);
    }
    if (static_cast<std::size_t>(got) < bytes.size()) {
      return;  // the end of a connection is an event of its own
    }
  }
}

void DataNetwork::cut_into_messages(Number number, std::size_t side) {
  Way& way = connections_.at(number).ways[side];
  while (way.begun.size() >= device::kFrameBytes) {
    device::FrameBytes head;
    std::memcpy(head.data(), way.begun.data(), head.size());
    const auto frame = device::read_frame(head);
    if (const auto* problem = std::get_if<std::string>(&frame)) {
      world_.breach("a daemon sends what is no message: " + *problem);
      way.begun.clear();
      return;
    }
    const std::uint64_t size = device::kFrameBytes + std::get<device::WireFrame>(frame).bytes;
    if (way.begun.size() < size) {
      return;
    }
    const auto end = way.begun.begin() + static_cast<std::ptrdiff_t>(size);
    Frame whole;
    whole.bytes.assign(way.begun.begin(), end);
    way.begun.erase(way.begun.begin(), end);
    ++messages_;
    bytes_ += size;
    put(number, side, std::move(whole));
  }
}

/// What the daemon has sent before arrives, and then the end.
void DataNetwork::close_side(Number number, std::size_t side) {
  Connection& connection = connections_.at(number);
  End& end = connection.ends[side];
  end.closed = true;
  end.far.reset();
  if (connection.ends[1 - side].closed) {
    connections_.erase(number);
    return;
  }
  if (!connection.silent && !connection.ways[side].over) {
    if (!connection.ways[side].begun.empty()) {
      put(number, side, Frame{{}, std::exchange(connection.ways[side].begun, {})});
    }
    put(number, side, Frame{});
  }
}

void DataNetwork::put(Number number, std::size_t side, Frame frame) {
  Connection& connection = connections_.at(number);
  Way& way = connection.ways[side];
  const Path& taken = path(connection.ends[side].daemon, connection.ends[1 - side].daemon);
  frame.due = world_.clock().now() + world_.random().between(kFastest, kSlowest) + taken.delay;
  if (!way.frames.empty()) {
    frame.due = std::max(frame.due, way.frames.back().due);
  }
  const bool is_message = !frame.bytes.empty();
  way.frames.push_back(std::move(frame));
  schedule(number, side);
  if (is_message && next_ != Ends::Nothing) {
    end_in(number, side);
  }
}

void DataNetwork::end_in(Number number, std::size_t side) {
  const Ends what = std::exchange(next_, Ends::Nothing);
  const std::size_t sender = connections_.at(number).ends[side].daemon;
  world_.clock().after(kFastest / 2, [this, number, sender, what] {
    if (what == Ends::Connection) {
      cut_at(number);
    } else {
      static_cast<void>(world_.kill_daemon_of(sender, false));
    }
  });
}

void DataNetwork::cut_in_next() { next_ = Ends::Connection; }

void DataNetwork::kill_in_next() { next_ = Ends::Daemon; }

void DataNetwork::schedule(Number number, std::size_t side) {
  Connection& connection = connections_.at(number);
  Way& way = connection.ways[side];
  const std::size_t from = connection.ends[side].daemon;
  const std::size_t to = connection.ends[1 - side].daemon;
  if (way.frames.empty() || way.scheduled || path(from, to).blocked) {
    return;
  }
  way.scheduled = true;
  world_.clock().at(way.frames.front().due, [this, number, side, from, to] {
    const auto found = connections_.find(number);
    if (found == connections_.end()) {
      return;
    }
    found->second.ways[side].scheduled = false;
    if (!path(from, to).blocked) {
      deliver(number, side);
    }
  });
}

/// True: all of the message is delivered.
bool DataNetwork::write(Connection& connection, std::size_t side, Frame& frame, std::size_t bytes) {
  const ssize_t sent =
      ::send(connection.ends[1 - side].far.get(), frame.bytes.data() + frame.done, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  frame.done += sent > 0 ? static_cast<std::size_t>(sent) : 0;
  return frame.done == frame.bytes.size();
}

void DataNetwork::deliver(Number number, std::size_t side) {
  Connection& connection = connections_.at(number);
  Way& way = connection.ways[side];
  if (way.frames.empty() || way.over || connection.silent) {
    return;
  }
  Frame& frame = way.frames.front();
  if (connection.ends[1 - side].closed) {
    if (!frame.bytes.empty()) {
      world_.count("data_late_message");  // of an epoch that is over there
    }
    way.frames.pop_front();
    schedule(number, side);
    return;
  }
  if (frame.bytes.empty()) {
    end(number, side);
    return;
  }
  const std::size_t left = frame.bytes.size() - frame.done;
  world_.trace(connection.ends[1 - side].daemon, "data", number);
  const bool in_pieces = world_.disturbed() && left > 1 && world_.random().one_in(kInPieces);
  const std::size_t now = in_pieces ? 1 + world_.random().below(left - 1) : left;
  if (write(connection, side, frame, now)) {
    way.last = std::move(frame.bytes);
    way.frames.pop_front();
  } else {
    frame.due = world_.clock().now() + world_.random().between(Milliseconds(1), Milliseconds(400));
  }
  if (in_pieces) {
    world_.count("data_in_pieces");
  }
  world_.daemon(connection.ends[1 - side].daemon).on_data_moved();
  if (connections_.contains(number)) {
    schedule(number, side);
  }
}

/// The receiver of that way reads to the end.
void DataNetwork::end(Number number, std::size_t side) {
  Connection& connection = connections_.at(number);
  Way& way = connection.ways[side];
  way.frames.clear();
  if (!std::exchange(way.over, true) && !connection.ends[1 - side].closed) {
    ::shutdown(connection.ends[1 - side].far.get(), SHUT_WR);
    world_.daemon(connection.ends[1 - side].daemon).on_data_moved();
  }
}

/// A part of the first message that is on its way arrives, and nothing behind it.
bool DataNetwork::cut_in_message(Connection& connection, std::size_t side) {
  Way& way = connection.ways[side];
  if (way.frames.empty() || way.frames.front().bytes.empty() || connection.ends[1 - side].closed || way.over) {
    return false;
  }
  Frame& frame = way.frames.front();
  const std::size_t left = frame.bytes.size() - frame.done;
  const std::size_t more = world_.random().below(left);
  if (more > 0) {
    static_cast<void>(write(connection, side, frame, more));
  }
  return frame.done > 0;
}

bool DataNetwork::cut() {
  const Number number = any_connection();
  if (number == 0 || (connections_.at(number).ways[0].over && connections_.at(number).ways[1].over)) {
    return false;
  }
  cut_at(number);
  return true;
}

void DataNetwork::cut_at(Number number) {
  for (std::size_t side = 0; side < 2 && connections_.contains(number); ++side) {
    if (cut_in_message(connections_.at(number), side)) {
      world_.count("data_cut_in_message");
    }
    end(number, side);
  }
}

void DataNetwork::break_later(Number number, Duration least, Duration most) {
  world_.clock().after(world_.random().between(least, most), [this, number] {
    for (std::size_t side = 0; side < 2 && connections_.contains(number); ++side) {
      end(number, side);
    }
  });
}

bool DataNetwork::half_open() {
  const Number number = any_connection();
  if (number == 0 || std::exchange(connections_.at(number).silent, true)) {
    return false;
  }
  break_later(number, kSilence, kSilence);
  return true;
}

bool DataNetwork::repeat() {
  const Number first = any_connection();
  const auto can_come_again = [this](Number number, std::size_t side) {
    const Connection& connection = connections_.at(number);
    const Way& way = connection.ways[side];
    return !way.last.empty() && !connection.silent && !way.over && !connection.ends[side].closed;
  };
  for (auto at = connections_.lower_bound(first); at != connections_.end(); ++at) {
    for (std::size_t side = 0; side < 2; ++side) {
      if (can_come_again(at->first, side)) {
        put(at->first, side, Frame{{}, at->second.ways[side].last});
        return true;
      }
    }
  }
  return false;
}

void DataNetwork::daemon_died(std::size_t daemon, bool machine) {
  collect();
  for (auto& [number, connection] : connections_) {
    for (std::size_t side = 0; side < 2; ++side) {
      Way& way = connection.ways[side];
      if (connection.ends[side].daemon != daemon || connection.ends[side].closed) {
        continue;
      }
      if (!way.frames.empty() && way.frames.back().due > world_.clock().now()) {
        way.frames.resize(1 + world_.random().below(way.frames.size()));
        Frame& last = way.frames.back();
        if (last.bytes.size() > last.done + 1) {
          last.bytes.resize(last.done + 1 + world_.random().below(last.bytes.size() - last.done - 1));
          world_.count("data_killed_in_message");
        }
      }
      if (machine && !std::exchange(connection.silent, true)) {
        break_later(number, Milliseconds(200), kSilence);
      }
    }
  }
}

DataNetwork::Number DataNetwork::any_connection() {
  if (connections_.empty()) {
    return 0;
  }
  const auto at = static_cast<std::ptrdiff_t>(world_.random().below(connections_.size()));
  return std::next(connections_.begin(), at)->first;
}

std::string DataNetwork::left_over() const {
  return connections_.empty() && dials_.empty()
             ? ""
             : fmt::format("{} data connections and {} dials are left", connections_.size(), dials_.size());
}

}  // namespace gradsync::sim
