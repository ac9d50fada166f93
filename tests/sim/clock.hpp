#pragma once
// Virtual time: what happens is a heap of events by time and order, and all chance comes from one seed. No thread, no
// clock of the machine.

#include "base/clock.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace gradsync::sim {

/// splitmix64 (Steele, Lea and Flood, 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  [[nodiscard]] std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  [[nodiscard]] std::uint64_t below(std::uint64_t most) { return next() % most; }

  [[nodiscard]] bool one_in(std::uint64_t many) { return below(many) == 0; }

  /// Microseconds from `least` to `most`.
  [[nodiscard]] Duration between(Duration least, Duration most) {
    const auto range = std::chrono::duration_cast<std::chrono::microseconds>(most - least).count();
    return least + std::chrono::microseconds(static_cast<std::int64_t>(below(static_cast<std::uint64_t>(range) + 1)));
  }

 private:
  std::uint64_t state_;
};

class Clock {
 public:
  using What = std::function<void()>;

  [[nodiscard]] const TimePoint& now() const { return now_; }

  void at(TimePoint when, What what) {
    heap_.push_back({std::max(when, now_), ++made_, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), Later{});
  }

  void after(Duration time, What what) { at(now_ + time, std::move(what)); }

  /// The next event; false: there is none up to `until`, and that is the time now.
  bool advance(TimePoint until) {
    if (heap_.empty() || heap_.front().when > until) {
      now_ = std::max(now_, until);
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), Later{});
    Entry next = std::move(heap_.back());
    heap_.pop_back();
    now_ = next.when;
    next.what();
    return true;
  }

 private:
  struct Entry {
    TimePoint when;
    std::uint64_t order = 0;
    What what;
  };

  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };

  TimePoint now_{std::chrono::seconds(1'000)};
  std::uint64_t made_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace gradsync::sim
