#include "base/fair_budget.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync {

namespace {

template <typename Map, typename Key>
std::uint64_t held_of(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

template <typename Map, typename Key>
void take_from(Map& map, const Key& key, std::uint64_t amount) {
  const auto found = map.find(key);
  GRADSYNC_ASSERT(found != map.end() && found->second >= amount, "nobody gives back more than was taken");
  found->second -= amount;
  if (found->second == 0) {
    map.erase(found);
  }
}

}  // namespace

std::optional<FairBudget::Refusal> FairBudget::refuse(const Holder& holder, std::uint64_t amount, std::uint64_t beside)
    const {
  const auto too_much = [amount](std::uint64_t held, std::uint64_t most) {
    return held > most || amount > most - held;
  };
  const std::uint64_t of_all = bounds_ == Bounds::All ? most_ : kUnlimited;  // so that no sum overflows
  if (too_much(held_, of_all)) {
    return Refusal{"the daemon", held_, of_all};
  }
  if (most_ == kUnlimited) {
    return std::nullopt;
  }
  const std::uint64_t of_one_uid = std::max<std::uint64_t>(most_ - most_ / 4, 1);
  const std::uint64_t by_uid = held_of(of_uid_, holder.uid) + beside;
  if (holder.uid != 0 && holder.uid != own_uid_ && too_much(by_uid, of_one_uid)) {
    return Refusal{fmt::format("uid {}", holder.uid), by_uid, of_one_uid};
  }
  const std::uint64_t of_one_process = std::max<std::uint64_t>(most_ / 2, 1);
  const std::uint64_t by_process = held_of(of_process_, std::pair(holder.uid, holder.pid));
  if (bounds_ == Bounds::All && holder.pid != 0 && too_much(by_process, of_one_process)) {
    return Refusal{fmt::format("process {}", holder.pid), by_process, of_one_process};
  }
  return std::nullopt;
}

void FairBudget::add(const Holder& holder, std::uint64_t amount) {
  if (amount == 0) {
    return;
  }
  held_ += amount;
  of_uid_[holder.uid] += amount;
  of_process_[{holder.uid, holder.pid}] += amount;
}

void FairBudget::take(const Holder& holder, std::uint64_t amount) {
  if (amount == 0) {
    return;
  }
  GRADSYNC_ASSERT(held_ >= amount, "nobody gives back more than was taken");
  held_ -= amount;
  take_from(of_uid_, holder.uid, amount);
  take_from(of_process_, std::pair(holder.uid, holder.pid), amount);
}

}  // namespace gradsync
