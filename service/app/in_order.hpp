#pragma once
// Numbered values, handed on in the order of their numbers. The lane executes in order, but on two threads: what it
// posts from inside the loop stays in the loop's own queue until the handler ends, and a later report from the lane's
// thread overtakes it. Thread: one.

#include <cstdint>
#include <map>
#include <utility>

namespace gradsync::app {

template <typename T>
class InOrder {
 public:
  /// Calls `deliver` for this value and those that waited for it, or not yet. Numbers begin at 0; none is left out.
  template <typename Deliver>
  void arrive(std::uint64_t number, T value, Deliver deliver) {
    if (number != next_) {
      early_.emplace(number, std::move(value));
      return;
    }
    ++next_;
    deliver(std::move(value));
    while (!early_.empty() && early_.begin()->first == next_) {
      auto waited = early_.extract(early_.begin());
      ++next_;
      deliver(std::move(waited.mapped()));
    }
  }

 private:
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, T> early_;
};

}  // namespace gradsync::app
