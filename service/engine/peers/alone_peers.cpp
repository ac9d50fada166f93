#include "engine/peers/alone_peers.hpp"

#include <span>
#include <utility>

namespace gradsync::engine {

namespace {

/// One answer for each event that a job of one node tells, and none for what only other nodes would ask.
struct AnswerAlone {
  PeerEvents operator()(const LocalsChanged& changed) const {
    PeerEvents events;
    if (const std::uint64_t doubt = changed.words.doubt; doubt != 0) {
      const std::optional<Verdict> verdict = verdict_of(doubt, std::span(&changed.words, 1), true);
      events.emplace_back(VerdictReached{doubt, *verdict});
    }
    if (changed.declared) {
      PrepareEpoch& prepare = std::get<PrepareEpoch>(events.emplace_back(PrepareEpoch{}));
      prepare.node_of_rank.assign(changed.ranks.size(), 0);
    }
    return events;
  }

  PeerEvents operator()(LocalsLeft& left) const { return one(EpochEnded{std::move(left.error)}); }

  PeerEvents operator()(const LocalsReady& ready) const { return one(ConnectEpoch{ready.epoch}); }

  PeerEvents operator()(const LocalsConnected& connected) const { return one(BeginEpoch{connected.epoch}); }

  PeerEvents operator()(LocalsFailed& failed) const {
    return one(AttemptRefused{failed.word, std::move(failed.error)});
  }

  template <typename Event>
  PeerEvents operator()(const Event&) const {
    return {};
  }

 private:
  [[nodiscard]] static PeerEvents one(PeerEvent event) {
    PeerEvents events;
    events.push_back(std::move(event));
    return events;
  }
};

}  // namespace

PeerEvents AlonePeers::tell(LocalEvent event) { return std::visit(AnswerAlone{}, event); }

}  // namespace gradsync::engine
