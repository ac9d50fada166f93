#pragma once
// A daemon with ranks on two GPUs, of a job that has ranks on another node: its lanes are those of the test, which
// answers for them, and so is the port to the other nodes.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "engine/peers/sums/comparison.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_gpus.hpp"
#include "fakes/recording_lane.hpp"
#include "plan/transfer/communicator_name.hpp"
#include "unit/engine/harness.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// Keeps what the job tells; what follows comes from the test.
class ListeningPeers final : public Peers {
 public:
  explicit ListeningPeers(std::vector<LocalEvent>& told) : told_(told) {}

  [[nodiscard]] PeerEvents tell(LocalEvent event) override {
    told_.push_back(std::move(event));
    return {};
  }

  [[nodiscard]] bool vote(const Voted& voted) override {
    told_.emplace_back(voted);
    return false;
  }

  [[nodiscard]] bool alone() const override { return false; }

  [[nodiscard]] std::string node() const override { return "here"; }

  [[nodiscard]] std::string waits_for() const override { return {}; }

 private:
  std::vector<LocalEvent>& told_;
};

/// Ranks 0 and 1 are on one GPU of the other node, which is site 0; 2 and 3 are here, on sites 1 and 2. "a" is summed
/// over all ranks, "left" over ranks 0 and 2, and "right" over ranks 1 and 3. "left_copy" and "right_copy" lie on the
/// same ranks, and are not summed.
class NodeOfTwoGpus {
 public:
  static constexpr device::LaneId kFirst = 5;
  static constexpr device::LaneId kSecond = 6;
  static constexpr std::uint64_t kEpoch = 50;
  static constexpr std::int64_t kWorld = 4;

  explicit NodeOfTwoGpus(device::LaneId of_rank_2 = kFirst, device::LaneId of_rank_3 = kSecond)
      : lane_of_rank_{{2, of_rank_2}, {3, of_rank_3}} {
    engine.advance(TimePoint{std::chrono::seconds(1000)});
    for (const auto& [rank, lane] : lane_of_rank_) {
      AttachRequest request;
      request.job = "job";
      request.uid = 1000;
      request.pid = 100 + rank;
      request.client_id = std::to_string(rank);
      request.rank = rank;
      request.world_size = kWorld;
      request.local_world_size = 2;
      request.meshes = {{"default", {{"dp", kWorld}}, {}}, {"grid", {{"node", 2}, {"local", 2}}, {}}};
      sessions[rank] = engine.attach(request)->session;
    }
    declare_all();
  }

  ~NodeOfTwoGpus() { told.clear(); }  // plans in it count for the engine

  NodeOfTwoGpus(const NodeOfTwoGpus&) = delete;
  NodeOfTwoGpus& operator=(const NodeOfTwoGpus&) = delete;

  static plan::TensorDeclaration of_grid(const std::string& name, plan::PlacementKind over_nodes, std::int64_t local) {
    plan::TensorDeclaration tensor = Harness::tensor(name);
    tensor.mesh = "grid";
    tensor.placements = {{{"node"}, std::move(over_nodes)}, {{"local"}, plan::Only{{local}}}};
    return tensor;
  }

  static plan::RankDeclaration declaration(std::int64_t rank) {
    const std::int64_t local = rank % 2;
    const std::string side = local == 0 ? "left" : "right";
    return Harness::declaration(
        {Harness::tensor("a"),
         of_grid(side, plan::Partial{plan::ReduceOp::Sum, std::nullopt}, local),
         of_grid(side + "_copy", plan::Replicate{}, local)}
    );
  }

  /// Each rank with a new buffer, on this lane where one is given.
  void declare_all(std::optional<device::LaneId> on_lane = {}) {
    for (const auto& [rank, first_lane] : lane_of_rank_) {
      const device::LaneId lane = on_lane.value_or(first_lane);
      DeclareRequest request;
      request.declaration = declaration(rank);
      buffers[rank] = engine.allocate(sessions.at(rank), 1 << 16, lane)->buffer;
      request.buffer = buffers[rank];
      engine.declare(sessions.at(rank), std::move(request), [this, rank = rank](const Result<DeclareResult>& result) {
        if (result) {
          keys[rank] = {result->epoch, result->attempt};
        } else {
          refused[rank] = result.error();
        }
      });
    }
    plan_all();
  }

