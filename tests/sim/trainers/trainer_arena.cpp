// The gradients of a rank on data path arena: computed for an attempt, reduced in place, and checked to the bit.

#include "sim/trainers/trainer.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <utility>

namespace gradsync::sim {

std::uint64_t Trainer::hash_of_memory() const { return XXH3_64bits(memory_->data(), memory_->bytes()); }

/// Backward: buckets that are ready travel before the rank asks for the end of its step.
void Trainer::compute() {
  if (call_ || paused_) {
    go_on();
    return;
  }
  const std::uint64_t word = engine::attempt_word(key_);
  if (arena_->filled != word) {
    write_gradients(word);
    world_.daemon(place_.node).run([self = shared_from_this(), word](engine::Engine& engine) {
      if (self->alive_ && self->session_ != 0 && engine::attempt_word(self->key_) == word) {
        self->say_ready(engine);
      }
    });
  }
  later({}, Milliseconds(80), &Trainer::finish);
}

void Trainer::say_ready(engine::Engine& engine) const {
  const Arena& arena = *arena_;
  if (world_.random().one_in(2)) {
    engine.tensor_unused(session_, {key_, arena.job->rows_unused(place_.rank, arena.gift)});
    for (std::uint32_t bucket = 0; bucket < arena.layout->bucket_rows.size(); ++bucket) {
      if (!arena.layout->bucket_rows[bucket].empty() && world_.random().one_in(2)) {
        engine.bucket_ready(session_, {key_, bucket});
      }
    }
  }
}

/// A call that is made again, because no daemon has touched its gradients, has those of before.
void Trainer::write_gradients(std::uint64_t word) {
  Arena& arena = *arena_;
  check_at_rest();
  arena.at_rest.reset();
  arena.filled = word;
  if (std::exchange(arena.kept, false)) {
    return;
  }
  arena.gift.values = world_.random().next() >> 16;
  arena.gift.unused = 0;
  for (std::uint32_t bit = 1; bit <= arena.job->all_unused(); bit <<= 1) {
    arena.gift.unused |= world_.random().one_in(4) ? bit : 0;
  }
  arena.gift.nan = writes_nan;
  arena.gift.unused &= arena.job->all_unused() - (arena.gift.nan ? 1 : 0);
  arena.gift.copies = word * 7 + place_.node + (writes_wrong_copy ? 1 : 0);
  arena.gift.compared = compares_;
  arena.job->write(place_.rank, arena.gift, *arena.layout, memory_->data());
  arena.written = hash_of_memory();
}

void Trainer::rest() {
  if (arena_ && memory_ != nullptr) {
    arena_->at_rest = hash_of_memory();
    arena_->filled = 0;
  }
}

void Trainer::check_at_rest() const {
  if (arena_ && memory_ != nullptr && arena_->at_rest && *arena_->at_rest != hash_of_memory()) {
    world_.breach(fmt::format("the gradients of rank {} are written after its attempt was over", place_.rank));
  }
}

void Trainer::check_sums(std::uint64_t word, const Told& told) const {
  const Gradients::Sums* const sums = arena_ ? world_.truth().sums_of(word) : nullptr;
  if (sums == nullptr) {
    return;
  }
  const auto multiplier = told.skipped ? 1.0F : static_cast<float>(std::bit_cast<double>(told.coefficient));
  const std::string difference =
      arena_->job->difference(place_.rank, *sums, multiplier, *arena_->layout, memory_->data());
  if (!difference.empty()) {
    world_.breach(
        fmt::format("after attempt {} of epoch {} rank {} has {}", told.attempt, told.epoch, place_.rank, difference)
    );
  }
}

}  // namespace gradsync::sim
