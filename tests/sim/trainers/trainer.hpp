#pragma once
// The process of a rank: what the client does, without its threads. It attaches, hands its memory over, declares, and
// takes steps; after an error it goes on as the error says, and after the end of its daemon as the record says. Its
// memory is a table of statistics, or an arena with gradients, by the data path of the world.

#include "engine/engine.hpp"
#include "sim/clock.hpp"
#include "sim/memory.hpp"
#include "sim/trainers/gradients.hpp"
#include "sim/trainers/truth.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::sim {

class World;

class Trainer : public std::enable_shared_from_this<Trainer> {
 public:
  struct Place {
    std::int64_t rank = 0;
    std::int64_t world = 1;
    std::int64_t ranks_here = 1;
    std::size_t node = 0;
    std::int64_t restart = 0;
  };

  Trainer(World& world, Place place);

  void begin() { attach(); }

  void die();
  void leave();
  void stop(Duration time);
  bool pause(Duration time);  ///< false: it cannot be now
  void end_pause();
  void on_connection_lost();

  [[nodiscard]] bool alive() const { return alive_; }

  [[nodiscard]] bool waits() const { return call_.has_value(); }

  [[nodiscard]] std::int64_t steps() const { return step_; }

  [[nodiscard]] double weight() const { return weight_; }

  [[nodiscard]] const Place& place() const { return place_; }

  [[nodiscard]] const std::optional<SeenRecord>& record() const { return record_; }

  [[nodiscard]] std::string state() const;

  /// Nobody has written to its gradients since its call failed, or its daemon ended.
  void check_at_rest() const;

  bool writes_wrong_row = false;
  bool writes_wrong_copy = false;  ///< until a step is done in which copies are compared
  bool writes_nan = false;         ///< until a step is done
  bool asks_wrong_step = false;
  bool declares_otherwise = false;
  bool stays = true;  ///< it takes further steps

 private:
  static constexpr Duration kAnswer = std::chrono::microseconds(200);  ///< the longest way from the daemon

  struct Call {
    std::uint64_t number = 0;
    engine::StepKey key;
    TimePoint since;
    Duration stood_still;
    Duration paused;
  };

  struct Doubt {
    engine::StepKey key;
    SeenRecord record;
  };

  /// Its gradients. Data path arena.
  struct Arena {
    std::shared_ptr<const Gradients> job;
    std::shared_ptr<const plan::ArenaLayout> layout = {};
    Gift gift = {};
    std::uint64_t filled = 0;                   ///< the attempt for which they were computed
    std::uint64_t written = 0;                  ///< hash of its memory since then
    std::optional<std::uint64_t> at_rest = {};  ///< hash of its memory since nobody may write there but this rank
    bool kept = false;                          ///< the record says that no daemon has touched them
  };

  struct Answer {
    std::optional<Told> told;
    engine::StepKey next;
    Error error;
    bool begun = false;
    bool compares_next = false;
  };

  /// What counts of the answer to a declaration. Its plan belongs to the daemon.
  struct Declared {
    std::optional<Error> error = {};
    engine::StepKey key = {};
    std::optional<engine::Verdict> verdict = {};
    std::optional<engine::RecordGrant> record = {};
    std::shared_ptr<const plan::ArenaLayout> layout = {};
    bool compares = false;
  };

  /// Its memory on a GPU, and the buffers that it was registered as.
  struct OnGpu {
    std::string gpu;
    std::string handle = {};
    std::uint64_t generation = 0;
    std::vector<std::uint64_t> before = {};  ///< buffers, to be released
  };

  void give_memory_back();
  void later(Duration least, Duration most, void (Trainer::*what)());
  void when_it_runs(std::function<void()> what);
  void attach();
  void take_memory(engine::Engine& engine);
  void make_memory();
  void declare();
  void register_memory();
  void on_registered(const Result<engine::RegisteredBuffer>& result);
  void release_others(bool failed);
  void check_blame(const Error& error) const;
  void send_declaration();
  void on_declared(const Declared& declared);
  void take_record(engine::Engine& engine, const engine::RecordGrant& grant);
  void take_verdict(std::optional<engine::Verdict> verdict);
  void go_on();
  void compute();
  void say_ready(engine::Engine& engine) const;
  void write_gradients(std::uint64_t word);
  void check_sums(std::uint64_t word, const Told& told) const;
  [[nodiscard]] std::uint64_t hash_of_memory() const;
  void rest();
  void finish();
  void write_rows(std::uint64_t word);
  [[nodiscard]] engine::Reply<engine::RankReport> answer_to(const Call& call);
  void on_answer(const Answer& answer);
  void on_failed(const Call& call, const Answer& answer);
  void apply(std::uint64_t word, const Told& told);
  void note_failure(std::uint64_t number, const engine::StepKey& key, const Error& error);
  void on_call_cut_off(const Call& call);
  void check_in_time(const Call& call);
  [[nodiscard]] plan::RankDeclaration declaration() const;

  World& world_;
  Place place_;
  std::int64_t pid_;
  bool alive_ = true;
  bool fresh_ = true;  ///< it has no weights yet
  std::uint64_t turn_ = 0;
  engine::SessionId session_ = 0;
  std::uint64_t seat_ = 0;  ///< the life of the daemon that has its memory
  engine::StepKey key_;
  std::shared_ptr<Mapping> memory_;
  std::uint64_t buffer_ = 0;
  std::optional<Arena> arena_;
  std::optional<OnGpu> on_gpu_;
  std::optional<SeenRecord> record_;
  std::optional<Doubt> doubt_;
  std::optional<engine::StepKey> last_done_;
  std::uint64_t declared_at_ = 0;  ///< the life of the daemon that took its declaration last
  std::optional<Call> call_;
  std::uint64_t calls_ = 0;
  bool compares_ = false;  ///< the daemon says so of the attempt that is next
  std::int64_t step_ = 0;
  double weight_ = 0;
  bool stopped_ = false;
  std::uint64_t stops_ = 0;
  std::vector<std::function<void()>> held_;
  bool paused_ = false;
  std::string last_;
};

}  // namespace gradsync::sim
