#include "device/wire/wire_connections.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::device {

bool WireConnection::look() {
  const WireLook now = reader.look();
  switch (watch.look(now)) {
    case WireWatch::Advice::Nothing:
      break;
    case WireWatch::Advice::Ask:
      writer.say(WireSignal::AreYouThere);
      break;
    case WireWatch::Advice::Tell:
      writer.say(WireSignal::Here);
      break;
    case WireWatch::Advice::GiveUp:
      end.fail(fmt::format(
          "no byte came over {} for {} s, though the other node was asked whether it is there{}",
          end.words(),
          WireWatch::kLooksToGiveUp,
          reader.where_it_was()
      ));
      break;
  }
  return !end.stopped && (now.waits || now.holds);
}

WireConnections::WireConnections(
    std::vector<NodeConnection> connections, std::function<void()> wake, std::function<void()> watch
)
    : outcome_(std::move(wake)), watch_(std::move(watch)) {
  for (NodeConnection& connection : connections) {
    take(std::move(connection));
  }
}

void WireConnections::take(NodeConnection connection) {
  const plan::TransferNode node = connection.node;
  const auto [place, added] = peers_.try_emplace(node);
  if (!added) {
    throw DeviceError(fmt::format("node {} has connections already", node));
  }
  place->second.partials = make(node, plan::Payload::Partial, std::move(connection.partials));
  place->second.results = make(node, plan::Payload::Result, std::move(connection.results));
}

std::unique_ptr<WireConnection> WireConnections::make(plan::TransferNode node, plan::Payload payload, UniqueFd fd) {
  const char* what = payload == plan::Payload::Partial ? "partial sums" : "results";
  WireSocket socket = take_socket(io_, std::move(fd), fmt::format("the connection of {} to node {}", what, node));
  const std::string addresses = addresses_of(socket);
  return std::make_unique<WireConnection>(WireEnd{
      std::move(socket),
      payload,
      peers_.at(node).counts,
      outcome_,
      [this, node, addresses](const std::string& why) {
        fail({node, why + addresses});
      },
      watch_,
  });
}

WireConnection& WireConnections::of(plan::TransferNode node, plan::Payload payload) const {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) {
    throw DeviceError(fmt::format("there is no connection to node {}", node));
  }
  const auto& [counts, partials, results] = peer->second;
  return payload == plan::Payload::Partial ? *partials : *results;
}

void WireConnections::start() {
  for (auto& [node, peer] : peers_) {
    peer.partials->reader.start();
    peer.results->reader.start();
  }
}

bool WireConnections::look() {
  bool again = false;
  for (auto& [node, peer] : peers_) {
    again = peer.partials->look() || again;
    again = peer.results->look() || again;
  }
  return again;
}

/// Stops first, so that the owner who hears of the fault finds that nothing is read or written any more.
void WireConnections::fail(WireFault fault) {
  for (auto& [node, peer] : peers_) {
    peer.partials->end.stop();
    peer.results->end.stop();
  }
  outcome_.fail(std::move(fault));
}

std::vector<WireTotals> WireConnections::totals() const {
  std::vector<WireTotals> totals;
  for (const auto& [node, peer] : peers_) {
    totals.push_back({
        node,
        peer.counts.sent.load(std::memory_order_relaxed),
        peer.counts.received.load(std::memory_order_relaxed),
    });
  }
  return totals;
}

}  // namespace gradsync::device
