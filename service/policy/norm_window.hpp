#pragma once
// The last norms of a clip group, and any percentile of them. Pure; one owner, one thread.
//
// Bound: a push is one binary search, and at most 2 × 8 bytes × capacity moved; a percentile two reads. Memory is taken
// at construction, and none later.

#include <cstddef>
#include <vector>

namespace gradsync::policy {

class NormWindow {
 public:
  /// At least 1.
  explicit NormWindow(std::size_t capacity);

  /// A norm ≥ 0, infinite or NaN. In a full window it replaces the oldest.
  void push(double norm);

  /// Linear between the two nearest of the sorted norms, bit by bit as numpy.percentile(norms, percentile) of float64
  /// values has it (method "linear", Hyndman and Fan's 7th). `percentile` is in (0, 100]; not of an empty window. It is
  /// not finite where a norm is NaN, or where one of the two nearest is infinite.
  [[nodiscard]] double percentile(double percentile) const;

  [[nodiscard]] std::size_t size() const { return ring_.size(); }

  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Appends them in the order of arrival, the oldest first: pushed into a new window they make this one again.
  void append_to(std::vector<double>& norms) const;

 private:
  void sort_in(double norm);
  void replace(double oldest, double norm);

  std::size_t capacity_;
  std::vector<double> ring_;  ///< the oldest is at `oldest_`
  std::size_t oldest_ = 0;
  std::vector<double> sorted_;  ///< without NaN, which has no order
};

}  // namespace gradsync::policy
