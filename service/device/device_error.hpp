#pragma once
// The exception that code on a lane throws. The lane turns it into a `Failed` report at one place.

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradsync::device {

class DeviceError : public std::runtime_error {
 public:
  enum class Kind {
    Failed,
    Aborted,
    OutOfMemory,
    DeviceLost,   ///< every later call on the device fails too, until this process has ended
    WireLost,     ///< the connections of the plan are of no use any more
    Unsupported,  ///< this machine cannot do what the plan asks for; the hint says what to change
  };

  explicit DeviceError(const std::string& message, Kind kind = Kind::Failed)
      : std::runtime_error(message), kind_(kind) {}

  /// `hint`: what to do about it.
  DeviceError(const std::string& message, std::string hint, Kind kind = Kind::Failed)
      : std::runtime_error(message), kind_(kind), hint_(std::move(hint)) {}

  /// The connection to `node`, or to some node.
  [[nodiscard]] static DeviceError wire_lost(const std::string& message, std::optional<std::uint32_t> node) {
    DeviceError error(message, Kind::WireLost);
    error.node_ = node;
    return error;
  }

  [[nodiscard]] Kind kind() const { return kind_; }

  [[nodiscard]] const std::string& hint() const { return hint_; }

  [[nodiscard]] std::optional<std::uint32_t> node() const { return node_; }

 private:
  Kind kind_;
  std::string hint_;
  std::optional<std::uint32_t> node_;
};

/// For checks of a layout. The message is made only where it is needed: there may be millions of parts or holders.
template <typename Message>
void check_fit(bool fits, const Message& message) {
  if (!fits) {
    throw DeviceError("the plan does not fit: " + message());
  }
}

}  // namespace gradsync::device
