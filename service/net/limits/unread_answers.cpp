#include "net/limits/unread_answers.hpp"

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

std::string too_much(const std::string& who, std::size_t bytes, std::size_t most) {
  return fmt::format("limit_exceeded: {} bytes of answers to {} are unread, the limit is {}", bytes, who, most);
}

}  // namespace

std::optional<UnreadAnswers::Excess> UnreadAnswers::note(
    ConnectionId connection, const PeerIdentity& peer, std::size_t bytes
) {
  const std::size_t counted = bytes > kFreeBytes ? bytes : 0;
  const Process process{peer.uid, peer.pid};
  const auto before = left_.find(connection);
  if (before != left_.end()) {
    take(process, before->second.bytes);
    left_.erase(before);
  }
  if (counted == 0) {
    return std::nullopt;
  }
  left_[connection] = {process, counted};
  add(process, counted);
  const std::size_t by_process = of_process_.at(process);
  if (by_process > most_bytes_ / 2) {
    return excess_of(process, too_much(fmt::format("process {}", peer.pid), by_process, most_bytes_ / 2));
  }
  const std::size_t of_one_uid = most_bytes_ - most_bytes_ / 4;
  if (peer.uid != 0 && peer.uid != own_uid_ && of_uid_.at(peer.uid) > of_one_uid) {
    return excess_of(process, too_much(fmt::format("uid {}", peer.uid), of_uid_.at(peer.uid), of_one_uid));
  }
  if (bytes_ > most_bytes_) {
    return excess_of(process_with_most(), too_much("all processes", bytes_, most_bytes_));
  }
  return std::nullopt;
}

void UnreadAnswers::add(const Process& process, std::size_t bytes) {
  bytes_ += bytes;
  of_process_[process] += bytes;
  of_uid_[process.first] += bytes;
}

void UnreadAnswers::take(const Process& process, std::size_t bytes) {
  bytes_ -= bytes;
  take_from(of_process_, process, bytes);
  take_from(of_uid_, process.first, bytes);
}

UnreadAnswers::Process UnreadAnswers::process_with_most() const {
  return std::max_element(
             of_process_.begin(), of_process_.end(), [](const auto& a, const auto& b) { return a.second < b.second; }
  )->first;
}

UnreadAnswers::Excess UnreadAnswers::excess_of(const Process& process, std::string why) const {
  // Ids rise, so the oldest is the lowest.
  const auto guilt = [&process](const auto& entry) {
    return std::tuple(entry.second.process == process, entry.second.bytes, ~entry.first);
  };
  const auto most =
      std::max_element(left_.begin(), left_.end(), [&](const auto& a, const auto& b) { return guilt(a) < guilt(b); });
  return {most->first, std::move(why)};
}

}  // namespace gradsync::net
