#include "sim/network.hpp"

#include "sim/world.hpp"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::uint64_t kTwice = 150;  // one message of so many comes twice
constexpr Milliseconds kGiveUp{5'000};
constexpr Duration kSoon = std::chrono::microseconds(40);
constexpr Duration kUsual = std::chrono::microseconds(400);

}  // namespace

Network::Network(World& world) : world_(world), of_member_(world.options().daemons), paths_(world.options().daemons) {}

bool Network::blocked(std::size_t member, bool up) const {
  return up ? paths_[member].up_blocked : paths_[member].down_blocked;
}

std::vector<LinkNumber> Network::of(std::size_t member) const {
  return {of_member_[member].begin(), of_member_[member].end()};
}

/// Those that end at the daemon.
std::vector<LinkNumber> Network::ends_of(std::size_t daemon) const {
  if (daemon != 0) {
    return of(daemon);
  }
  std::vector<LinkNumber> all;
  for (const auto& [number, link] : links_) {
    all.push_back(number);
  }
  return all;
}

void Network::open(std::size_t member, JobNumber job) {
  const std::uint64_t life = world_.daemon(member).life();
  if (blocked(member, true) || blocked(member, false)) {
    world_.clock().after(kGiveUp, [this, member, job, life] {
      world_.daemon(member).on_not_connected(job, life, "timed out");
    });
    return;
  }
  world_.clock().after(world_.random().between(kSoon, kUsual), [this, member, job, life] {
    connect(member, job, life);
  });
}

void Network::connect(std::size_t member, JobNumber job, std::uint64_t life) {
  Daemon& own = world_.daemon(member);
  const std::optional<JobNumber> other = world_.daemon(0).coordinating();
  if (!other || own.life() != life) {
    own.on_not_connected(job, life, "refused");
    return;
  }
  const LinkNumber number = ++made_;
  Link& link = links_[number];
  link.member = member;
  link.job = job;
  link.coordinator_job = *other;
  of_member_[member].insert(number);
  own.on_connected(job, number);
  if (links_.contains(number)) {
    world_.daemon(0).on_accepted(*other, number, member);
  }
}

template <typename Value>
void Network::send_as(LinkNumber number, bool up, const Value& message) {
  if (!links_.contains(number)) {
    return;
  }
  Frame frame;
  if constexpr (std::is_same_v<Value, engine::ToCoordinator>) {
    frame.joins = std::holds_alternative<engine::PeerJoin>(message);
  }
  if (world_.options().texts) {
    const auto begin = std::chrono::steady_clock::now();
    Result<std::string> text = rpc::encode_peer(message);
    coordinator_time_ += up ? Duration{} : std::chrono::steady_clock::now() - begin;
    if (!text) {
      world_.breach("a message cannot be written: " + text.error().message);
      return;
    }
    frame.message = std::move(*text);
  } else {
    frame.message = message;
  }
  put(number, up, std::move(frame));
}

void Network::send(LinkNumber link, const engine::ToCoordinator& message) { send_as(link, true, message); }

void Network::send(LinkNumber link, const engine::ToMember& message) { send_as(link, false, message); }

void Network::put(LinkNumber number, bool up, Frame frame) {
  Link& link = links_.at(number);
  Way& way = way_of(link, up);
  if (!way.open) {
    return;
  }
  frame.due = world_.clock().now() + world_.random().between(kSoon, kUsual) + paths_[link.member].delay;
  if (!way.frames.empty()) {
    frame.due = std::max(frame.due, way.frames.back().due);
  }
  frame.sender_life = world_.daemon(up ? link.member : 0).life();
  way.frames.push_back(std::move(frame));
  schedule(number, up);
}

void Network::schedule(LinkNumber number, bool up) {
  Link& link = links_.at(number);
  Way& way = way_of(link, up);
  if (way.frames.empty() || way.scheduled || blocked(link.member, up)) {
    return;
  }
  way.scheduled = true;
  world_.clock().at(way.frames.front().due, [this, number, up] {
    const auto found = links_.find(number);
    if (found == links_.end()) {
      return;
    }
    way_of(found->second, up).scheduled = false;
    if (!blocked(found->second.member, up)) {
      arrive(number, up);
    }
  });
}

