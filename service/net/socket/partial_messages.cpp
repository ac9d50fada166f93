#include "net/socket/partial_messages.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace gradsync::net {

std::optional<ConnectionId> PartialMessages::hold(
    ConnectionId connection, const PeerIdentity& peer, std::size_t bytes
) {
  const auto entry = held_.try_emplace(connection, Held{{peer.uid, peer.pid}, 0}).first;
  bytes_ = bytes_ - entry->second.bytes + bytes;
  entry->second.bytes = bytes;
  if (bytes == 0) {
    held_.erase(entry);
  }
  return bytes_ > most_bytes_ ? std::optional(culprit()) : std::nullopt;
}

ConnectionId PartialMessages::culprit() const {
  std::map<Process, std::size_t> of_process;
  for (const auto& [id, held] : held_) {
    of_process[held.process] += held.bytes;
  }
  // Ids rise, so the oldest is the lowest.
  const auto guilt = [&of_process](const auto& entry) {
    return std::tuple(of_process.at(entry.second.process), entry.second.bytes, ~entry.first);
  };
  return std::max_element(
             held_.begin(), held_.end(), [&](const auto& a, const auto& b) { return guilt(a) < guilt(b); }
  )->first;
}

}  // namespace gradsync::net
