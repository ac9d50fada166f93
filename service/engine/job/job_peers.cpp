// What follows from what other nodes of the job do.

#include "base/assert.hpp"
#include "engine/job/job.hpp"

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
  }
}

}  // namespace gradsync::engine
