#include "sim/trainers/trainer.hpp"

#include "device/stats/stats_plan.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace gradsync::sim {

namespace {

constexpr std::uint32_t kUid = 1'000;
constexpr Milliseconds kStepTimeout{5'000};
constexpr Milliseconds kDeclareTimeout{60'000};
/// After its deadline a call waits at most until a coordinator that fell silent counts as lost, which takes five
/// seconds.
constexpr Milliseconds kGrace{6'500};
constexpr std::size_t kTensors = 2;

}  // namespace

Trainer::Trainer(World& world, Place place) : world_(world), place_(place), pid_(world.new_process()) {
  if (world.gradients() != nullptr) {
    arena_.emplace(Arena{world.gradients()});
  }
  if (std::string gpu = world.gpus().of(place.node, place.rank, place.ranks_here); !gpu.empty()) {
    on_gpu_.emplace(OnGpu{std::move(gpu)});
  }
}

void Trainer::die() {
  if (!std::exchange(alive_, false)) {
    return;
  }
  ++turn_;
  end_pause();
  world_.daemon(place_.node).run([session = session_](engine::Engine& engine) {
    if (session != 0) {
      engine.process_exited(session);
    }
  });
  call_.reset();
  give_memory_back();
}

void Trainer::leave() {
  if (!std::exchange(alive_, false)) {
    return;
  }
  ++turn_;
  give_memory_back();
  world_.daemon(place_.node).run([session = session_](engine::Engine& engine) {
    if (session != 0) {
      static_cast<void>(engine.detach(session));
    }
  });
}

/// The process has none any more, though events of it are yet to come.
void Trainer::give_memory_back() {
  memory_.reset();
  record_.reset();
  doubt_.reset();
}

void Trainer::stop(Duration time) {
  stopped_ = true;
  world_.clock().after(time, [self = shared_from_this(), stop = ++stops_] {
    if (self->stops_ == stop) {
      self->stopped_ = false;
      for (auto& what : std::exchange(self->held_, {})) {
        what();
      }
    }
  });
}

void Trainer::when_it_runs(std::function<void()> what) {
  if (!alive_) {
    return;
  }
  if (stopped_) {
    held_.push_back([self = shared_from_this(), what = std::move(what)] { self->when_it_runs(what); });
  } else {
    what();
  }
}

bool Trainer::pause(Duration time) {
  if (!alive_ || paused_ || session_ == 0) {
    return false;
  }
  paused_ = true;
  world_.pauses(true);
  world_.daemon(place_.node).run([session = session_](engine::Engine& engine) {
    static_cast<void>(engine.pause(session, true));
  });
  world_.clock().after(time, [self = shared_from_this()] { self->end_pause(); });
  return true;
}

void Trainer::end_pause() {
  if (!std::exchange(paused_, false)) {
    return;
  }
  world_.pauses(false);
  world_.daemon(place_.node).run([session = session_](engine::Engine& engine) {
    static_cast<void>(engine.pause(session, false));
  });
}

/// Unless something else comes first.
void Trainer::later(Duration least, Duration most, void (Trainer::*what)()) {
  world_.clock().after(world_.random().between(least, most), [self = shared_from_this(), turn = ++turn_, what] {
    self->when_it_runs([self, turn, what] {
      if (self->turn_ == turn) {
        (*self.*what)();
      }
    });
  });
}

void Trainer::attach() {
  Daemon& daemon = world_.daemon(place_.node);
  if (!daemon.up()) {
    later(Milliseconds(20), Milliseconds(500), &Trainer::attach);
    return;
  }
  daemon.run([self = shared_from_this(), turn = ++turn_](engine::Engine& engine) {
    if (!self->alive_ || self->turn_ != turn) {
      return;
    }
    const Place& place = self->place_;
    engine::AttachRequest request;
    request.job = "job";
    request.uid = kUid;
    request.pid = self->pid_;
    request.client_id = fmt::format("client {}", self->pid_);
    request.rank = place.rank;
    request.world_size = place.world;
    request.local_world_size = place.ranks_here;
    request.restart_count = place.restart;
    request.coordinator = "coordinator";
    request.meshes =
        self->arena_ ? self->arena_->job->meshes() : std::vector<plan::Mesh>{{"default", {{"dp", place.world}}, {}}};
    const Result<engine::AttachResult> attached = engine.attach(request);
    if (!attached) {
      self->last_ = attached.error().message;
      self->later(Milliseconds(50), Milliseconds(500), &Trainer::attach);
      return;
    }
    self->session_ = attached->session;
    self->key_ = {attached->epoch, attached->attempt};
    self->take_memory(engine);
    self->later({}, Milliseconds(5), &Trainer::declare);
  });
}

/// A daemon that is new gets the memory that the one before it gave out.
void Trainer::take_memory(engine::Engine& engine) {
  const std::uint64_t bytes = arena_ ? arena_->job->arena_bytes(place_.rank) : kTensors * sizeof(device::StatsRow);
  const std::uint64_t seat = world_.daemon(place_.node).life();
  if (memory_ != nullptr && seat_ == seat) {
    return;
  }
  if (on_gpu_) {
    make_memory();
    seat_ = seat;
    return;
  }
  const Result<engine::BufferGrant> grant =
      memory_ ? engine.adopt(session_, memory_->bytes()) : engine.allocate(session_, bytes);
  if (!grant) {
    world_.breach("no memory for a rank: " + grant.error().message);
    return;
  }
  Result<engine::TakenFd> taken =
      engine.exchange_fd(grant->token, kUid, pid_, memory_ ? memory_->descriptor() : UniqueFd{});
  if (!taken) {
    world_.breach("no memory for a rank: " + taken.error().message);
    return;
  }
  if (memory_ == nullptr) {
    memory_ = std::make_shared<Mapping>(std::move(taken->fd), grant->size_bytes, true);
  }
  buffer_ = grant->buffer;
  seat_ = seat;
}

plan::RankDeclaration Trainer::declaration() const {
  plan::RankDeclaration all = arena_ ? arena_->job->declaration(place_.rank) : plan::RankDeclaration();
  plan::ClipOptions clip;
  clip.max_norm = 100;
  clip.policy = plan::PercentilePolicy{90, 20, 3};
  clip.nonfinite = on_gpu_ ? plan::NonfiniteAction::Skip : clip.nonfinite;
  all.options.clip = {{"all", clip}};
  if (arena_) {
    if (declares_otherwise) {
      all.options.norm_type = 1.0;
    }
    return all;
  }
  all.options.data_path = plan::DataPath::Stats;
  plan::TensorDeclaration sharded;
  sharded.name = "sharded";
  sharded.shape = {2 * place_.world};
  sharded.local_shape = {2};
  sharded.mesh = "default";
  sharded.placements = {{{"dp"}, plan::Shard{0}}};
  plan::TensorDeclaration replicated = sharded;
  replicated.name = declares_otherwise ? "misnamed" : "replicated";
  replicated.shape = replicated.local_shape = {2};
  replicated.placements = {{{"dp"}, plan::Replicate{}}};
  all.tensors = std::vector<plan::TensorDeclaration>{sharded, replicated};
  return all;
}

void Trainer::declare() {
  if (on_gpu_ && (buffer_ == 0 || world_.random().one_in(2))) {
    register_memory();
  } else {
    send_declaration();
  }
}

void Trainer::send_declaration() {
  world_.daemon(place_.node).run([self = shared_from_this(), turn = ++turn_](engine::Engine& engine) {
    if (!self->alive_ || self->turn_ != turn) {
      return;
    }
    engine::DeclareRequest request;
    request.declaration = self->declaration();
    self->declares_otherwise = false;
    request.buffer = self->buffer_;
    request.timeout = kDeclareTimeout;
    if (self->declared_at_ != 0 && self->declared_at_ != self->seat_) {
      request.comes_back = true;
      request.last_done = self->last_done_;
      request.doubt = self->doubt_ ? std::optional(self->doubt_->key) : std::nullopt;
    }
    const engine::SessionId session = self->session_;
    engine.declare(session, std::move(request), [self, turn, session](const Result<engine::DeclareResult>& result) {
      World& world = self->world_;
      Daemon& daemon = world.daemon(self->place_.node);
      Declared declared;
      if (result) {
        declared = {{}, {result->epoch, result->attempt}, result->verdict, result->record};
        declared.compares = result->check;
        if (self->arena_) {
          declared.layout = std::make_shared<const plan::ArenaLayout>(result->plan->layout(self->place_.rank));
        }
      } else {
        declared.error = result.error();
      }
      world.clock().after(
          world.random().between({}, kAnswer),
          [self, turn, session, declared, life = daemon.life(), &daemon] {
            self->when_it_runs([self, turn, session, declared, life, &daemon] {
              if (self->turn_ == turn && self->session_ == session && daemon.life() == life) {
                self->on_declared(declared);
              }
            });
          }
      );
    });
  });
}

void Trainer::on_declared(const Declared& declared) {
  if (declared.error) {
    const Error& error = *declared.error;
    last_ = error.message;
    check_blame(error);
    release_others(true);
    if (error.code == ErrorCode::StepInDoubt) {
      doubt_.reset();
      world_.on_unknown_outcome();
      return;
    }
    const bool gone = error.code == ErrorCode::NotAttached || error.code == ErrorCode::Superseded;
    later(Milliseconds(20), Milliseconds(300), gone ? &Trainer::attach : &Trainer::declare);
    return;
  }
  release_others(false);
  key_ = declared.key;
  compares_ = declared.compares;
  take_verdict(declared.verdict);
  if (arena_) {
    arena_->layout = declared.layout;
  }
  if (!declared.record) {
    world_.breach("a declaration was answered without a record");
    return;
  }
  world_.daemon(place_.node)
      .run([self = shared_from_this(), turn = ++turn_, grant = *declared.record](engine::Engine& engine) {
        if (self->alive_ && self->turn_ == turn) {
          self->take_record(engine, grant);
        }
      });
}

void Trainer::take_record(engine::Engine& engine, const engine::RecordGrant& grant) {
  Result<engine::TakenFd> taken = engine.exchange_fd(grant.token, kUid, pid_, UniqueFd{});
  if (!taken) {
    later(Milliseconds(5), Milliseconds(50), &Trainer::declare);  // the epoch has ended meanwhile
    return;
  }
  record_.emplace(std::make_shared<const Mapping>(std::move(taken->fd), grant.size_bytes, false));
  declared_at_ = seat_;
  if (std::exchange(fresh_, false)) {
    step_ = world_.truth().steps();
    weight_ = world_.truth().weight();
  }
  go_on();
}

void Trainer::go_on() {
  if (stays) {
    later(Milliseconds(1), world_.options().computing, arena_ ? &Trainer::compute : &Trainer::finish);
  }
}

void Trainer::finish() {
  if ((call_ || paused_) && arena_) {  // what it has computed stays
    later(Milliseconds(1), world_.options().computing, &Trainer::finish);
    return;
  }
  if (call_ || paused_) {
    go_on();
    return;
  }
  Call call;
  call.number = ++calls_;
  call.key = key_;
  const std::uint64_t word = engine::attempt_word(key_);
  const bool wrong_step = std::exchange(asks_wrong_step, false);
  if (arena_) {
    world_.truth().gives(word, place_.rank, step_ + (wrong_step ? 1 : 0), arena_->gift);
  } else {
    write_rows(word);
  }
  call_ = call;
  world_.daemon(place_.node).run([self = shared_from_this(), number = call.number, wrong_step](engine::Engine& engine) {
    if (!self->alive_ || !self->call_ || self->call_->number != number) {
      return;
    }
    Call& own = *self->call_;
    own.since = self->world_.clock().now();
    own.stood_still = self->world_.daemon(self->place_.node).stood_still();
    own.paused = self->world_.paused();
    self->check_in_time(own);
    engine::FinishRequest request;
    request.key = own.key;
    request.step = self->step_ + (wrong_step ? 1 : 0);
    request.ready_all = true;
    if (self->arena_) {
      request.unused = self->arena_->job->rows_unused(self->place_.rank, self->arena_->gift);
    }
    request.timeout = kStepTimeout;
    engine.finish(self->session_, std::move(request), self->answer_to(own));
  });
}

void Trainer::write_rows(std::uint64_t word) {
  device::StatsRow row;
  row.stamp = word;
  row.maximum = static_cast<double>(1 + (place_.rank * 31 + step_ * 7) % 100);
  row.power_sum = 2 * row.maximum * row.maximum;
  world_.truth().asked(word, place_.rank, step_, row.maximum);
  if (std::exchange(writes_wrong_row, false)) {
    row.maximum = -2;
  }
  auto* const rows = reinterpret_cast<device::StatsRow*>(memory_->data());
  rows[0] = row;
  row.power_sum = 2;
  row.maximum = 1;
  rows[1] = row;
}

engine::Reply<engine::RankReport> Trainer::answer_to(const Call& call) {
  return [self = shared_from_this(), number = call.number, key = call.key](const Result<engine::RankReport>& result) {
    World& world = self->world_;
    Daemon& daemon = world.daemon(self->place_.node);
    Answer answer;
    answer.begun = daemon.begun(key.epoch);
    if (result) {
      answer.told = told_by(*result->report);
      answer.compares_next = result->report->check_next;
      answer.next = {result->report->epoch, result->report->next_attempt};
      world.truth().done(
          engine::attempt_word({answer.told->epoch, answer.told->attempt}), self->place_.rank, *answer.told
      );
    } else {
      answer.error = result.error();
      self->note_failure(number, key, answer.error);
    }
    world.clock().after(world.random().between({}, kAnswer), [self, number, answer, life = daemon.life(), &daemon] {
      self->when_it_runs([self, number, answer, life, &daemon] {
        if (self->call_ && self->call_->number == number && daemon.life() == life) {
          self->on_answer(answer);
        }
      });
    });
  };
}

/// From now on nobody writes to its gradients, unless the lane hangs, or the attempt is yet to come.
void Trainer::note_failure(std::uint64_t number, const engine::StepKey& key, const Error& error) {
  const bool same =
      error.epoch && engine::attempt_word({*error.epoch, error.attempt.value_or(0)}) == engine::attempt_word(key);
  if (call_ && call_->number == number && !same && error.message.find("may still change") == std::string::npos) {
    rest();
  }
}

void Trainer::on_answer(const Answer& answer) {
  const Call call = *std::exchange(call_, std::nullopt);
  if (answer.told) {
    apply(engine::attempt_word(call.key), *answer.told);
    key_ = answer.next;
    compares_ = answer.compares_next;
    go_on();
    return;
  }
  on_failed(call, answer);
}

void Trainer::on_failed(const Call& call, const Answer& answer) {
  const Error& error = answer.error;
  const std::uint64_t word = engine::attempt_word(call.key);
  last_ = error.message;
  compares_ = false;
  check_blame(error);
  if (error.code == ErrorCode::StepInDoubt) {
    world_.on_unknown_outcome();
    return;
  }
  const bool nothing_asked = error.code == ErrorCode::StaleAttempt || error.code == ErrorCode::StaleEpoch ||
                             error.code == ErrorCode::NotDeclared || error.code == ErrorCode::NotAttached ||
                             (error.epoch && engine::attempt_word({*error.epoch, error.attempt.value_or(0)}) == word);
  if (!nothing_asked && answer.begun) {
    world_.truth().failed(word, place_.rank, error.message);
  }
  if (error.epoch) {
    key_ = {*error.epoch, error.attempt.value_or(0)};
  }
  if (error.code == ErrorCode::NotAttached || error.code == ErrorCode::Superseded) {
    later(Milliseconds(20), Milliseconds(200), &Trainer::attach);
  } else if (error.code == ErrorCode::NotDeclared || error.hint.find("declare") != std::string::npos) {
    later(Milliseconds(1), Milliseconds(50), &Trainer::declare);
  } else {
    go_on();
  }
}

void Trainer::check_in_time(const Call& call) {
  const TimePoint due = call.since + kStepTimeout + kGrace;
  world_.clock().at(due, [self = shared_from_this(), call, due] {
    if (!self->alive_ || self->stopped_ || !self->call_ || self->call_->number != call.number) {
      return;
    }
    World& world = self->world_;
    const Duration more =
        world.daemon(self->place_.node).stood_still() - call.stood_still + world.paused() - call.paused;
    if (call.since + kStepTimeout + kGrace + more > world.clock().now()) {
      Call again = call;
      again.since += more;
      again.stood_still = world.daemon(self->place_.node).stood_still();
      again.paused = world.paused();
      self->check_in_time(again);
      return;
    }
    world.breach(fmt::format(
        "rank {} waits for attempt {} of epoch {} since {:.1f} s",
        self->place_.rank,
        call.key.attempt,
        call.key.epoch,
        seconds(world.clock().now() - call.since)
    ));
  });
}

std::string Trainer::state() const {
  return fmt::format(
      "rank {}{}{}{}{}: {} steps, at ({}, {}), heard '{}'",
      place_.rank,
      alive_ ? "" : " gone",
      call_ ? " waits" : "",
      doubt_ ? " doubts" : "",
      stopped_ ? " stopped" : "",
      step_,
      key_.epoch,
      key_.attempt,
      last_
  );
}

}  // namespace gradsync::sim
