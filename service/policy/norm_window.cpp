#include "policy/norm_window.hpp"

#include "base/assert.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradsync::policy {

NormWindow::NormWindow(std::size_t capacity) : capacity_(capacity) {
  GRADSYNC_ASSERT(capacity > 0, "a window of nothing has no percentile");
  ring_.reserve(capacity);
  sorted_.reserve(capacity);
}

void NormWindow::push(double norm) {
  if (ring_.size() < capacity_) {
    ring_.push_back(norm);
    sort_in(norm);
    return;
  }
  replace(ring_[oldest_], norm);
  ring_[oldest_] = norm;
  oldest_ = (oldest_ + 1) % capacity_;
}

void NormWindow::sort_in(double norm) {
  if (!std::isnan(norm)) {
    sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), norm), norm);
  }
}

void NormWindow::replace(double oldest, double norm) {
  if (std::isnan(oldest)) {
    sort_in(norm);
    return;
  }
  const auto leaving = std::lower_bound(sorted_.begin(), sorted_.end(), oldest);
  if (std::isnan(norm)) {
    sorted_.erase(leaving);
    return;
  }
  const auto place = std::upper_bound(sorted_.begin(), sorted_.end(), norm);
  if (place <= leaving) {  // the norms between make room
    std::move_backward(place, leaving, leaving + 1);
    *place = norm;
  } else {
    std::move(leaving + 1, place, leaving);
    *(place - 1) = norm;
  }
}

double NormWindow::percentile(double percentile) const {
  GRADSYNC_ASSERT(!ring_.empty() && percentile > 0 && percentile <= 100, "checked where it was declared");
  if (sorted_.size() < ring_.size()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double last = static_cast<double>(sorted_.size() - 1);
  const double place = last * (percentile / 100);
  if (place >= last) {
    return sorted_.back();
  }
  const double below = std::floor(place);
  const double share = place - below;
  const auto index = static_cast<std::size_t>(below);
  const double low = sorted_[index];
  const double high = sorted_[index + 1];
  const double distance = high - low;
  return share >= 0.5 ? high - distance * (1 - share) : low + distance * share;
}

void NormWindow::append_to(std::vector<double>& norms) const {
  const auto oldest = ring_.begin() + static_cast<std::ptrdiff_t>(oldest_);
  norms.insert(norms.end(), oldest, ring_.end());
  norms.insert(norms.end(), ring_.begin(), oldest);
}

}  // namespace gradsync::policy
