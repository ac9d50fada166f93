#include "net/limits/fair_share.hpp"

#include <algorithm>

namespace gradsync::net {

namespace {

/// An account runs ahead of the time used by what earning it takes.
Duration earning(Duration used) { return std::chrono::duration_cast<Duration>(used / FairShare::kShare); }

Duration burst(FairShare::Worth worth) {
  return worth == FairShare::Worth::Refused ? FairShare::kRefusedBurst : FairShare::kBurst;
}

}  // namespace

FairShare::Process FairShare::process_of(const PeerIdentity& peer, ConnectionId connection) {
  const bool unknown = peer.local && peer.pid == 0;
  return {peer.uid, unknown ? -static_cast<std::int64_t>(connection) : peer.pid};
}

Duration FairShare::charge(
    const PeerIdentity& peer, ConnectionId connection, Worth worth, Duration computed, TimePoint now, Duration prepaid
) {
  const Process process = process_of(peer, connection);
  if (worth == Worth::Understood && computed <= kShortTurn) {
    note_free(process, now);
    return Duration::zero();
  }
  const TimePoint used_up_to = note_used(process, worth, computed - std::min(prepaid, computed), now);
  return pause_of(process, used_up_to, worth, now);
}

Duration FairShare::pause(const PeerIdentity& peer, ConnectionId connection, Worth worth, TimePoint now) const {
  const Process process = process_of(peer, connection);
  const auto found = used_up_to_.find(process);
  return found == used_up_to_.end() ? Duration::zero()
                                    : pause_of(process, found->second[static_cast<std::size_t>(worth)], worth, now);
}

void FairShare::prepay(const PeerIdentity& peer, ConnectionId connection, Worth worth, Duration cost, TimePoint now) {
  note_used(process_of(peer, connection), worth, cost, now);
}

TimePoint FairShare::note_used(const Process& process, Worth worth, Duration used, TimePoint now) {
  if (used_up_to_.size() > look_again_at_) {
    forget_the_idle(now);
  }
  TimePoint& used_up_to =
      used_up_to_.try_emplace(process, Accounts{now, now}).first->second[static_cast<std::size_t>(worth)];
  // Time that was used while no other process waited delays this one for at most the longest pause.
  const TimePoint most = now + earning(burst(worth)) + kLongestPause;
  return used_up_to = std::min(most, std::max(used_up_to, now) + earning(used));
}

Duration FairShare::pause_of(const Process& process, TimePoint used_up_to, Worth worth, TimePoint now) const {
  const Duration over = used_up_to - now - earning(burst(worth));
  if (over <= Duration::zero() || !others_are_served(process, now)) {
    return Duration::zero();
  }
  return std::clamp<Duration>(over, kShortestPause, kLongestPause);
}

void FairShare::note_free(const Process& process, TimePoint now) {
  if (served_[0].process != process) {
    std::swap(served_[0], served_[1]);
  }
  served_[0] = {process, now};
}

bool FairShare::others_are_served(const Process& process, TimePoint now) const {
  const Seen& other = served_[0].process == process ? served_[1] : served_[0];
  return other.at != TimePoint{} && now - other.at <= kBusy;
}

void FairShare::forget_the_idle(TimePoint now) {
  std::erase_if(used_up_to_, [now](const auto& process) {
    return std::max(process.second[0], process.second[1]) <= now;
  });
  look_again_at_ = std::max<std::size_t>(1024, used_up_to_.size() * 2);
}

}  // namespace gradsync::net
