// What follows from what other nodes of the job do.

#include "base/assert.hpp"
#include "engine/job/job.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

namespace gradsync::engine {

void Job::perform(PeerEvents events) {
  for (PeerEvent& event : events) {
    std::visit(
        [this](auto& value) {
          if constexpr (requires { perform(value); }) {
            perform(value);
          } else {
            GRADSYNC_ASSERT(!peers_->alone(), "a node that is alone is asked nothing by others");
          }
        },
        event
    );
  }
}

void Job::perform(PrepareEpoch& event) { perform(epochs_.on_prepare(event.epoch)); }

void Job::perform(ConnectEpoch& event) { perform(peers_->tell(LocalsConnected{event.epoch})); }

void Job::perform(BeginEpoch&) { perform(epochs_.on_begin()); }

void Job::perform(EpochEnded& event) { perform(epochs_.on_ended(context_.now, event.error)); }

void Job::perform(EpochRefused& event) { perform(epochs_.on_refused(context_.now, event.error)); }

void Job::perform(AttemptRefused& event) {
  if (machine_ && event.word == attempt_word({epochs_.epoch(), machine_->attempt()})) {
    run(machine_->fail(std::move(event.error)));
  }
}

void Job::perform(VerdictReached& event) {
  if (machine_ && machine_->voting() && event.word == attempt_word({epochs_.epoch(), machine_->attempt()})) {
    run(machine_->on_verdict(std::move(event.error)));
    return;
  }
  const VerdictReached& ruling = ruling_.emplace(std::move(event));
  for (auto& [number, rank] : ranks_) {
    apply_ruling(rank);
  }
  if (ruling.verdict == Verdict::Unknown) {
    perform(epochs_.on_refused(context_.now, *ruling.error));
  }
}

RecordWords Job::words_of_ranks() const {
  RecordWords words;
  for (const auto& [number, rank] : ranks_) {
    words.known = words.known || rank.comes_back;
    if (rank.last_done) {
      words.done = std::max(words.done, attempt_word(*rank.last_done));
    }
    if (rank.doubt && ruling_on(rank.doubt) == nullptr) {
      words.doubt = std::max(words.doubt, attempt_word(*rank.doubt));
    }
  }
  return words;
}

void Job::apply_ruling(Rank& rank) const {
  if (const VerdictReached* ruling = ruling_on(rank.doubt); ruling != nullptr && ruling->verdict == Verdict::Done) {
    rank.last_done = rank.doubt;
  }
}

const VerdictReached* Job::ruling_on(const std::optional<StepKey>& doubt) const {
  return doubt && ruling_ && ruling_->word == attempt_word(*doubt) ? &*ruling_ : nullptr;
}

}  // namespace gradsync::engine
