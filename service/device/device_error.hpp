#pragma once
// What is thrown on a lane; the lane turns it into a `Failed` report at one place.

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

}  // namespace gradsync::device
