#pragma once
// One job over the engines of several nodes: real lanes, planners and machines, and links that carry values in order.
// Time moves when told, and one thread does everything but the lanes' arithmetic.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "engine/peers/coordinator_node.hpp"
#include "engine/peers/declarations/declaration_store.hpp"
#include "engine/peers/member_machine.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/wire_network.hpp"
#include "unit/engine/peers/steps/node_lane.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// The port of one node's job. What it sends waits in an outbox until the job has performed what it was told, so that
/// `done` is in the record before any other node hears it.
class LinkedPort final : public Peers {
 public:
  LinkedPort(std::size_t node, const PeerJoin& identity, std::uint64_t first_epoch, const TimePoint& now)
      : now_(now), node_(identity.node), store_(budget_, {1000, 1}) {
    MemberMachine::Options member{identity, node == 0 ? "" : "node0", "1.0", node + 1};
    if (node == 0) {
      coordinator_ = std::make_unique<CoordinatorNode>(
          CoordinatorMachine::Options{identity.job, identity.incarnation, "1.0", identity.node, first_epoch},
          member,
          store_
      );
    } else {
      member_ = std::make_unique<MemberMachine>(member, store_);
    }
  }

  ~LinkedPort() override { gone(); }

  LinkedPort(const LinkedPort&) = delete;
  LinkedPort& operator=(const LinkedPort&) = delete;

  [[nodiscard]] PeerEvents tell(LocalEvent event) override {
    if (auto* changed = std::get_if<LocalsChanged>(&event); changed != nullptr && changed->declared) {
      for (std::size_t i = 0; i < changed->contents.size(); ++i) {
        store_.add(changed->declared->by_content[i].hash, *changed->contents[i]);
      }
    } else if (auto* ready = std::get_if<LocalsReady>(&event); ready != nullptr && coordinator_) {
      coordinator_->on_comparison(ready->epoch, ready->plan, ready->comparison);
    }
    return coordinator_ ? taken(coordinator_->on_local(now_, std::move(event)))
                        : taken(member_->on_local(now_, std::move(event)));
  }

  [[nodiscard]] bool vote(const Voted& voted) override {
    bool done = false;
    voting();
    for (PeerEvent& event : tell(voted)) {
      const auto* verdict = std::get_if<VerdictReached>(&event);
      if (verdict != nullptr && verdict->verdict == Verdict::Done) {
        done = true;
      } else {
        later.push_back(std::move(event));
      }
    }
    return done;
  }

  [[nodiscard]] bool alone() const override { return false; }

  [[nodiscard]] std::string node() const override { return node_; }

  [[nodiscard]] std::string waits_for() const override {
    return coordinator_ ? coordinator_->coordinator().waits_for() : member_->waits_for();
  }

  // the links
  [[nodiscard]] PeerEvents link_at_coordinator(LinkNumber link) {
    return taken(coordinator_->on_link(now_, link, "10.0.0.9"));
  }

  [[nodiscard]] PeerEvents link_at_member() { return taken(member_->on_link(now_, "10.0.0.9")); }

  [[nodiscard]] PeerEvents link_ended_at_coordinator(LinkNumber link) {
    return taken(coordinator_->on_link_ended(now_, link, "closed"));
  }

  [[nodiscard]] PeerEvents link_ended_at_member() { return taken(member_->on_link_ended(now_, "closed")); }

  [[nodiscard]] PeerEvents take(LinkNumber link, ToCoordinator message) {
    return taken(coordinator_->on_message(now_, link, std::move(message)));
  }

  [[nodiscard]] PeerEvents take(ToMember message) { return taken(member_->on_message(now_, std::move(message))); }

  [[nodiscard]] PeerEvents on_time() {
    return coordinator_ ? taken(coordinator_->on_time(now_)) : taken(member_->on_time(now_));
  }

  std::function<void()> gone = [] {};
  std::function<void()> voting = [] {};
  PeerEvents later;         ///< that came with the answer to a vote
  std::uint64_t begun = 0;  ///< the last epoch that began
  bool wants_link = false;
  bool drops_link = false;
  std::optional<OpenDataLinks> data;                                ///< the connections that are wanted
  std::deque<ToCoordinator> up;                                     ///< of a member
  std::deque<std::pair<LinkNumber, std::optional<ToMember>>> down;  ///< of the coordinator; nothing: it closes the link

