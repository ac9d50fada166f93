#pragma once
// The daemon's knowledge about itself, shared by the pages, rpc and the metrics. Thread: io only; only the flags
// change.

#include "base/clock.hpp"
#include "rpc/dispatcher.hpp"

#include <chrono>
#include <string>

namespace gradsync::app {

struct DaemonState {
  std::string incarnation;
  std::string boot_id;
  std::string socket_path;
  TimePoint started_at{};
  bool serving = false;  ///< listeners are up
  bool draining = false;

  [[nodiscard]] const char* text() const { return draining ? "draining" : "serving"; }
};

/// A new incarnation of this process.
[[nodiscard]] DaemonState make_daemon_state(std::string socket_path);

/// Returns the state in the form that rpc needs; `state` must outlive it.
[[nodiscard]] rpc::ServerIdentity identity_of(const DaemonState& state);

}  // namespace gradsync::app
