#pragma once
// Time enters the engine as values. No layer below `app` reads a clock.

#include <chrono>

namespace gradsync {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
using Milliseconds = std::chrono::milliseconds;

[[nodiscard]] inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace gradsync
