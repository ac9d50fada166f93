#pragma once
// A lane whose work is nobody's cost. It executes a small step where it is submitted, in the turn of the call that
// happened to be the last: the work is all ranks', and must not make its caller wait behind others. Thread: io only.

#include "device/lane.hpp"
#include "net/io_watch.hpp"

#include <utility>

namespace gradsync::app {

class ExcusedLane final : public device::Lane {
 public:
  /// Both outlive it.
  ExcusedLane(device::Lane& lane, net::IoWatch& watch) : lane_(lane), watch_(watch) {}

  void submit(device::LaneCommand command) override {
    const net::IoWatch::Excused excused{watch_};
    lane_.submit(std::move(command));
  }

 private:
  device::Lane& lane_;
  net::IoWatch& watch_;
};

}  // namespace gradsync::app