  void plan_all() {
    while (!planner.requests.empty()) {
      engine.on_plan(planner.plan_next());
    }
  }

  void tell(PeerEvent event) {
    PeerEvents events;
    events.push_back(std::move(event));
    engine.on_peer_events(job, std::move(events));
  }

  /// All nodes have declared: the plan is made and given to the lanes.
  void prepare(std::vector<SiteNumber> site_of_rank = {0, 0, 1, 2}, std::uint64_t epoch = kEpoch) {
    PrepareEpoch prepare;
    prepare.epoch = epoch;
    for (std::int64_t rank = 0; rank < kWorld; ++rank) {
      prepare.by_rank.own().push_back(std::make_shared<const plan::RankDeclaration>(declaration(rank)));
      prepare.weights.own().push_back(nullptr);
    }
    prepare.node_of_rank = {0, 0, 1, 1};
    prepare.node_names = {"there", "here"};
    prepare.site_of_rank = std::move(site_of_rank);
    tell(std::move(prepare));
    plan_all();
  }

  /// As far as the first step.
  void begin() {
    prepare();
    answer_all();
    tell(ConnectEpoch{kEpoch, ids()});
    answer_all();
    tell(BeginEpoch{kEpoch});
  }

  /// The id of each communicator that the lanes have offered.
  [[nodiscard]] std::vector<device::CommunicatorId> ids() {
    std::map<std::string, device::CommunicatorId> by_name;
    for (const device::CommunicatorOffer& offer : last<LocalsReady>().communicators->offers) {
      by_name[offer.name] = {offer.name, by_name.size() + 1, device::NcclUniqueId{}};
    }
    std::vector<device::CommunicatorId> all;
    for (const auto& [name, id] : by_name) {
      all.push_back(id);
    }
    return all;
  }

  struct Answer {
    int calls = 0;
    std::optional<StepReport> report;
    std::optional<Error> error;
  };

  std::shared_ptr<Answer> finish(std::int64_t rank, FinishRequest request = Harness::ready_all()) {
    auto answer = std::make_shared<Answer>();
    request.key = keys.at(rank);
    engine.finish(sessions.at(rank), std::move(request), listener(rank, answer));
    return answer;
  }

  std::shared_ptr<Answer> clip(std::int64_t rank, bool abandon = false) {
    auto answer = std::make_shared<Answer>();
    ClipRequest request;
    request.key = keys.at(rank);
    request.abandon = abandon;
    engine.clip(sessions.at(rank), request, listener(rank, answer));
    return answer;
  }

  Reply<RankReport> listener(std::int64_t rank, std::shared_ptr<Answer> answer) {
    return [this, rank, answer = std::move(answer)](const Result<RankReport>& result) {
      ++answer->calls;
      if (result) {
        answer->report = *result->report;
        keys[rank] = {result->report->epoch, result->report->next_attempt};
      } else {
        answer->error = result.error();
      }
    };
  }

  /// By the sums that a site said, of which any will do.
  void decide() {
    PeerDecision decision;
    decision.word = last<LocalsAsked>().ask.word;
    if (!last<LocalsAsked>().ask.sites.empty()) {
      decision.cells = last<LocalsAsked>().ask.sites[0].cells;
      decision.cells->whole.power_sum = {25, 0};
    }
    tell(SumsKnown{std::move(decision)});
  }

  [[nodiscard]] fakes::RecordingLane& lane(device::LaneId id) { return id == kFirst ? first : second; }

  /// The oldest command that the lane has not answered; it stays.
  template <typename Command>
  [[nodiscard]] const Command& next(device::LaneId id) {
    const auto& commands = lane(id).commands;
    const auto found = std::ranges::find_if(commands, [](const device::LaneCommand& command) {
      return std::holds_alternative<Command>(command);
    });
    return found == commands.end() ? throw std::logic_error("the lane has no such command") : std::get<Command>(*found);
  }

