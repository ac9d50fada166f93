#include "app/daemon/application.hpp"

#include "app/blackbox/blackbox.hpp"
#include "app/config/settings.hpp"
#include "app/daemon/bridge.hpp"
#include "app/daemon/daemon_state.hpp"
#include "app/daemon/engine_clock.hpp"
#include "app/daemon/gpu_workers.hpp"
#include "app/daemon/node_doctor.hpp"
#include "app/daemon/pages/pages.hpp"
#include "app/peer/peer_bridge.hpp"
#include "base/log.hpp"
#include "base/text/hash.hpp"
#include "base/version.hpp"
#include "device/host/host_lane.hpp"
#include "device/wire/wire.hpp"
#include "engine/metrics.hpp"
#include "engine/plan/planner.hpp"
#include "net/metrics.hpp"
#include "net/socket/listening_socket.hpp"
#include "rpc/metrics.hpp"
#include "rpc/wire/result_size.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <prometheus/gauge.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace gradsync::app {

namespace {

net::ServerOptions server_options(const Options& options) {
  net::ServerOptions server;
  server.socket_path = options.server.socket;
  server.socket_mode = options.server.socket_mode.value;
  for (const std::int64_t uid : options.server.allowed_uids) {
    server.allowed_uids.push_back(static_cast<std::uint32_t>(uid));
  }
  server.allow_any_uid = options.server.allowed_uids.empty();
  server.health_address = options.server.health;
  server.tcp_address = options.server.tcp;
  server.tcp_token_file = options.server.tcp_token_file;
  server.tcp_read_token_file = options.server.tcp_read_token_file;
  server.peer_address = options.peer.listen;
  server.peer_token_file = options.peer.token_file;
  server.message_bytes = static_cast<std::size_t>(options.limits.message_bytes);
  server.connections = static_cast<std::size_t>(options.limits.connections);
  server.initialize_timeout = Milliseconds{options.deadlines.initialize_ms};
  server.watch_after_close = Milliseconds{options.deadlines.reconnect_ms};
  return server;
}

/// It has 30 random bits, so that no epoch of this daemon is likely to be one of the daemon before it.
std::uint64_t random_epoch() {
  constexpr std::uint64_t kMask = (1U << 30) - 1;
  return std::max<std::uint64_t>(std::stoull(random_hex(sizeof(std::uint32_t)), nullptr, 16) & kMask, 1);
}

bool told_to_stop() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && (::sigismember(&pending, SIGTERM) == 1 || ::sigismember(&pending, SIGINT) == 1);
}

/// At most 64 bytes, as a node's name.
std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return std::string(name.data()).substr(0, 64);
}

/// A name for this node that its daemon has before and after a restart, and no other daemon has. In containers of one
/// machine daemons share the kernel, and may have the same path inside: their hosts have names of their own.
std::string node_id_of(const DaemonState& state, const std::string& node) {
  Hash128 hash;
  hash.add(state.boot_id);
  hash.add(node);
  hash.add(state.socket_path);
  return hash.hex();
}

PeerBridge::Options peer_options(const Options& options, const DaemonState& state) {
  PeerBridge::Options peer;
  peer.listen = options.peer.listen;
  peer.node = options.peer.node.empty() ? host_name() : options.peer.node;
  peer.node_id = node_id_of(state, peer.node);
  peer.incarnation = state.incarnation;
  peer.wait_for_job = Milliseconds{options.deadlines.declare_ms};
  peer.first_epoch = random_epoch();
  peer.apart = options.gpu.peer_access == "off";
  return peer;
}

Blackbox::Options blackbox_options(const Options& options, const DaemonState& state) {
  Blackbox::Options blackbox;
  blackbox.folder = blackbox_folder(options);
  blackbox.kept_files = static_cast<std::size_t>(options.blackbox.kept_files);
  blackbox.node = options.peer.node.empty() ? host_name() : options.peer.node;
  blackbox.incarnation = state.incarnation;
  blackbox.release = kVersion;
  return blackbox;
}

net::PeerOptions link_options() {
  net::PeerOptions links;
  links.beat_text = *rpc::encode_peer(engine::ToMember(engine::PeerBeat{}));
  return links;
}

engine::EngineOptions engine_options(const Options& options) {
  engine::EngineOptions engine;
  engine.own_uid = ::geteuid();
  engine.policy_directory = policy_directory(options);
  engine.buckets = bucket_sizes(options.engine);
  engine.limits.sessions = options.limits.sessions;
  engine.limits.buffers_per_session = options.limits.buffers_per_session;
  engine.limits.arena_bytes = static_cast<std::uint64_t>(options.limits.arena_bytes);
  engine.limits.tensors = options.limits.tensors;
  engine.deadlines.declare = Milliseconds{options.deadlines.declare_ms};
  engine.deadlines.first_step = Milliseconds{options.deadlines.first_step_ms};
  engine.deadlines.step = Milliseconds{options.deadlines.step_ms};
  engine.deadlines.reconnect = Milliseconds{options.deadlines.reconnect_ms};
  engine.cpu_collectives = options.nccl.cpu_gradients == "nccl";
  engine.check_every = options.engine.check_every;
  engine.history = options.engine.history;
  engine.first_epoch = random_epoch();
  engine.encoded_bytes = rpc::result_bytes(static_cast<std::size_t>(options.limits.message_bytes));
  engine.encode_report = rpc::report_encoder(engine.encoded_bytes);
  return engine;
}

