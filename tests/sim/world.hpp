#pragma once
// One job over several daemons, its ranks and their links on a virtual clock, with faults of a seed. What must hold is
// checked as it happens.

#include "engine/metrics.hpp"
#include "engine/plan/planner.hpp"
#include "sim/clock.hpp"
#include "sim/collectives/nccl_network.hpp"
#include "sim/daemon.hpp"
#include "sim/data/data_network.hpp"
#include "sim/gpus.hpp"
#include "sim/network.hpp"
#include "sim/shared_plans.hpp"
#include "sim/trainers/gradients.hpp"
#include "sim/trainers/trainer.hpp"
#include "sim/trainers/truth.hpp"

#include <prometheus/registry.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::sim {

struct Options {
  std::uint64_t seed = 0;
  std::size_t daemons = 8;
  std::int64_t ranks_per_daemon = 2;
  bool arena = false;             ///< gradients travel; else they are reduced by their trainers, data path stats
  bool nccl = false;              ///< they travel by collectives of NCCL; else by connections of the daemons
  bool sites = false;             ///< likewise, and lie on GPUs, of which nodes have several
  bool texts = true;              ///< every message passes the codec
  bool says_all = false;          ///< each event, on the standard output
  bool shares_plans = false;      ///< equal plans are made once for all daemons
  std::string state_folder = {};  ///< what policies remember; empty: it is not kept
  std::size_t faults = 25;
  Duration between_faults = Milliseconds(4'000);  ///< at most
  Duration computing = Milliseconds(300);         ///< of a step, at most
  Duration ending = std::chrono::seconds(30);     ///< how long the job stands idle before its ranks leave
};

struct Outcome {
  std::uint64_t seed = 0;
  std::size_t daemons = 0;
  std::string breach = {};  ///< the first; empty: none
  std::map<std::string, std::uint64_t> faults = {};
  std::uint64_t trace_digest = 0;
  std::uint64_t events = 0;
  std::uint64_t done = 0;    ///< attempts
  std::uint64_t failed = 0;  ///< likewise
  std::uint64_t data_messages = 0;
  std::uint64_t data_bytes = 0;
  std::uint64_t communicators = 0;  ///< that were built
  std::uint64_t operations = 0;     ///< of them, that were summed
  double virtual_s = 0;
  double coordinator_s = 0;  ///< of the machine that ran this
};

class World {
 public:
  explicit World(Options options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] Outcome run();

  // for its parts
  [[nodiscard]] const Options& options() const { return options_; }

  [[nodiscard]] Clock& clock() { return clock_; }

  [[nodiscard]] Random& random() { return random_; }

  [[nodiscard]] Network& network() { return network_; }

  [[nodiscard]] DataNetwork& data() { return data_; }

  [[nodiscard]] NcclNetwork& nccl() { return nccl_; }

  [[nodiscard]] Gpus& gpus() { return gpus_; }

  /// Those of the job; null: data path stats.
  [[nodiscard]] const std::shared_ptr<const Gradients>& gradients() const { return gradients_; }

  [[nodiscard]] Daemon& daemon(std::size_t index) { return *daemons_[index]; }

  [[nodiscard]] Truth& truth() { return truth_; }

  [[nodiscard]] engine::EngineMetrics& metrics() { return metrics_; }

  [[nodiscard]] bool disturbed() const { return disturbed_; }

  [[nodiscard]] std::string state_folder(std::size_t daemon) const;

