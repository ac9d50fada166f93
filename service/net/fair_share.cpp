#include "net/fair_share.hpp"

#include <algorithm>

namespace gradsync::net {

FairShare::Process FairShare::process_of(const PeerIdentity& peer, ConnectionId connection) {
  const bool unknown = peer.local && peer.pid == 0;
  return {peer.uid, unknown ? -static_cast<std::int64_t>(connection) : peer.pid};
}

Duration FairShare::charge(const PeerIdentity& peer, ConnectionId connection, Duration computed, TimePoint now) {
  const Duration cost = computed > kShortTurn ? computed : Duration::zero();
  const auto [account, is_new] = used_up_to_.try_emplace(process_of(peer, connection), now);
  account->second = std::max(account->second, now) + std::chrono::duration_cast<Duration>(cost / kShare);
  const Duration ahead = account->second - now;
  if (is_new && used_up_to_.size() > look_again_at_) {
    forget_the_idle(now);
  }
  // The burst is time used; an account runs ahead of it by what earning it takes.
  const Duration over = ahead - std::chrono::duration_cast<Duration>(kBurst / kShare);
  return std::clamp(over, Duration::zero(), Duration{kLongestPause});
}

void FairShare::forget_the_idle(TimePoint now) {
  std::erase_if(used_up_to_, [now](const auto& account) { return account.second <= now; });
  look_again_at_ = std::max<std::size_t>(1024, used_up_to_.size() * 2);
}

}  // namespace gradsync::net
