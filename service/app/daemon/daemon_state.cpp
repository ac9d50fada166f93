#include "app/daemon/daemon_state.hpp"

#include "base/text/hash.hpp"
#include "base/version.hpp"

#include <unistd.h>

#include <fstream>

namespace gradsync::app {

DaemonState make_daemon_state(std::string socket_path) {
  DaemonState state;
  state.incarnation = random_hex(8);
  std::ifstream{"/proc/sys/kernel/random/boot_id"} >> state.boot_id;
  state.socket_path = std::move(socket_path);
  state.started_at = std::chrono::steady_clock::now();
  return state;
}

rpc::ServerIdentity identity_of(const DaemonState& state) {
  rpc::ServerIdentity identity;
  identity.version = kVersion;
  identity.incarnation = state.incarnation;
  identity.boot_id = state.boot_id;
  identity.pid = ::getpid();
  identity.own_uid = ::geteuid();
  identity.moment = [&state] {
    const TimePoint now = std::chrono::steady_clock::now();
    return rpc::ServerMoment{now, seconds(now - state.started_at), state.draining};
  };
  return identity;
}

}  // namespace gradsync::app
