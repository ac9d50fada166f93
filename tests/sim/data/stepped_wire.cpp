#include "sim/data/stepped_wire.hpp"

#include "device/lane.hpp"
#include "device/wire/wire_connections.hpp"
#include "plan/transfer/node_transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <variant>

namespace gradsync::sim {

namespace {

std::uint64_t most_of(const plan::BucketTransfer& bucket, const plan::TransferStream& stream, plan::TransferNode node) {
  const std::uint64_t partial = plan::size_of(bucket.partial);
  const std::uint64_t result = plan::size_of(bucket.result);
  const std::uint64_t nodes = stream.destinations.size();
  if (!std::ranges::binary_search(stream.destinations, node)) {
    return std::ranges::binary_search(stream.sources, node) ? stream.elements * partial : 0;
  }
  const std::uint64_t results = result * (nodes - 1);
  const std::uint64_t slack = plan::kTransferUnit * (std::max(results, partial) - std::min(results, partial));
  return (stream.elements * (partial + result) * (nodes - 1) + nodes - 1) / nodes + slack;
}

}  // namespace

std::uint64_t most_sent(const device::LanePlan& layout) {
  std::uint64_t most = 0;
  for (const plan::BucketTransfer& bucket : layout.nodes.transfers) {
    for (const plan::TransferStream& stream : bucket.streams) {
      most += most_of(bucket, stream, layout.nodes.node);
    }
    for (const plan::TransferMessage& message : plan::transfer_of_node(bucket, layout.nodes.node).sends) {
      most += (bucket.blocks[message.block].pieces + 7) / 8;  // the flags
    }
  }
  return most;
}

struct SteppedWire::Moving {
  struct Wish {
    device::WireConnection* connection = nullptr;
    device::WireMessage message;
    std::variant<std::span<const std::byte>, std::span<std::byte>> bytes;
  };

  device::WireConnections connections;
  std::vector<Wish> wishes = {};
  bool started = false;
  std::uint64_t most = 0;
  std::map<device::Tag, std::uint64_t> sent = {};  ///< bytes, by attempt
};

SteppedWire::SteppedWire(
    Host& host, std::vector<device::NodeConnection> connections, std::function<void()> wake, std::uint64_t most
)
    : host_(host), moving_(new Moving{{std::move(connections), std::move(wake), [] {}}}) {
  moving_->most = most;
  host_.on_wire(*this);
  host_.on_wish();
}

SteppedWire::~SteppedWire() { host_.on_wire_gone(*this); }

void SteppedWire::send(const device::WireMessage& message, std::span<const std::byte> bytes) {
  moving_->wishes.push_back({&moving_->connections.of(message.peer, message.payload), message, bytes});
  if (std::uint64_t& sent = moving_->sent[message.tag]; (sent += bytes.size()) > moving_->most) {
    host_.on_sent_too_much(fmt::format(
        "{} bytes of attempt {} are sent, and its transfer program allows {}", sent, message.tag, moving_->most
    ));
  }
  host_.on_wish();
}

void SteppedWire::receive(const device::WireMessage& message, std::span<std::byte> bytes) {
  moving_->wishes.push_back({&moving_->connections.of(message.peer, message.payload), message, bytes});
  host_.on_wish();
}

void SteppedWire::take_done(std::vector<device::WireDone>& done) { moving_->connections.outcome().take(done); }

std::optional<device::WireFault> SteppedWire::fault() const { return moving_->connections.outcome().fault(); }

std::vector<device::WireTotals> SteppedWire::totals() const { return moving_->connections.totals(); }

void SteppedWire::run() {
  if (!std::exchange(moving_->started, true)) {
    moving_->connections.start();
  }
  for (const Moving::Wish& wish : std::exchange(moving_->wishes, {})) {
    if (const auto* sent = std::get_if<std::span<const std::byte>>(&wish.bytes)) {
      wish.connection->writer.send(wish.message, *sent);
    } else {
      wish.connection->reader.receive(wish.message, std::get<std::span<std::byte>>(wish.bytes));
    }
  }
  boost::asio::io_context& io = moving_->connections.io();
  do {
    io.restart();
  } while (io.poll() > 0);
}

}  // namespace gradsync::sim
