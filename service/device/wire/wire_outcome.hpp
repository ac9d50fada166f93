#pragma once
// What a wire has to say to its owner: messages that are done, and the first fault.
//
// Thread: written by the wire's, read by its owner's. What was written to a message's memory before `add` is seen by
// the owner behind `take`.

#include "device/wire/wire.hpp"

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace gradsync::device {

class WireOutcome {
 public:
  explicit WireOutcome(std::function<void()> wake) : wake_(std::move(wake)) {}

  void add(const WireDone& done);
  void fail(WireFault fault);  ///< the first one counts

  void take(std::vector<WireDone>& done);
  [[nodiscard]] std::optional<WireFault> fault() const;

 private:
  std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::vector<WireDone> done_;
  std::optional<WireFault> fault_;
};

}  // namespace gradsync::device
