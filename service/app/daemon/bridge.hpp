#pragma once
// Joins net to rpc and the engine: what arrives on sockets goes to the dispatcher, what the dispatcher says goes to the
// sockets, and each event of the engine is one turn of its clock. Thread: io only.

#include "app/daemon/engine_clock.hpp"
#include "device/lane.hpp"
#include "net/server.hpp"
#include "rpc/dispatcher.hpp"

#include <memory>

namespace gradsync::app {

class Bridge final : public net::MessageHandler, public net::FdHandler, public rpc::Outbox {
 public:
  Bridge(engine::Engine& engine, EngineClock& clock, std::uint32_t own_uid)
      : engine_(engine), clock_(clock), own_uid_(own_uid) {}

  /// Both exist only after the bridge, which they are given.
  void connect(rpc::Dispatcher& dispatcher, net::Server& server) {
    dispatcher_ = &dispatcher;
    server_ = &server;
  }

  // net::MessageHandler
  void on_open(net::ConnectionId connection, const net::PeerIdentity& peer) override;
  [[nodiscard]] bool on_text(net::ConnectionId connection, std::string_view text) override;
  [[nodiscard]] bool has_more(net::ConnectionId connection) const override;
  void go_on(net::ConnectionId connection) override;
  [[nodiscard]] bool initialized(net::ConnectionId connection) override;
  void on_drained(net::ConnectionId connection) override;
  [[nodiscard]] bool on_close(net::ConnectionId connection) override;
  void on_process_exit(net::ConnectionId connection) override;
  [[nodiscard]] PostReply on_post(const net::PeerIdentity& peer, std::string_view body) override;

  // net::FdHandler
  [[nodiscard]] bool takes_descriptor(const std::string& token, const net::PeerIdentity& peer) override;
  [[nodiscard]] Result<TakenFd> on_fd_request(const std::string& token, const net::PeerIdentity& peer, UniqueFd given)
      override;
  [[nodiscard]] std::string error_line(const Error& error) override;

  // rpc::Outbox
  void send(rpc::ConnectionId connection, std::string text) override;
  [[nodiscard]] bool drained(rpc::ConnectionId connection) const override;
  void note_waiting(rpc::ConnectionId connection, std::size_t bytes) override;
  void close(rpc::ConnectionId connection, std::string reason) override;

  // what comes back from other threads
  void on_lane_report(device::LaneId lane, device::LaneReport report);
  void on_plan(engine::PlanOutcome outcome);

 private:
  [[nodiscard]] PostReply post_turn(const std::shared_ptr<rpc::PostCall>& call);
  [[nodiscard]] rpc::Peer rpc_peer(const net::PeerIdentity& peer) const;

  engine::Engine& engine_;
  EngineClock& clock_;
  std::uint32_t own_uid_;
  rpc::Dispatcher* dispatcher_ = nullptr;
  net::Server* server_ = nullptr;
};

}  // namespace gradsync::app
