#include "app/daemon/bridge.hpp"

#include "rpc/error_codes.hpp"

#include <fmt/format.h>

namespace gradsync::app {

rpc::Peer Bridge::rpc_peer(const net::PeerIdentity& peer) const {
  rpc::Peer result;
  result.local = peer.local;
  result.privileged = peer.token == net::TokenRole::Operator || (peer.local && (peer.uid == own_uid_ || peer.uid == 0));
  result.reads_only = peer.token == net::TokenRole::Reader;
  result.uid = peer.uid;
  result.pid = peer.pid;
  result.address = peer.address;
  return result;
}

void Bridge::on_open(net::ConnectionId connection, const net::PeerIdentity& peer) {
  clock_.turn("a new connection", [&] { dispatcher_->on_open(connection, rpc_peer(peer)); });
}

bool Bridge::on_text(net::ConnectionId connection, std::string_view text) {
  return clock_.turn("a message", text, [&] { return dispatcher_->on_text(connection, text); });
}

bool Bridge::has_more(net::ConnectionId connection) const { return dispatcher_->has_more(connection); }

void Bridge::go_on(net::ConnectionId connection) {
  clock_.turn("the rest of a batch", [&] { dispatcher_->go_on(connection); });
}

bool Bridge::initialized(net::ConnectionId connection) { return dispatcher_->initialized(connection); }

void Bridge::on_drained(net::ConnectionId connection) {
  clock_.turn("a drained connection", [&] { dispatcher_->on_drained(connection); });
}

bool Bridge::on_close(net::ConnectionId connection) {
  return clock_.turn("a closed connection", [&] { return dispatcher_->on_close(connection); });
}

void Bridge::on_process_exit(net::ConnectionId connection) {
  clock_.turn("the end of a process", [&] { dispatcher_->on_process_exit(connection); });
}

net::MessageHandler::PostReply Bridge::on_post(const net::PeerIdentity& peer, std::string_view body) {
  return post_turn(dispatcher_->begin_post(rpc_peer(peer), body));
}

net::MessageHandler::PostReply Bridge::post_turn(const std::shared_ptr<rpc::PostCall>& call) {
  if (!clock_.turn("a POST", [&] { return call->go_on(); })) {
    return {200, "", [this, call] { return post_turn(call); }, {}};
  }
  if (!call->reply.complete) {
    return {200, "", {}, [call](std::function<void(PostReply)> take) {
              call->reply.on_complete = [call, take = std::move(take)] {
                take({call->reply.status, std::move(call->reply.body), {}, {}});
              };
            }};
  }
  return {call->reply.status, std::move(call->reply.body), {}, {}};
}

bool Bridge::takes_descriptor(const std::string& token, const net::PeerIdentity& peer) {
  return engine_.awaits_fd(token, peer.uid, peer.pid);
}

Result<net::FdHandler::TakenFd> Bridge::on_fd_request(
    const std::string& token, const net::PeerIdentity& peer, UniqueFd given
) {
  Result<engine::TakenFd> taken =
      clock_.turn("a descriptor", [&] { return engine_.exchange_fd(token, peer.uid, peer.pid, std::move(given)); });
  if (taken.has_error()) {
    return taken.error();
  }
  return TakenFd{std::move(taken->fd), taken->size_bytes};
}

std::string Bridge::error_line(const Error& error) { return fmt::format("{{\"error\":{}}}", rpc::error_json(error)); }

void Bridge::send(rpc::ConnectionId connection, std::string text) { server_->send(connection, std::move(text)); }

bool Bridge::drained(rpc::ConnectionId connection) const { return server_->drained(connection); }

void Bridge::note_waiting(rpc::ConnectionId connection, std::size_t bytes) { server_->note_waiting(connection, bytes); }

void Bridge::close(rpc::ConnectionId connection, std::string reason) { server_->close(connection, std::move(reason)); }

void Bridge::on_lane_report(device::LaneId lane, device::LaneReport report) {
  clock_.turn("a report of the lane", [&] { engine_.on_lane_report(lane, std::move(report)); });
}

void Bridge::on_plan(engine::PlanOutcome outcome) {
  clock_.turn("a plan", [&] { engine_.on_plan(std::move(outcome)); });
}

}  // namespace gradsync::app
