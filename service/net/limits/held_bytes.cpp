#include "net/limits/held_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace gradsync::net {

namespace {

template <typename Map, typename Key>
void take_from(Map& map, const Key& key, std::size_t bytes) {
  const auto found = map.find(key);
  found->second -= bytes;
  if (found->second == 0) {
    map.erase(found);
  }
}

}  // namespace

std::optional<HeldBytes::Excess> HeldBytes::note(ConnectionId connection, const PeerIdentity& peer, std::size_t bytes) {
  const Process process{peer.uid, peer.pid};
  const auto before = held_.find(connection);
  if (before != held_.end()) {
    take(before->second.process, before->second.bytes);
    held_.erase(before);
  }
  if (bytes == 0) {
    return std::nullopt;
  }
  held_[connection] = {process, bytes};
  add(process, bytes);
  const std::size_t by_process = of_process_.at(process);
  if (peer.pid != 0 && by_process > most_bytes_ / 2) {
    return Excess{culprit_of(process), fmt::format("process {}", peer.pid), by_process, most_bytes_ / 2};
  }
  const std::size_t of_one_uid = most_bytes_ - most_bytes_ / 4;
  const std::size_t by_uid = of_uid_.at(peer.uid);
  if (peer.uid != 0 && peer.uid != own_uid_ && by_uid > of_one_uid) {
    return Excess{culprit_of(process_with_most(peer.uid)), fmt::format("uid {}", peer.uid), by_uid, of_one_uid};
  }
  if (bytes_ > most_bytes_) {
    return Excess{culprit_of(process_with_most(std::nullopt)), "all processes", bytes_, most_bytes_};
  }
  return std::nullopt;
}

void HeldBytes::add(const Process& process, std::size_t bytes) {
  bytes_ += bytes;
  of_process_[process] += bytes;
  of_uid_[process.first] += bytes;
}

void HeldBytes::take(const Process& process, std::size_t bytes) {
  bytes_ -= bytes;
  take_from(of_process_, process, bytes);
  take_from(of_uid_, process.first, bytes);
}

HeldBytes::Process HeldBytes::process_with_most(std::optional<std::uint32_t> uid) const {
  const auto guilt = [uid](const auto& entry) { return std::pair(!uid || entry.first.first == *uid, entry.second); };
  return std::max_element(
             of_process_.begin(), of_process_.end(), [&](const auto& a, const auto& b) { return guilt(a) < guilt(b); }
  )->first;
}

ConnectionId HeldBytes::culprit_of(const Process& process) const {
  // Ids rise, so the oldest is the lowest.
  const auto guilt = [&process](const auto& entry) {
    return std::tuple(entry.second.process == process, entry.second.bytes, ~entry.first);
  };
  return std::max_element(
             held_.begin(), held_.end(), [&](const auto& a, const auto& b) { return guilt(a) < guilt(b); }
  )->first;
}

}  // namespace gradsync::net
