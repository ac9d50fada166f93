#pragma once
// The wire over sockets with a pace of its own, for tests that have less time. Internal to device/wire.

#include "device/wire/wire.hpp"

#include <chrono>

namespace gradsync::device {

/// As `make_socket_wire`. `between_looks`: how often a connection is looked at (wire_watch.hpp).
[[nodiscard]] std::unique_ptr<Wire> make_watchful_wire(
    std::vector<NodeConnection> connections, std::function<void()> wake, std::chrono::milliseconds between_looks
);

}  // namespace gradsync::device