 private:
  template <typename Actions>
  PeerEvents taken(Actions actions) {
    PeerEvents events;
    for (auto& action : actions) {
      std::visit([&](auto& value) { take(value, events); }, action);
    }
    return events;
  }

  void take(TellJob& tell, PeerEvents& events) {
    if (const auto* begin = std::get_if<BeginEpoch>(&tell.event)) {
      begun = begin->epoch;
    }
    events.push_back(std::move(tell.event));
  }

  void take(SendToMember& send, PeerEvents&) { down.emplace_back(send.link, std::move(send.message)); }

  void take(SendToCoordinator& send, PeerEvents&) { up.push_back(std::move(send.message)); }

  void take(OpenLink&, PeerEvents&) { wants_link = true; }

  static void take(StoreDone&, PeerEvents&) {}

  void take(CloseLink& close, PeerEvents&) { down.emplace_back(close.link, std::nullopt); }

  void take(DropLink&, PeerEvents&) { drops_link = true; }

  void take(OpenDataLinks& open, PeerEvents&) { data = std::move(open); }

  static void take(WarnHalfTime& warn, PeerEvents& events) { events.push_back(PeersHalfTime{warn.waits_for}); }

  const TimePoint& now_;
  const std::string node_;
  FairBudget budget_{1u << 30, 0};
  DeclarationStore store_;
  std::unique_ptr<CoordinatorNode> coordinator_;
  std::unique_ptr<MemberMachine> member_;
};

/// `per_node` ranks each, numbered in the order of nodes, of a mesh with the one axis dp, and of one that has nodes and
/// ranks of a node as axes.
class LinkedEngines {
 public:
  struct Call {
    int calls = 0;
    bool begun = false;  ///< whether its epoch had begun on its node when it was answered
    std::optional<StepReport> report;
    std::optional<Error> error;
  };

  LinkedEngines(std::size_t nodes, std::int64_t per_node, EngineOptions options = {})
      : world_(static_cast<std::int64_t>(nodes) * per_node), per_node_(per_node) {
    for (std::size_t node = 0; node < nodes; ++node) {
      nodes_.push_back(std::make_unique<Node>(*this, node, options));
    }
    for (std::int64_t rank = 0; rank < world_; ++rank) {
      attach(rank);
    }
  }

  ~LinkedEngines() {
    for (const auto& [memory, bytes] : mapped_) {
      ::munmap(memory, bytes);
    }
  }

  LinkedEngines(const LinkedEngines&) = delete;
  LinkedEngines& operator=(const LinkedEngines&) = delete;

  void attach(std::int64_t rank) {
    AttachRequest request;
    request.job = "job";
    request.uid = 1000;
    request.pid = 100 + rank;
    request.client_id = std::to_string(rank) + "-" + std::to_string(++lives_);
    request.rank = rank;
    request.world_size = world_;
    request.local_world_size = per_node_;
    request.meshes = {
        {"default", {{"dp", world_}}, {}}, {"grid", {{"node", world_ / per_node_}, {"local", per_node_}}, {}}};
    const Result<AttachResult> attached = engine_of(rank).attach(request);
    ASSERT_TRUE(attached) << attached.error().message;
    Rank& own = ranks_[rank];
    own = {};
    own.session = attached->session;
    own.key = {attached->epoch, attached->attempt};
  }

  void declare(std::int64_t rank, plan::RankDeclaration declaration) {
    Rank& own = ranks_[rank];
    own.bytes = bytes_of(declaration);
    if (own.memory == nullptr) {
      allocate(rank);
    }
    own.declared = false;
    own.refusal.reset();
    DeclareRequest request;
    request.declaration = std::move(declaration);
    request.buffer = own.buffer;
    const SessionId caller = own.session;
    engine_of(rank).declare(caller, std::move(request), [this, rank, caller](const Result<DeclareResult>& result) {
      Rank& declared = ranks_[rank];
      if (declared.session != caller) {
        return;  // of a process that is gone
      }
      declared.refusal = result ? std::optional<Error>() : result.error();
      declared.declared = result.has_value();
      if (result) {
        declared.key = {result->epoch, result->attempt};
        declared.plan = result->plan;
      }
    });
  }

