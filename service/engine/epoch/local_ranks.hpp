#pragma once
// The ranks of a job whose processes are on this node. Pure; one owner, one thread.
//
// What a machine keeps per rank it keeps per seat: a dense index into the ranks of this node, ascending. On a node that
// is alone a seat's number is its rank. Ranks of a node need not follow each other, because launchers may deal them out
// in turns; they are known when as many have attached as `job.attach` said there would be.

#include "base/assert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::engine {

class LocalRanks {
 public:
  /// All ranks of the job are here.
  [[nodiscard]] static LocalRanks all(std::int64_t world_size) { return {world_size, 0, world_size, {}, true}; }

  /// `ranks`: ascending, without repetitions, at least one. `of_sites`: also where all ranks are here a coordinator
  /// decides, because this node is several sites by itself (docs/adr/0045).
  [[nodiscard]] static LocalRanks of(std::int64_t world_size, std::vector<std::int64_t> ranks, bool of_sites = false) {
    const auto count = static_cast<std::int64_t>(ranks.size());
    const std::int64_t first = ranks.front();
    if (ranks.back() - first + 1 == count) {
      ranks.clear();
    }
    return {world_size, first, count, std::move(ranks), count == world_size && !of_sites};
  }

  [[nodiscard]] friend bool operator==(const LocalRanks&, const LocalRanks&) = default;

  [[nodiscard]] std::int64_t world_size() const { return world_size_; }

  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(count_); }

  /// No coordinator is asked.
  [[nodiscard]] bool alone() const { return alone_; }

  [[nodiscard]] std::int64_t rank_of(std::size_t seat) const {
    return scattered_.empty() ? first_ + static_cast<std::int64_t>(seat) : scattered_[seat];
  }

  [[nodiscard]] std::optional<std::size_t> seat_of(std::int64_t rank) const {
    if (scattered_.empty()) {
      return rank >= first_ && rank < first_ + count_ ? std::optional(static_cast<std::size_t>(rank - first_))
                                                      : std::nullopt;
    }
    const auto found = std::lower_bound(scattered_.begin(), scattered_.end(), rank);
    return found != scattered_.end() && *found == rank
               ? std::optional(static_cast<std::size_t>(found - scattered_.begin()))
               : std::nullopt;
  }

  /// The same of a rank that is here. Every message of a step asks for it.
  [[nodiscard]] std::size_t seat_of_local(std::int64_t rank) const {
    const auto seat = static_cast<std::size_t>(rank - first_);
    return seat < following_ ? seat : found_seat(rank);
  }

 private:
  LocalRanks(
      std::int64_t world_size, std::int64_t first, std::int64_t count, std::vector<std::int64_t> scattered, bool alone
  )
      : world_size_(world_size),
        first_(first),
        count_(count),
        following_(scattered.empty() ? static_cast<std::size_t>(count) : 0),
        scattered_(std::move(scattered)),
        alone_(alone) {}

  [[nodiscard, gnu::noinline]] std::size_t found_seat(std::int64_t rank) const {
    const std::optional<std::size_t> seat = seat_of(rank);
    GRADSYNC_ASSERT(seat.has_value(), "a rank of another node has no seat here");
    return *seat;
  }

  std::int64_t world_size_;
  std::int64_t first_;
  std::int64_t count_;
  std::size_t following_;                ///< how many follow each other from `first_` on: all or none
  std::vector<std::int64_t> scattered_;  ///< empty: they follow each other
  bool alone_;
};

}  // namespace gradsync::engine
