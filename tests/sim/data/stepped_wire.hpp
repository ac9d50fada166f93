#pragma once
// The wire of the daemon without its thread: its frames, readers and writers over real sockets, which move when the
// world says so. It also watches that no more is sent than the transfer program allows.

#include "device/wire/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::device {
struct LanePlan;
}

namespace gradsync::sim {

/// What a node sends in an attempt at most, by what docs/adr/0032 says of a stream and not by its blocks. The flags of
/// each message come on top.
[[nodiscard]] std::uint64_t most_sent(const device::LanePlan& layout);

class SteppedWire final : public device::Wire {
 public:
  /// The daemon of a wire.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void on_wire(SteppedWire& wire) = 0;
    virtual void on_wire_gone(SteppedWire& wire) = 0;
    virtual void on_wish() = 0;  ///< it has something to do
    virtual void on_sent_too_much(std::string what) = 0;
  };

  SteppedWire(
      Host& host, std::vector<device::NodeConnection> connections, std::function<void()> wake, std::uint64_t most
  );
  ~SteppedWire() override;
  SteppedWire(const SteppedWire&) = delete;
  SteppedWire& operator=(const SteppedWire&) = delete;

  void send(const device::WireMessage& message, std::span<const std::byte> bytes) override;
  void receive(const device::WireMessage& message, std::span<std::byte> bytes) override;
  void take_done(std::vector<device::WireDone>& done) override;
  [[nodiscard]] std::optional<device::WireFault> fault() const override;
  [[nodiscard]] std::vector<device::WireTotals> totals() const override;

  /// What the sockets have and take, until nothing moves.
  void run();

 private:
  struct Moving;
  Host& host_;
  std::unique_ptr<Moving> moving_;
};

}  // namespace gradsync::sim