  /// A row for each tensor, or an arena that has room for all that sync scatters.
  static std::uint64_t bytes_of(const plan::RankDeclaration& declaration) {
    std::uint64_t bytes = 0;
    for (const plan::TensorDeclaration& tensor : declaration.tensors) {
      bytes += 2 * plan::align_up(4 * static_cast<std::uint64_t>(plan::numel_of(tensor.local_shape)));
    }
    return declaration.options.data_path == plan::DataPath::Arena
               ? bytes
               : declaration.tensors.size() * sizeof(device::StatsRow);
  }

  void allocate(std::int64_t rank) {
    Rank& own = ranks_[rank];
    const Result<BufferGrant> grant = engine_of(rank).allocate(own.session, own.bytes);
    ASSERT_TRUE(grant) << grant.error().message;
    const Result<TakenFd> taken = engine_of(rank).exchange_fd(grant->token, 1000, 100 + rank, UniqueFd{});
    ASSERT_TRUE(taken);
    void* memory = ::mmap(nullptr, grant->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, taken->fd.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    mapped_.emplace_back(memory, grant->size_bytes);
    own.buffer = grant->buffer;
    own.memory = static_cast<std::byte*>(memory);
  }

  /// What the rank has of a tensor before sync, and after it. Data path arena.
  [[nodiscard]] float* input(std::int64_t rank, std::size_t row) const {
    const Rank& own = ranks_.at(rank);
    return reinterpret_cast<float*>(own.memory + own.plan->layout(rank).input_offsets[row]);
  }

  [[nodiscard]] float* output(std::int64_t rank, std::size_t row) const {
    const Rank& own = ranks_.at(rank);
    return reinterpret_cast<float*>(own.memory + own.plan->layout(rank).output_offsets[row]);
  }

  [[nodiscard]] const plan::Plan& plan_of(std::int64_t rank) const { return *ranks_.at(rank).plan; }

  /// Stamped for the attempt that the rank is at.
  void write(std::int64_t rank, std::size_t row, device::StatsRow value) {
    value.stamp = attempt_word(ranks_[rank].key);
    table(rank)[row] = value;
  }

  /// It has no gradient there.
  void unstamp(std::int64_t rank, std::size_t row) { table(rank)[row] = {}; }

  void tensors_unused(std::int64_t rank, std::vector<std::uint32_t> rows) {
    engine_of(rank).tensor_unused(ranks_[rank].session, {ranks_[rank].key, std::move(rows)});
  }

  void bucket_ready(std::int64_t rank, std::uint32_t bucket) {
    engine_of(rank).bucket_ready(ranks_[rank].session, {ranks_[rank].key, bucket});
  }

  std::shared_ptr<Call> finish(std::int64_t rank, std::int64_t step, FinishRequest request = {}) {
    auto call = std::make_shared<Call>();
    request.key = ranks_[rank].key;
    request.step = step;
    request.ready_all = true;
    engine_of(rank).finish(ranks_[rank].session, std::move(request), listener(rank, call));
    return call;
  }

  std::shared_ptr<Call> clip(std::int64_t rank, std::int64_t step) {
    auto call = std::make_shared<Call>();
    ClipRequest request;
    request.key = ranks_[rank].key;
    request.step = step;
    engine_of(rank).clip(ranks_[rank].session, request, listener(rank, call));
    return call;
  }

  std::shared_ptr<Call> import(std::int64_t rank, const std::string& state) {
    auto call = std::make_shared<Call>();
    ImportRequest request;
    request.key = ranks_[rank].key;
    request.state = state;
    engine_of(rank).import_policies(ranks_[rank].session, request, listener(rank, call));
    return call;
  }

  void lose(std::int64_t rank) { engine_of(rank).process_exited(ranks_[rank].session); }

  /// Its next process is on that node.
  void move(std::int64_t rank, std::size_t node) { moved_[rank] = node; }

  void pause(std::int64_t rank, bool paused) { ASSERT_TRUE(engine_of(rank).pause(ranks_[rank].session, paused)); }

  /// What the lane of the node reports waits from now on, or not any more.
  void hold_lane(std::size_t node, bool held) { nodes_[node]->lane_held = held; }

  /// Its links do not come about any more.
  void keep_apart(std::size_t node) { nodes_[node]->apart = true; }

  [[nodiscard]] fakes::WireNetwork& network() { return network_; }

  [[nodiscard]] NodeLane& lane(std::size_t node) { return nodes_[node]->lane; }

  [[nodiscard]] const std::vector<std::string>& alerts(std::size_t node) const { return nodes_[node]->alerts; }

  /// The data connections that it wants are not made before it is let go.
  void hold_data(std::size_t node, bool held) { nodes_[node]->data_held = held; }

  /// They are not made at all, once.
  void fail_data(std::size_t node) { nodes_[node]->data_fails = true; }

  /// Something late that the port of the node's job says.
  void tell(std::size_t node, PeerEvent event) { nodes_[node]->tell(nodes_[node]->job(), one(std::move(event))); }

  /// What the node sends waits.
  void hold_messages(std::size_t node, bool held) { nodes_[node]->messages_held = held; }

  /// The link of the node ends on both sides, with all that is on its way.
  void cut(std::size_t index) {
    Node& node = *nodes_[index];
    Node& first = *nodes_.front();
    const LinkNumber link = std::exchange(node.link, 0);
    if (LinkedPort* const coordinator = first.port_of(node.linked_to)) {
      std::erase_if(coordinator->down, [&](const auto& sent) { return sent.first == link; });
      first.tell(node.linked_to, coordinator->link_ended_at_coordinator(link));
    }
    if (LinkedPort* const member = node.port_of(node.linked)) {
      member->up.clear();
      member->drops_link = false;
      node.tell(node.linked, member->link_ended_at_member());
    }
  }

  /// Until nothing is on its way and nothing is planned or executed.
  void pump() {
    bool more = true;
    while (more) {
      more = false;
      for (const auto& node : nodes_) {
        more = work(*node) || more;
      }
    }
  }

  /// One thing that waits on the node.
  void work_on(std::size_t node) { static_cast<void>(work(*nodes_[node])); }

  [[nodiscard]] bool linked(std::size_t node) const { return nodes_[node]->link != 0; }

  /// In steps of half a second, as heartbeats need.
  void pass(Milliseconds time) {
    for (Milliseconds gone{0}; gone < time; gone += Milliseconds(500)) {
      now_ += Milliseconds(500);
      for (const auto& node : nodes_) {
        node->engine.advance(now_);
        for (const auto& [job, port] : std::map(node->ports)) {
          if (node->port_of(job) != nullptr) {
            node->tell(job, port->on_time());
          }
        }
      }
      pump();
    }
  }

  [[nodiscard]] bool declared(std::int64_t rank) const { return ranks_.at(rank).declared; }

  [[nodiscard]] const std::optional<Error>& refusal(std::int64_t rank) const { return ranks_.at(rank).refusal; }

  [[nodiscard]] StepKey key(std::int64_t rank) const { return ranks_.at(rank).key; }

  [[nodiscard]] std::int64_t world() const { return world_; }

  [[nodiscard]] Engine& engine_of(std::int64_t rank) { return node_of(rank).engine; }

  [[nodiscard]] SessionId session(std::int64_t rank) const { return ranks_.at(rank).session; }

  std::function<void(std::size_t node)> on_vote = [](std::size_t) {};

 private:
  struct Rank {
    SessionId session = 0;
    StepKey key;
    bool declared = false;
    std::optional<Error> refusal;
    std::uint64_t bytes = 0;  ///< of its memory
    std::uint64_t buffer = 0;
    std::byte* memory = nullptr;
    std::shared_ptr<const plan::Plan> plan;  ///< the last one that it was told
  };

  [[nodiscard]] device::StatsRow* table(std::int64_t rank) {
    return reinterpret_cast<device::StatsRow*>(ranks_[rank].memory);
  }

  struct Node {
    Node(LinkedEngines& all, std::size_t place, EngineOptions options)
        : index(place),
          lane(all.network_),
          engine(
              with_port(all, place, std::move(options)),
              Lanes(lane),
              planner,
              [this](const Event& event) {
                if (event.topic == "alert") {
                  alerts.push_back(event.kind);
                }
              },
              metrics
          ) {
      engine.advance(all.now_);
    }

    EngineOptions with_port(LinkedEngines& all, std::size_t place, EngineOptions options) {
      if (!options.policy_directory.empty()) {
        options.policy_directory += std::to_string(place);  // as each daemon has its own
      }
      options.make_peers = [this, &all, place](JobNumber number, const AttachRequest& first) {
        PeerJoin identity;
        identity.job = {first.uid, first.job};
        identity.world_size = first.world_size;
        identity.local_world_size = first.local_world_size;
        identity.meshes = first.meshes;
        identity.node = "node" + std::to_string(place);
        identity.node_id = std::string(31, '0') + std::to_string(place);
        identity.incarnation = std::string(15, 'a') + std::to_string(place);
        identity.address = "10.0.0." + std::to_string(place);
        const std::uint64_t first_epoch = 1 + 1'000 * (number - 1);  // no two jobs have attempts of one name
        auto made = std::make_unique<LinkedPort>(place, identity, first_epoch, all.now_);
        ports[number] = made.get();
        made->gone = [this, number] { ports.erase(number); };
        made->voting = [&all, place] { all.on_vote(place); };
        return made;
      };
      return options;
    }

    void tell(JobNumber job, PeerEvents events) {
      if (!events.empty()) {
        engine.on_peer_events(job, std::move(events));
      }
    }

    [[nodiscard]] LinkedPort* port_of(JobNumber job) const {
      const auto found = ports.find(job);
      return found == ports.end() ? nullptr : found->second;
    }

    /// The newest one; 0: none. One before it, whose ranks have all left, lives on until its lane is quiet.
    [[nodiscard]] JobNumber job() const { return ports.empty() ? 0 : ports.rbegin()->first; }

    std::size_t index;
    NodeLane lane;
    fakes::InlinePlanner planner;
    prometheus::Registry registry;
    EngineMetrics metrics{registry};
    std::map<JobNumber, LinkedPort*> ports;
    LinkNumber link = 0;                   ///< 0: none
    JobNumber linked = 0;                  ///< the job here that has it
    JobNumber linked_to = 0;               ///< the job at the coordinator that has it
    std::vector<std::string> alerts = {};  ///< kinds
    bool lane_held = false;
    bool messages_held = false;
    bool data_held = false;
    bool data_fails = false;
    bool apart = false;
    Engine engine;
  };

  [[nodiscard]] Node& node_of(std::int64_t rank) {
    const auto moved = moved_.find(rank);
    return *nodes_[moved == moved_.end() ? static_cast<std::size_t>(rank / per_node_) : moved->second];
  }

  Reply<RankReport> listener(std::int64_t rank, std::shared_ptr<Call> call) {
    const std::uint64_t epoch = ranks_[rank].key.epoch;
    return [this, rank, call, epoch, caller = ranks_[rank].session](const Result<RankReport>& result) {
      ++call->calls;
      const auto& ports = node_of(rank).ports;
      call->begun = std::ranges::any_of(ports, [&](const auto& port) { return port.second->begun == epoch; });
      std::optional<StepKey> next;
      if (result) {
        call->report = *result->report;
        next = {result->report->epoch, result->report->next_attempt};
      } else {
        call->error = result.error();
        if (result.error().epoch) {
          next = {*result.error().epoch, *result.error().attempt};
        }
      }
      if (next && ranks_[rank].session == caller) {  // else the process that asked is gone
        ranks_[rank].key = *next;
      }
    };
  }

  /// Something that the node has to do or to hear; false: there is nothing.
  bool work(Node& node) {
    if (!node.planner.requests.empty()) {
      node.engine.on_plan(node.planner.plan_next());
      return true;
    }
    device::LaneReport report;
    if (!node.lane_held && node.lane.wait_report(report)) {
      node.engine.on_lane_report(device::kHostLane, std::move(report));
      return true;
    }
    for (const auto& [job, port] : node.ports) {
      if (!port->later.empty()) {
        node.tell(job, std::exchange(port->later, {}));
        return true;
      }
    }
    return work_on_data(node) || work_on_links(node) || network_.deliver_one();
  }

  /// The data connections of a node are made when every other end wants them, too.
  bool work_on_data(Node& node) {
    LinkedPort* const port = node.port_of(node.job());
    if (port == nullptr || !port->data || node.data_held) {
      return false;
    }
    const OpenDataLinks open = *port->data;
    if (std::exchange(node.data_fails, false)) {
      port->data.reset();
      Error error = make_error(ErrorCode::NodeRefused, "no data connection to " + open.ends.front().name);
      error.node = open.ends.front().name;
      node.tell(node.job(), one(LinksFailed{open.epoch, std::move(error)}));
      return true;
    }
    for (const DataEnd& end : open.ends) {
      if (!meet(node, open, end)) {
        return false;
      }
    }
    LinksReady ready{open.epoch, {}};
    for (const DataEnd& end : open.ends) {
      ready.connections.push_back(std::move(data_.extract({node.index, place_of(end), open.epoch}).mapped()));
    }
    port->data.reset();
    node.tell(node.job(), one(std::move(ready)));
    return true;
  }

  /// Whether both ends of two data connections are there.
  bool meet(const Node& node, const OpenDataLinks& open, const DataEnd& end) {
    if (data_.contains({node.index, place_of(end), open.epoch})) {
      return true;
    }
    const Node& other = *nodes_[place_of(end)];
    const LinkedPort* const there = other.port_of(other.job());
    if (there == nullptr || !there->data || there->data->epoch != open.epoch) {
      return false;
    }
    EXPECT_EQ(there->data->own, end.node);
    EXPECT_EQ(there->data->own_incarnation, end.incarnation);
    std::tie(data_[{node.index, other.index, open.epoch}], data_[{other.index, node.index, open.epoch}]) =
        network_.connect(open.own, end.node);
    return true;
  }

  static std::size_t place_of(const DataEnd& end) { return std::stoul(end.name.substr(4)); }

  static PeerEvents one(PeerEvent event) {
    PeerEvents events;
    events.push_back(std::move(event));
    return events;
  }

  bool work_on_links(Node& node) {
    Node& first = *nodes_.front();
    LinkedPort* const port = node.port_of(node.job());
    LinkedPort* const coordinator = first.port_of(first.job());
    const bool others = node.linked != node.job() || node.linked_to != first.job();
    if (node.link != 0 && (others || port->drops_link)) {
      cut(node.index);
      return true;
    }
    if (port == nullptr || coordinator == nullptr) {
      return false;
    }
    if (!node.apart && std::exchange(port->wants_link, false)) {
      node.link = ++links_;
      node.linked = node.job();
      node.linked_to = first.job();
      first.tell(node.linked_to, coordinator->link_at_coordinator(node.link));
      node.tell(node.linked, port->link_at_member());
      return true;
    }
    if (node.messages_held) {
      return false;
    }
    if (!port->up.empty()) {
      ToCoordinator message = std::move(port->up.front());
      port->up.pop_front();
      first.tell(first.job(), coordinator->take(node.link, std::move(message)));
      return true;
    }
    if (!port->down.empty()) {
      auto [link, message] = std::move(port->down.front());
      port->down.pop_front();
      const auto to = std::ranges::find(nodes_, link, [](const auto& other) { return other->link; });
      if (to != nodes_.end() && !message) {
        cut((*to)->index);
      } else if (to != nodes_.end()) {
        Node& member = **to;
        if (LinkedPort* const reader = member.port_of(member.linked)) {
          member.tell(member.linked, reader->take(std::move(*message)));
        }
      }
      return true;
    }
    return false;
  }

  std::int64_t world_;
  std::int64_t per_node_;
  TimePoint now_{std::chrono::seconds(1000)};
  int lives_ = 0;
  LinkNumber links_ = 0;
  fakes::WireNetwork network_{fakes::WireNetwork::Delivery::OneByOne};
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<std::int64_t, Rank> ranks_;
  std::map<std::int64_t, std::size_t> moved_;  ///< ranks that are not where they were at first
  std::vector<std::pair<void*, std::size_t>> mapped_;
  /// One end of the connections between two nodes in an epoch: whose end, to whom.
  std::map<std::tuple<std::size_t, std::size_t, std::uint64_t>, device::NodeConnection> data_;
};

}  // namespace gradsync::engine
