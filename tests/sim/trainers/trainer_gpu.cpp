// The memory of a rank on a GPU: the process allocates it, and it outlives daemons and their workers. It is registered
// anew with many declarations, as the client does it with each; where a worker was lost, it has to be.

#include "device/memory/arena.hpp"
#include "sim/trainers/trainer.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::sim {

/// A daemon that is new knows of no buffer.
void Trainer::make_memory() {
  buffer_ = 0;
  on_gpu_->before.clear();
  if (memory_ != nullptr) {
    return;
  }
  const std::uint64_t bytes = arena_->job->arena_bytes(place_.rank);
  memory_ = std::make_shared<Mapping>(std::move(*device::create_arena(bytes)), bytes, true);
  on_gpu_->handle = world_.gpus().share(memory_, on_gpu_->gpu);
}

void Trainer::register_memory() {
  world_.daemon(place_.node).run([self = shared_from_this(), turn = ++turn_](engine::Engine& engine) {
    if (!self->alive_ || self->turn_ != turn) {
      return;
    }
    OnGpu& own = *self->on_gpu_;
    const std::uint64_t bytes = self->memory_->bytes();
    engine::ExportedBuffer exported{own.gpu, own.handle, 4'096, bytes, 0, bytes, ++own.generation};
    engine.register_buffer(
        self->session_,
        std::move(exported),
        [self, turn, session = self->session_](const Result<engine::RegisteredBuffer>& result) {
          World& world = self->world_;
          Daemon& daemon = world.daemon(self->place_.node);
          world.clock().after(
              world.random().between({}, kAnswer),
              [self, turn, session, result, life = daemon.life(), &daemon] {
                self->when_it_runs([self, turn, session, result, life, &daemon] {
                  if (self->turn_ == turn && self->session_ == session && daemon.life() == life) {
                    self->on_registered(result);
                  }
                });
              }
          );
        }
    );
  });
}

void Trainer::on_registered(const Result<engine::RegisteredBuffer>& result) {
  if (!result) {
    const Error& error = result.error();
    last_ = error.message;
    check_blame(error);
    const bool gone = error.code == ErrorCode::NotAttached || error.code == ErrorCode::Superseded;
    later(Milliseconds(20), Milliseconds(300), gone ? &Trainer::attach : &Trainer::declare);
    return;
  }
  if (buffer_ != 0) {
    on_gpu_->before.push_back(buffer_);
  }
  buffer_ = result->buffer;
  send_declaration();
}

/// Behind a declaration. What was registered for one that failed is not always used for the next.
void Trainer::release_others(bool failed) {
  if (!on_gpu_) {
    return;
  }
  if (failed && buffer_ != 0 && (world_.random().one_in(2) || last_.starts_with("buffer "))) {
    on_gpu_->before.push_back(std::exchange(buffer_, 0));
  }
  for (const std::uint64_t buffer : std::exchange(on_gpu_->before, {})) {
    world_.daemon(place_.node).run([session = session_, buffer](engine::Engine& engine) {
      static_cast<void>(engine.release(session, buffer));
    });
  }
}

/// What happened to a GPU is said of its node, on all nodes.
void Trainer::check_blame(const Error& error) const {
  const std::int64_t node = Gpus::node_in(error.message);
  if (node >= 0 && error.node != fmt::format("node{}", node) &&
      (!error.node.empty() || node != static_cast<std::int64_t>(place_.node))) {
    world_.breach(fmt::format("rank {} hears of node '{}': {}", place_.rank, error.node, error.message));
  }
}

}  // namespace gradsync::sim