rpc::RpcLimits rpc_limits(const Options& options) {
  rpc::RpcLimits limits;
  limits.message_bytes = static_cast<std::size_t>(options.limits.message_bytes);
  const engine::EngineOptions engine = engine_options(options);
  limits.engine = engine.limits;
  limits.deadlines = engine.deadlines;
  return limits;
}

void add_build_info(prometheus::Registry& registry) {
  auto& family =
      prometheus::BuildGauge().Name("gradsync_build_info").Help("Constant 1, with the version.").Register(registry);
  family.Add({{"version", kVersion}, {"protocol", std::to_string(kProtocolVersion)}}).Set(1);
}

}  // namespace

/// The parts are declared in the order in which they are built. Other threads (lane, planner, doctor, blackbox) post to
/// `io` by value.
struct Application::Parts {
  explicit Parts(const Options& chosen)
      : options(chosen),
        state(make_daemon_state(chosen.server.socket)),
        engine_metrics(registry, chosen.engine.job_gauges),
        rpc_metrics(registry),
        net_metrics(registry),
        lane(
            {.threads = static_cast<int>(chosen.engine.threads), .make_wire = device::make_socket_wire},
            [this](device::LaneReport report) {
              boost::asio::post(io, [this, moved = std::move(report)]() mutable {
                bridge.on_lane_report(device::kHostLane, std::move(moved));
              });
            }
        ),
        gpus(
            chosen.gpu,
            chosen.nccl,
            chosen.engine.threads,
            [this](device::LaneId id, device::LaneReport report) {
              boost::asio::post(io, [this, id, moved = std::move(report)]() mutable {
                bridge.on_lane_report(id, std::move(moved));
              });
            }
        ),
        planner([this](engine::PlanOutcome outcome) {
          boost::asio::post(io, [this, moved = std::move(outcome)]() mutable { bridge.on_plan(std::move(moved)); });
        }),
        peers(io, peer_options(chosen, state)),
        links(io, link_options(), peers, net_metrics),
        blackbox(io, blackbox_options(chosen, state)),
        engine(
            with_recorder(with_peers(engine_options(chosen))),
            engine::Lanes(lane, &gpus),
            planner,
            [this](const engine::Event& event) { dispatcher.on_event(event); },
            engine_metrics
        ),
        clock(io, engine, net_metrics.io_watch),
        bridge(engine, clock, ::geteuid()),
        doctor(io, examination_of(chosen.gpu, chosen.nccl), ::geteuid()),
        dispatcher(
            engine,
            bridge,
            identity_of(state),
            rpc_limits(chosen),
            set_log_level,
            [this](const Holder& caller, NodeDoctor::Reply reply) { doctor.ask(caller, std::move(reply)); },
            [this](const std::optional<std::string>& job, engine::Reply<rpc::DumpAnswer> reply) {
              blackbox.dump(rpc::DumpReason::Request, job, std::move(reply));
            },
            rpc_metrics
        ),
        pages(state, engine, clock, dispatcher, registry, ::geteuid()),
        server(io, server_options(chosen), bridge, pages, bridge, net_metrics, &links),
        drain_deadline(io) {
    add_build_info(registry);
    net_metrics.io_watch.abort_above(Milliseconds{chosen.deadlines.io_turn_ms});
    bridge.connect(dispatcher, server);
    peers.connect(links, engine, clock);
    blackbox.connect(engine, clock);
    clock.after_turn([this] {
      peers.after_turn();
      go_on_draining();
    });
  }

  engine::EngineOptions with_peers(engine::EngineOptions chosen) {
    chosen.other_nodes = !options.peer.listen.empty();
    if (chosen.other_nodes || options.gpu.peer_access == "off") {
      chosen.make_peers = [this](engine::JobNumber job, const engine::AttachRequest& first) {
        return peers.make_port(job, first);
      };
    }
    return chosen;
  }

  engine::EngineOptions with_recorder(engine::EngineOptions chosen) {
    chosen.keep_dump = [this](engine::FlightDump dump) { blackbox.on_failure(std::move(dump)); };
    return chosen;
  }

  void go_on_draining();
  void halt();
  void close_everything();

