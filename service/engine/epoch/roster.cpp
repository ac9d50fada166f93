#include "engine/epoch/roster.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

TimePoint deadline_after(TimePoint now, Milliseconds timeout) {
  constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);
  return now + std::clamp(timeout, Milliseconds(0), kLongest);
}

std::int64_t Roster::absent() const {
  return size_ - std::count_if(begin(), end(), [](const auto& seat) { return seat.second.taken; });
}

std::vector<std::int64_t> Roster::first_absent(std::size_t most) const {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; alone() && rank < size_ && ranks.size() < most; ++rank) {
    if (!(*this)[rank].taken) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string Roster::absent_in_words() const {
  return alone() ? enumerate_ranks(first_absent(kNamedRanks), absent())
                 : fmt::format("{} of {} ranks of this node", absent(), size_);
}

bool Roster::empty() const {
  return std::none_of(begin(), end(), [](const auto& seat) { return seat.second.taken; });
}

bool Roster::any_committed() const {
  return std::any_of(begin(), end(), [](const auto& seat) { return seat.second.declaration.committed; });
}

bool Roster::any_calls() const {
  return std::any_of(begin(), end(), [](const auto& seat) { return seat.second.call.has_value(); });
}

bool Roster::compares_weights() const {
  return std::any_of(begin(), end(), [](const auto& seat) { return seat.second.declaration.compares_weights; });
}

std::optional<TimePoint> Roster::first_call() const {
  std::optional<TimePoint> first;
  for (const auto& [rank, seat] : *this) {
    if (seat.call && (!first || seat.call->since < *first)) {
      first = seat.call->since;
    }
  }
  return first;
}

}  // namespace gradsync::engine
