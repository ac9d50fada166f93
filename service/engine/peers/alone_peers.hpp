#pragma once
// The port of a job whose ranks are all on this node: every event is answered at once, and nothing is kept of it. The
// number of the epoch and the declarations are the job's own, so that `PrepareEpoch` comes without them.

#include "engine/peers/peers.hpp"

namespace gradsync::engine {

class AlonePeers final : public Peers {
 public:
  [[nodiscard]] PeerEvents tell(LocalEvent event) override;

  [[nodiscard]] bool vote(const Voted&) override { return true; }

  [[nodiscard]] bool alone() const override { return true; }

  [[nodiscard]] std::string waits_for() const override { return {}; }
};

}  // namespace gradsync::engine
