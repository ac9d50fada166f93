#pragma once
// The two connections of a wire to each other node, and what runs them: its owner runs `io`, on the thread of the wire.
// Behind a fault of one of them none is read or written any more.
//
// Internal to device/wire, and to simulations, which run `io` when a message arrives at their virtual time.

#include "device/wire/wire_reader.hpp"
#include "device/wire/wire_watch.hpp"
#include "device/wire/wire_writer.hpp"

#include <map>
#include <memory>
#include <vector>

namespace gradsync::device {

struct WireConnection {
  explicit WireConnection(WireEnd given) : end(std::move(given)) {}

  /// True: it has to be looked at again.
  bool look();

  WireEnd end;
  WireWriter writer{end};
  WireReader reader{end, writer};
  WireWatch watch;
};

class WireConnections {
 public:
  /// `watch` is called, on the thread that runs `io`, when an end begins to wait or to hold: from then on the owner
  /// calls `look` once in a while. Throws DeviceError where a socket cannot be used.
  WireConnections(std::vector<NodeConnection> connections, std::function<void()> wake, std::function<void()> watch);
  WireConnections(const WireConnections&) = delete;
  WireConnections& operator=(const WireConnections&) = delete;

  // any thread
  [[nodiscard]] boost::asio::io_context& io() { return io_; }

  [[nodiscard]] WireOutcome& outcome() { return outcome_; }

  [[nodiscard]] const WireOutcome& outcome() const { return outcome_; }

  /// Throws DeviceError where there is none to that node.
  [[nodiscard]] WireConnection& of(plan::TransferNode node, plan::Payload payload) const;

  [[nodiscard]] std::vector<WireTotals> totals() const;

  // the thread that runs `io`
  void start();
  void fail(WireFault fault);
  /// Looks at each connection (wire_watch.hpp). True: that has to be done again.
  bool look();

 private:
  struct Peer {
    WireCounts counts;
    std::unique_ptr<WireConnection> partials;
    std::unique_ptr<WireConnection> results;
  };

  void take(NodeConnection connection);
  [[nodiscard]] std::unique_ptr<WireConnection> make(plan::TransferNode node, plan::Payload payload, UniqueFd fd);

  WireOutcome outcome_;
  std::function<void()> watch_;
  boost::asio::io_context io_{1};
  std::map<plan::TransferNode, Peer> peers_;
};

}  // namespace gradsync::device
