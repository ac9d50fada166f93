#pragma once
// What carries the messages of a transfer program (plan/transfer) between the nodes of one plan. It knows of no tensor
// and adds nothing: a message is some bytes of staging memory at either end, named by what both ends count alike.
//
// To each other node there are two connections, one for each payload, because partial sums and results of a link are
// two sequences: a result must not wait behind a partial sum that the receiver has no room for yet.
//
// Invariants: on one connection messages arrive in the order in which they were sent, and are to be received in that
// order, each with the size that it was sent with. A message that nobody has asked for yet stays in the connection.
// What comes with another name, size or attempt is never written into memory that was given to `receive`: it is a
// fault. A fault is final: nothing is sent or received any more, and nothing else of this plan can be.
//
// A fault ends nothing at the other ends: connections are closed by the destructor. So other nodes hear from the
// coordinator whose fault it was, before they could take it for that of this node.
//
// Threads: its owner calls it from one thread. `wake` is called on the wire's thread when there is something new behind
// the last `take_done`, or a fault, and may be called before `make_socket_wire` has returned. It must only wake the
// owner, and must not throw.

#include "device/lane.hpp"
#include "plan/transfer/node_transfer.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gradsync::device {

struct WireMessage {
  plan::TransferNode peer = 0;  ///< the other end
  plan::Payload payload = plan::Payload::Partial;
  Tag tag = 0;  ///< the attempt
  std::uint32_t bucket = 0;
  std::uint32_t number = 0;  ///< as TransferMessage::number
  friend bool operator==(const WireMessage&, const WireMessage&) = default;
};

/// A message has arrived as a whole, or its bytes are not read any more.
struct WireDone {
  WireMessage message;
  bool received = false;
};

struct WireFault {
  std::optional<plan::TransferNode> peer;  ///< none: the fault is this daemon's own
  std::string message;                     ///< without the name of the node, which the engine knows
};

/// Bytes that went over the connections to one node, headers too, since they exist.
struct WireTotals {
  plan::TransferNode peer = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
};

class Wire {
 public:
  /// Behind it nothing touches memory that was given to it. It waits for no other node, but for a `wake` that runs.
  virtual ~Wire() = default;

  /// The bytes must stay as they are until the message is done, or the wire is gone. Throws DeviceError where there is
  /// no connection to that node. Behind a fault nothing is taken any more.
  virtual void send(const WireMessage& message, std::span<const std::byte> bytes) = 0;
  virtual void receive(const WireMessage& message, std::span<std::byte> bytes) = 0;

  /// Appends what is done since the last call.
  virtual void take_done(std::vector<WireDone>& done) = 0;

  /// The first fault. What was done before it is given out all the same.
  [[nodiscard]] virtual std::optional<WireFault> fault() const = 0;

  [[nodiscard]] virtual std::vector<WireTotals> totals() const = 0;
};

/// Makes the wire of a plan, which owns the connections from then on.
using MakeWire =
    std::function<std::unique_ptr<Wire>(std::vector<NodeConnection> connections, std::function<void()> wake)>;

/// Over connected stream sockets (docs/adr/0034). Its thread is named "wire". Throws DeviceError where a socket cannot
/// be used.
[[nodiscard]] std::unique_ptr<Wire> make_socket_wire(
    std::vector<NodeConnection> connections, std::function<void()> wake
);

}  // namespace gradsync::device