void Network::arrive(LinkNumber number, bool up) {
  Link& link = links_.at(number);
  Way& way = way_of(link, up);
  if (way.frames.empty() || !way.open) {
    return;
  }
  Frame frame = std::move(way.frames.front());
  way.frames.pop_front();
  if (!frame.message) {
    end_here(number, up ? End::Coordinator : End::Member, frame.why);
    return;
  }
  if (frame.joins && frame.sender_life != world_.daemon(link.member).life()) {
    world_.count("late_join");
  }
  if (world_.disturbed() && world_.random().one_in(kTwice)) {
    world_.count("duplicate");
    const Duration later = world_.random().one_in(2) ? Duration{} : world_.random().between({}, Milliseconds(2'000));
    world_.clock().after(later, [this, number, up, again = *frame.message] {
      const auto found = links_.find(number);
      if (found != links_.end() && way_of(found->second, up).open) {
        hand_over(number, up, again);
      }
    });
  }
  hand_over(number, up, std::move(*frame.message));
  if (links_.contains(number)) {
    schedule(number, up);
  }
}

void Network::hand_over(LinkNumber number, bool up, Message message) {
  up ? hand_up(number, std::move(message)) : hand_down(number, std::move(message));
}

void Network::hand_up(LinkNumber number, Message message) {
  Link& link = links_.at(number);
  const JobNumber job = link.coordinator_job;
  if (auto* value = std::get_if<engine::ToCoordinator>(&message)) {
    world_.daemon(0).on_message(job, number, std::move(*value));
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  Result<engine::ToCoordinator> read = link.up.reader.to_coordinator(std::get<std::string>(message));
  coordinator_time_ += std::chrono::steady_clock::now() - begin;
  if (read) {
    world_.daemon(0).on_message(job, number, std::move(*read));
  } else {
    world_.breach("a message cannot be read: " + read.error().message);
  }
}

void Network::hand_down(LinkNumber number, Message message) {
  Link& link = links_.at(number);
  Daemon& member = world_.daemon(link.member);
  const JobNumber job = link.job;
  if (auto* value = std::get_if<engine::ToMember>(&message)) {
    member.on_message(job, number, std::move(*value));
  } else if (Result<engine::ToMember> read = link.down.reader.to_member(std::get<std::string>(message)); read) {
    member.on_message(job, number, std::move(*read));
  } else {
    world_.breach("a message cannot be read: " + read.error().message);
  }
}

void Network::close(LinkNumber number, End end, const std::string& why) {
  const auto found = links_.find(number);
  if (found == links_.end()) {
    return;
  }
  Link& link = found->second;
  const bool member = end == End::Member;
  if (!way_of(link, !member).open) {
    return;  // this end is closed already
  }
  way_of(link, !member).open = false;
  way_of(link, !member).frames.clear();
  put(number, member, Frame{{}, std::nullopt, why});
  forget_if_closed(number);
}

std::vector<LinkNumber> Network::close_all(std::size_t daemon, JobNumber job) {
  std::vector<LinkNumber> closed;
  for (const LinkNumber number : ends_of(daemon)) {
    const Link& link = links_.at(number);
    if (job == (daemon == 0 ? link.coordinator_job : link.job)) {
      closed.push_back(number);
    }
  }
  for (const LinkNumber number : closed) {
    close(number, daemon == 0 ? End::Coordinator : End::Member, "closed");
  }
  return closed;
}

void Network::end_here(LinkNumber number, End end, const std::string& why) {
  Link& link = links_.at(number);
  const std::size_t member = link.member;
  const JobNumber job = end == End::Member ? link.job : link.coordinator_job;
  Way& read = way_of(link, end == End::Coordinator);
  read.open = false;
  read.frames.clear();
  forget_if_closed(number);
  world_.daemon(end == End::Member ? member : 0).on_link_ended(job, number, why);
}

void Network::forget_if_closed(LinkNumber number) {
  const Link& link = links_.at(number);
  if (!link.up.open && !link.down.open) {
    of_member_[link.member].erase(number);
    links_.erase(number);
  }
}

/// Some of what was sent last is lost: it was not on its way yet.
void Network::cut_tail(Way& way) {
  if (!way.frames.empty()) {
    way.frames.resize(world_.random().below(way.frames.size() + 1));
  }
}

void Network::daemon_died(std::size_t daemon, bool machine) {
  for (const LinkNumber number : ends_of(daemon)) {
    const End end = daemon == 0 ? End::Coordinator : End::Member;
    cut_tail(way_of(links_.at(number), end == End::Member));
    if (machine) {
      Way& reads = way_of(links_.at(number), end == End::Coordinator);
      reads.open = false;
      reads.frames.clear();
      forget_if_closed(number);
    } else {
      close(number, end, "closed");
    }
  }
}

void Network::block(std::size_t member, bool up, bool down, Duration time) {
  Path& path = paths_[member];
  path.up_blocked = path.up_blocked || up;
  path.down_blocked = path.down_blocked || down;
  const std::uint64_t block = ++path.blocks;
  world_.clock().after(time, [this, member, block] {
    Path& blocked = paths_[member];
    if (blocked.blocks == block) {
      blocked.up_blocked = blocked.down_blocked = false;
      for (const LinkNumber number : of(member)) {
        schedule(number, true);
        schedule(number, false);
      }
    }
  });
}

bool Network::lose_one(std::size_t member) {
  const std::vector<LinkNumber> links = of(member);
  for (const LinkNumber number : links) {
    Link& link = links_.at(number);
    Way& way = way_of(link, world_.random().one_in(2));
    if (!way.frames.empty()) {
      way.frames.pop_back();
    }
    put(number, true, Frame{{}, std::nullopt, "reset"});
    put(number, false, Frame{{}, std::nullopt, "reset"});
  }
  return !links.empty();
}

bool Network::half_open(std::size_t member) {
  bool any = false;
  for (const LinkNumber number : of(member)) {
    Link& link = links_.at(number);
    const JobNumber job = link.job;
    link.up.frames.clear();
    if (std::exchange(link.down.open, false)) {
      any = true;
      link.down.frames.clear();
      forget_if_closed(number);
      world_.daemon(member).on_link_ended(job, number, "reset");
    }
  }
  return any;
}

void Network::slow_down(std::size_t member, Duration delay, Duration time) {
  Path& path = paths_[member];
  path.delay = delay;
  const std::uint64_t slow = ++path.slows;
  world_.clock().after(time, [this, member, slow] {
    if (paths_[member].slows == slow) {
      paths_[member].delay = {};
    }
  });
}

void Network::heal() {
  for (std::size_t member = 0; member < paths_.size(); ++member) {
    if (blocked(member, true) || blocked(member, false)) {
      block(member, false, false, {});
    }
    paths_[member].delay = {};
  }
}

}  // namespace gradsync::sim