  Options options;
  UniqueFd life;  ///< held to the last: the successor waits until the lane is joined
  DaemonState state;
  prometheus::Registry registry;
  engine::EngineMetrics engine_metrics;
  rpc::RpcMetrics rpc_metrics;
  net::NetMetrics net_metrics;
  boost::asio::io_context io{1};
  device::HostLane lane;
  GpuWorkers gpus;
  engine::ThreadPlanner planner;
  PeerBridge peers;
  net::PeerLinks links;
  Blackbox blackbox;
  engine::Engine engine;
  EngineClock clock;
  Bridge bridge;
  NodeDoctor doctor;
  rpc::Dispatcher dispatcher;
  Pages pages;
  net::Server server;
  boost::asio::steady_timer drain_deadline;
  std::function<void()> on_closed;
  bool halted = false;
  bool closed = false;
};

/// After every turn.
void Application::Parts::go_on_draining() {
  if (state.draining && !halted && engine.idle()) {
    halted = true;
    engine.halt();
  }
  if (halted && engine.at_rest()) {
    close_everything();
  }
}

/// Gradients must be at rest when the connection of their rank closes, so the step in flight ends before the
/// connections do.
void Application::Parts::halt() {
  if (!halted) {
    halted = true;
    clock.turn("the end of the drain", [this] { engine.halt(); });
  }
}

void Application::Parts::close_everything() {
  if (closed) {
    return;
  }
  closed = true;
  if (!engine.idle()) {
    spdlog::error("drain: closing beside a lane that hangs; nothing of it is recorded");
  }
  // Not from inside an event: the turn that ends the last step still has replies to hand over.
  boost::asio::post(io, [this] {
    drain_deadline.cancel();
    clock.stop();
    doctor.stop();
    blackbox.stop();
    peers.stop();
    links.close_all();
    server.close_all();
    if (on_closed) {
      on_closed();
    }
  });
}

Application::Application(const Options& options) : parts_(std::make_unique<Parts>(options)) {}

Application::~Application() {
  parts_->io.stop();  // connections left over must not call into parts that are being destroyed
}

boost::asio::io_context& Application::io() { return parts_->io; }

std::optional<net::StartFailure> Application::start() {
  // The daemon before this one may drain for this long; this one waits until its lane is joined.
  constexpr Milliseconds kMore{5'000};
  const Milliseconds patience =
      Milliseconds{parts_->options.deadlines.drain_ms} + engine::EngineDeadlines{}.lane + kMore;
  auto life = net::hold_socket(parts_->options.server.socket, patience, told_to_stop);
  if (auto* failure = std::get_if<net::StartFailure>(&life)) {
    return *failure;
  }
  parts_->life = std::get<UniqueFd>(std::move(life));
  if (auto failure = parts_->server.start()) {
    return failure;
  }
  parts_->state.serving = true;
  const std::string health = parts_->server.health_endpoint();
  const std::string tcp = parts_->server.tcp_endpoint();
  const std::string peer = parts_->server.peer_endpoint();
  parts_->peers.use_endpoint(peer);
  spdlog::info(
      "serving version={} incarnation={} pid={} socket={} health={} tcp={} peer={} threads={}",
      kVersion,
      parts_->state.incarnation,
      ::getpid(),
      parts_->options.server.socket,
      health.empty() ? "off" : health,
      tcp.empty() ? "off" : tcp,
      peer.empty() ? "off" : peer,
      parts_->lane.threads()
  );
  return std::nullopt;
}

void Application::run() { parts_->io.run(); }

void Application::drain() {
  Parts& parts = *parts_;
  if (parts.state.draining) {
    parts.halt();
    return;
  }
  // 1. not ready, no new work; 2. steps in flight; 3. the lane at rest; 4. connections; 5. the loop runs out of work.
  parts.state.draining = true;
  parts.server.stop_accepting();
  parts.clock.turn("drain", [&] { parts.engine.drain(); });
  const Milliseconds grace{parts.options.deadlines.drain_ms};
  parts.drain_deadline.expires_after(grace);
  parts.drain_deadline.async_wait([&parts, grace](boost::system::error_code error) {
    if (!error && !parts.halted) {
      spdlog::warn("drain: a step did not finish within drain_ms={}; closing", grace.count());
      parts.halt();
    }
  });
}

void Application::dump_flights() {
  Parts& parts = *parts_;
  parts.clock.turn("SIGUSR1", [&parts] {
    parts.blackbox.dump(rpc::DumpReason::Signal, std::nullopt, [](const Result<rpc::DumpAnswer>& dumped) {
      if (dumped) {
        spdlog::info("SIGUSR1: {} flight recorders are dumped", dumped->dumps.size());
      } else {
        spdlog::warn("SIGUSR1: no flight recorder is dumped: {}", dumped.error().message);
      }
    });
  });
}

void Application::on_closed(std::function<void()> hook) { parts_->on_closed = std::move(hook); }

// Nothing is recorded from here on, and connections close when the lane is joined.
void Application::stop_at_once() {
  parts_->engine.halt();
  parts_->io.stop();
}

bool Application::draining() const { return parts_->state.draining; }

}  // namespace gradsync::app
