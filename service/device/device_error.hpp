#pragma once
// The exception that code on a lane throws. The lane turns it into a `Failed` report at one place.

#include <stdexcept>
#include <string>

namespace gradsync::device {

class DeviceError : public std::runtime_error {
 public:
  enum class Kind { Failed, Aborted, OutOfMemory };

  explicit DeviceError(const std::string& message, Kind kind = Kind::Failed)
      : std::runtime_error(message), kind_(kind) {}

  [[nodiscard]] Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// For checks of a layout. The message is made only where it is needed: there may be millions of parts or holders.
template <typename Message>
void check_fit(bool fits, const Message& message) {
  if (!fits) {
    throw DeviceError("the plan does not fit: " + message());
  }
}

}  // namespace gradsync::device