  /// The answer to its oldest command.
  void answer(device::LaneId id) {
    fakes::RecordingLane& told_lane = lane(id);
    const device::LaneCommand& command = told_lane.commands.front();
    std::optional<device::LaneReport> report;
    if (told_lane.lost) {
      engine.on_lane_report(id, told_lane.answer_next());
      return;
    }
    if (const auto* load = std::get_if<device::LoadPlan>(&command)) {
      layouts[id] = load->layout;
      report = device::Loaded{load->plan, offers_of(load->layout.nodes)};
    } else if (const auto* finish = std::get_if<device::FinishStep>(&command)) {
      report = measured(id, *finish);
    } else if (const auto* read = std::get_if<device::ReadRows>(&command)) {
      report = device::RowsRead{read->plan, read->tag, std::vector<std::uint64_t>(read->classes.size(), id), {}};
    }
    if (report) {
      told_lane.commands.pop_front();
      engine.on_lane_report(id, std::move(*report));
    } else {
      engine.on_lane_report(id, told_lane.answer_next());
    }
  }

  /// Everything that the lane has to do.
  void answer_lane(device::LaneId id) {
    while (!lane(id).commands.empty()) {
      answer(id);
    }
  }

  void answer_all() {
    while (!first.commands.empty() || !second.commands.empty()) {
      answer_lane(kSecond);
      answer_lane(kFirst);
    }
  }

  template <typename Event>
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::ranges::count_if(told, [](const LocalEvent& event) {
      return std::holds_alternative<Event>(event);
    }));
  }

  /// The last event of that type.
  template <typename Event>
  [[nodiscard]] const Event& last() const {
    const auto found = std::find_if(told.rbegin(), told.rend(), [](const LocalEvent& event) {
      return std::holds_alternative<Event>(event);
    });
    return found == told.rend() ? throw std::logic_error("the job has not told it") : std::get<Event>(*found);
  }

  std::vector<LocalEvent> told;
  JobNumber job = 0;
  fakes::RecordingLane host;
  fakes::RecordingLane first;
  fakes::RecordingLane second;
  std::map<device::LaneId, device::LanePlan> layouts;
  fakes::RecordingGpus gpus;
  fakes::InlinePlanner planner;
  prometheus::Registry registry;
  EngineMetrics metrics{registry};
  Engine engine{options(), lanes(), planner, [](const Event&) {}, metrics};
  std::map<std::int64_t, SessionId> sessions;
  std::map<std::int64_t, std::uint64_t> buffers;
  std::map<std::int64_t, StepKey> keys;
  std::map<std::int64_t, Error> refused;

 private:
  EngineOptions options() {
    EngineOptions options;
    options.make_peers = [this](JobNumber number, const AttachRequest&) {
      job = number;
      return std::make_unique<ListeningPeers>(told);
    };
    return options;
  }

  Lanes lanes() {
    Lanes all(host, &gpus);
    all.add(kFirst, first);
    all.add(kSecond, second);
    return all;
  }

  static device::LoadedCommunicators offers_of(const device::LaneNodes& nodes) {
    device::LoadedCommunicators loaded{22'809, {}};
    for (const device::LaneCommunicator& one : nodes.communicators->needed) {
      const auto members = static_cast<std::uint32_t>(one.spec.ranks.size());
      loaded.offers.push_back({plan::communicator_name(one.spec.axes, one.spec.ranks), members, one.spec.own, {}, {}});
    }
    return loaded;
  }

  /// As many elements were counted as the number of the lane says.
  device::Finished measured(device::LaneId id, const device::FinishStep& finish) const {
    auto raw = std::make_shared<device::RawStep>();
    raw->cells.counted_elements = id;
    raw->cells.layers.resize(last<LocalsReady>().comparison->layers);
    raw->class_hashes.assign(layouts.at(id).nodes.classes.size(), id);
    device::Finished report{finish.plan, finish.tag, {}, std::move(raw)};
    report.math.norm_s = id;
    return report;
  }

  std::map<std::int64_t, device::LaneId> lane_of_rank_;
};

}  // namespace gradsync::engine
