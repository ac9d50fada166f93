#pragma once
// What a command that threw is reported as.

#include "device/lane.hpp"

namespace gradsync::device {

/// To be called where an exception is caught; `about`: the ids of the command.
[[nodiscard]] Failed failure_by_exception(Failed about);

}  // namespace gradsync::device
