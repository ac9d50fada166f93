#pragma once
// Values by rank, of the ranks that have one: a job of many ranks may have few processes, and nothing that is done for
// it should cost more than these do. Pure; one owner, one thread.

#include <cstdint>
#include <map>
#include <utility>

namespace gradsync::engine {

template <typename T>
class ByRank {
 public:
  /// Makes the value of a rank that has none.
  [[nodiscard]] T& operator[](std::int64_t rank) { return values_[rank]; }

  /// A rank without a value has the default.
  [[nodiscard]] const T& operator[](std::int64_t rank) const {
    static const T kNone{};
    const auto found = values_.find(rank);
    return found == values_.end() ? kNone : found->second;
  }

  /// The rank has no value from now on. Returns the one that it had.
  T take(std::int64_t rank) {
    const auto node = values_.extract(rank);
    return node ? std::move(node.mapped()) : T{};
  }

  /// Those whose value is such have none from now on.
  template <typename Such>
  void forget(Such such) {
    std::erase_if(values_, [&such](const auto& each) { return such(each.second); });
  }

  /// How many ranks have a value.
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(values_.size()); }

  /// Pairs of rank and value, in the order of ranks.
  [[nodiscard]] auto begin() { return values_.begin(); }

  [[nodiscard]] auto end() { return values_.end(); }

  [[nodiscard]] auto begin() const { return values_.begin(); }

  [[nodiscard]] auto end() const { return values_.end(); }

 private:
  std::map<std::int64_t, T> values_;
};

}  // namespace gradsync::engine
