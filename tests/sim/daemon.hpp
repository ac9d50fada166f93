#pragma once
// A daemon without sockets and threads: the engine, its planner and lane, and the ports of its jobs, driven by the
// events of the world.

#include "app/peer/data_links.hpp"
#include "app/peer/peer_port.hpp"
#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "sim/clock.hpp"
#include "sim/collectives/stepped_worker.hpp"
#include "sim/data/stepped_lane.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::sim {

class World;

using engine::JobNumber;
using engine::LinkNumber;

class Daemon final : public app::PeerPort::Owner, public app::DataDialling, public SteppedWire::Host {
 public:
  Daemon(World& world, std::size_t index);
  ~Daemon() override;
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  void start();
  void kill(bool machine);
  void stop(Duration time);
  void hold_lane(Duration time);

  [[nodiscard]] bool up() const { return engine_ != nullptr; }

  /// Rises with every start and end.
  [[nodiscard]] std::uint64_t life() const { return life_; }

  /// How long it stood still since the world began.
  [[nodiscard]] Duration stood_still() const;

  /// Now, or when it goes on. Never where it is down or ends before.
  void run(std::function<void(engine::Engine&)> what);

  /// Whether the epoch has begun on this node.
  [[nodiscard]] bool begun(std::uint64_t epoch) const;

  /// The newest epoch that was prepared, or has begun, in its life.
  [[nodiscard]] std::uint64_t prepared() const { return prepared_; }

  [[nodiscard]] std::uint64_t last_begun() const { return last_begun_; }

  [[nodiscard]] TimePoint lane_until() const { return lane_until_; }

  /// One that has NCCL; null: none works.
  [[nodiscard]] SteppedWorker* worker() const { return workers_ ? workers_->any() : nullptr; }

  [[nodiscard]] std::string incarnation() const;

  /// The job that coordinates here.
  [[nodiscard]] std::optional<JobNumber> coordinating() const;

  // the network
  void on_connected(JobNumber job, LinkNumber link);
  void on_not_connected(JobNumber job, std::uint64_t life, const std::string& why);
  void on_accepted(JobNumber job, LinkNumber link, std::size_t member);
  void on_message(JobNumber job, LinkNumber link, engine::ToCoordinator message);
  void on_message(JobNumber job, LinkNumber link, engine::ToMember message);
  void on_link_ended(JobNumber job, LinkNumber link, const std::string& why);

  // the network of data connections
  void on_data_arrived(std::uint64_t dial, std::size_t from, const net::DataLinkHello& hello, UniqueFd socket);
  void on_data_connected(std::uint64_t dial, UniqueFd socket);
  void on_data_failed(std::uint64_t dial, const std::string& why);
  void on_data_moved();  ///< there is something to read

  // PeerPort::Owner
  void on_told(JobNumber job) override { told_.push_back(job); }

  void on_gone(JobNumber job) override;

  /// What must not be left when all ranks have gone; empty: nothing is.
  [[nodiscard]] std::string left_over() const;

  /// What its coordinator took for its messages, on the machine that runs this.
  [[nodiscard]] Duration coordinator_time() const { return coordinator_time_; }

 private:
  friend class SeenPort;

  struct Seat {
    app::PeerPort* port = nullptr;
    LinkNumber link = 0;  ///< of a member
    bool replaced = false;
    std::uint64_t begun = 0;
    std::optional<TimePoint> armed = {};
  };

  using PortCall = std::function<engine::PeerEvents(app::PeerPort&)>;

  [[nodiscard]] std::unique_ptr<engine::Peers> make_port(JobNumber job, const engine::AttachRequest& first);
  void see(JobNumber job, const engine::PeerEvents& events);
  void turn(const std::function<void(engine::Engine&)>& what);
  void to_port(JobNumber job, PortCall call);
  void after_turn();
  void flush(JobNumber job);
  void send(Seat& seat, JobNumber job, app::Outgoing& each);
  void wake_for_deadlines();
  void wake_at(TimePoint when);
  void work_lane();
  void work_planner();
  [[nodiscard]] std::string address(std::size_t index) const;

  // data connections (daemon_data.cpp)
  net::LinkId dial(const std::string& address, const net::DataLinkHello& hello) override;
  void drop(net::LinkId dial) override;
  void open_data(JobNumber job, const Seat& seat, engine::OpenDataLinks wanted);
  void give(engine::Engine& engine, std::optional<app::DataVerdict> verdict);
  void on_data_time(engine::Engine& engine);

  // its wires
  void on_wire(SteppedWire& wire) override { wires_.push_back(&wire); }

  void on_wire_gone(SteppedWire& wire) override { std::erase(wires_, &wire); }

  void on_wish() override;
  void on_sent_too_much(std::string what) override;
  void run_wires();

  World& world_;
  std::size_t index_;
  std::uint64_t life_ = 0;
  std::vector<SteppedWire*> wires_;  ///< of the lane
  bool wires_wish_ = false;
  std::optional<app::DataLinks> data_;
  std::unique_ptr<SteppedLane> lane_;
  std::optional<SteppedWorkers> workers_;
  std::unique_ptr<fakes::InlinePlanner> planner_;
  std::unique_ptr<engine::Engine> engine_;
  std::map<JobNumber, Seat> seats_;
  std::uint64_t prepared_ = 0;
  std::uint64_t last_begun_ = 0;
  std::vector<JobNumber> told_;
  bool stopped_ = false;
  std::vector<std::function<void(engine::Engine&)>> held_;
  TimePoint stopped_since_;
  Duration stood_still_{};
  std::uint64_t stops_ = 0;
  bool lane_works_ = false;
  bool planner_works_ = false;
  TimePoint lane_until_;
  std::optional<TimePoint> wakes_;
  Duration coordinator_time_{};
};

}  // namespace gradsync::sim