  [[nodiscard]] std::uint64_t new_epochs() { return 1 + 1'000 * ++jobs_made_; }  ///< no two jobs share one

  [[nodiscard]] std::int64_t new_process() { return 100 + ++processes_; }

  [[nodiscard]] engine::PlanOutcome plan(const engine::PlanRequest& request) {
    return options_.shares_plans ? plans_.plan(request) : engine::run_planner(request);
  }

  void breach(std::string what);

  void count(const std::string& fault) { ++faults_[fault]; }

  void trace(std::size_t node, std::string_view name, std::uint64_t word);
  void see_roster(const engine::PrepareEpoch& prepare);
  void see_names(const engine::PeerPrepare& prepare);
  void after_turn(std::size_t daemon);
  void daemon_died(std::size_t daemon);
  void on_unknown_outcome();  ///< a rank was told `step_in_doubt`: all go on from a checkpoint
  void pauses(bool more);
  [[nodiscard]] Duration paused() const;
  bool kill_daemon_of(std::size_t daemon, bool machine);  ///< it is back after three seconds at most

 private:
  using Fault = bool (World::*)();  ///< false: there was nothing to do it to
  using Faults = std::vector<std::pair<std::string, Fault>>;

  void begin_job();
  void restart_job(std::int64_t ranks_per_daemon);
  [[nodiscard]] Trainer& any_trainer();
  void replace(std::int64_t rank, Duration least, Duration most);
  void disturb();
  void go_on();
  void leave();
  [[nodiscard]] bool all_have(std::int64_t steps) const;
  [[nodiscard]] bool any_waits() const;

  // faults (faults.cpp)
  bool kill_daemon();
  bool kill_coordinator();
  bool kill_rank();
  bool kill_node();
  bool lose_machine();
  bool stop_daemon();
  bool stop_rank();
  bool pause_rank();
  bool delay_link();
  bool drop_message();
  bool partition_both();
  bool partition_one_way();
  void partition(bool up, bool down);
  bool half_open_link();
  bool late_join();
  bool duplicate_rank();
  bool other_world_size();
  bool restart_all();
  bool wrong_row();
  bool other_plan();
  bool slow_lane();
  bool lose_node(bool machine);

  // faults of data connections (data_faults.cpp)
  bool data_cut();
  bool data_cut_sending();
  bool data_delay();
  bool data_partition_both();
  bool data_partition_one_way();
  bool data_half_open();
  bool data_old_message();
  bool data_kill_sender();
  bool wrong_step();
  [[nodiscard]] std::pair<std::size_t, std::size_t> any_pair();

  // faults of collectives (nccl_faults.cpp)
  bool nccl_kill_worker();
  bool nccl_stop_worker();
  bool nccl_late_member();
  bool nccl_no_member();
  bool nccl_error();
  bool nccl_stall();
  bool nccl_hung_abort();
  bool nccl_partition();
  bool wrong_copy();
  bool not_finite();
  [[nodiscard]] SteppedWorker* any_worker();

  [[nodiscard]] std::size_t any_member() { return 1 + random_.below(options_.daemons - 1); }

  static const Faults kFaults;
  static const Faults kDataFaults;  ///< where gradients travel, besides
  static const Faults kNcclFaults;  ///< where they do so by NCCL, besides
  static const Faults kSiteFaults;  ///< and, on several GPUs of a node, besides those

  Options options_;
  Clock clock_;
  Random random_;
  prometheus::Registry registry_;
  engine::EngineMetrics metrics_{registry_};
  Truth truth_;
  SharedPlans plans_;
  Network network_;
  DataNetwork data_;
  NcclNetwork nccl_;
  Gpus gpus_;
  std::shared_ptr<const Gradients> gradients_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
  std::vector<std::shared_ptr<Trainer>> trainers_;  ///< by rank
  std::int64_t ranks_per_daemon_;
  std::int64_t restarts_ = 0;
  std::uint64_t jobs_made_ = 0;
  std::int64_t processes_ = 0;
  bool disturbed_ = false;
  bool restarting_ = false;
  bool leaving_ = false;
  std::int64_t pausing_ = 0;
  TimePoint paused_since_;
  Duration paused_{};
  std::map<std::string, std::uint64_t> faults_;
  std::string breach_;
  std::uint64_t digest_ = 0;
  std::uint64_t events_ = 0;
  SharedList<engine::RosterNode> seen_;          ///< the last one
  std::uint64_t seen_hash_ = 0;                  ///< of its names
  std::map<std::size_t, std::uint64_t> stored_;  ///< by daemon: the last word that its record had as done
};

}  // namespace gradsync::sim
