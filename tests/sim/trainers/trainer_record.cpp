// What the record of a job says to a rank whose daemon has ended.

#include "sim/trainers/trainer.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::sim {

void Trainer::take_verdict(std::optional<engine::Verdict> verdict) {
  if (!doubt_) {
    return;
  }
  const Doubt doubt = *std::exchange(doubt_, std::nullopt);
  const std::uint64_t word = engine::attempt_word(doubt.key);
  if (!verdict) {
    world_.breach(fmt::format("rank {} is in doubt, and heard nothing of it", place_.rank));
  } else if (*verdict != engine::Verdict::Done) {
    world_.truth().failed(word, place_.rank, "a ruling");
  } else if (const std::optional<Told> told = doubt.record.told(place_.rank)) {
    apply(word, *told);
  } else {
    world_.breach(fmt::format("the record does not have the result of rank {}", place_.rank));
  }
}

void Trainer::apply(std::uint64_t word, const Told& told) {
  check_sums(word, told);
  if (arena_) {  // what was found, or could have been
    writes_nan = false;
    writes_wrong_copy = writes_wrong_copy && !arena_->gift.compared;
  }
  weight_ = weight_after(weight_, step_, told);
  ++step_;
  last_done_ = engine::StepKey{word >> 32, (word & 0xFFFFFFFFu) - 1};
  world_.truth().weighs(place_.rank, step_, weight_);
}

/// The daemon has ended: the record says what came of the attempt that was under way.
void Trainer::on_connection_lost() {
  if (!alive_) {
    return;
  }
  when_it_runs([self = shared_from_this()] {
    self->session_ = 0;
    if (std::exchange(self->paused_, false)) {
      self->world_.pauses(false);
    }
    self->rest();
    if (const std::optional<Call> call = std::exchange(self->call_, std::nullopt)) {
      self->on_call_cut_off(*call);
    }
    self->later(Milliseconds(5), Milliseconds(300), &Trainer::attach);
  });
}

void Trainer::on_call_cut_off(const Call& call) {
  const std::uint64_t word = engine::attempt_word(call.key);
  const SeenRecord record = *record_;
  if (record.done() == word) {
    if (const std::optional<Told> told = record.told(place_.rank)) {
      world_.truth().done(word, place_.rank, *told);
      apply(word, *told);
    } else {
      world_.breach(fmt::format("the record does not have the result of rank {}", place_.rank));
    }
  } else if (record.voted() == word) {
    doubt_ = Doubt{call.key, record};
  } else if (arena_ && record.begun() >= word) {
    world_.truth().failed(word, place_.rank, "its daemon ended while it reduced the gradients");
  } else if (arena_) {
    arena_->kept = true;
    if (hash_of_memory() != arena_->written) {
      world_.breach(fmt::format("the record says that the gradients of rank {} are as they were", place_.rank));
    }
  }
}

}  // namespace gradsync::sim
