#pragma once
// A line of the log that a peer can cause as often as it likes: written once in `kEvery`, with the number of those that
// were left out. Pure: the clock is a parameter. Thread: io only. Internal to net.

#include "base/clock.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gradsync::net {

class RepeatedLine {
 public:
  /// Lines of one kind share a place in the log.
  enum class Kind : std::uint8_t {
    RefusedUid,
    RefusedToken,
    RefusedLimit,
    Exhausted,
    SlowReader,
    Descriptors,
    HalfSent,
    ShareUsedUp,
    NotEnded,
    NotInitialized,
    RequestWaited,
  };

  static constexpr std::chrono::seconds kEvery{10};

  /// What is to be written; nothing: the line is left out, and counted.
  [[nodiscard]] std::optional<std::string> say(std::string_view line, TimePoint now) {
    if (said_ && now - *said_ < kEvery) {
      ++left_out_;
      last_ = line;
      return std::nullopt;
    }
    said_ = now;
    const std::uint64_t left_out = std::exchange(left_out_, 0);
    return left_out == 0 ? std::string(line) : fmt::format("{} (and {} more since the last such line)", line, left_out);
  }

  /// When the number of those that were left out is to be written; nothing: none was.
  [[nodiscard]] std::optional<TimePoint> due() const {
    return left_out_ > 0 ? std::optional<TimePoint>(*said_ + kEvery) : std::nullopt;
  }

  /// What is to be written of those that were left out, once it is due.
  [[nodiscard]] std::string rest(TimePoint now) {
    said_ = now;
    const auto lines = std::exchange(left_out_, 0);
    return fmt::format("{} ({} such line{} since the last one)", last_, lines, lines == 1 ? "" : "s");
  }

 private:
  std::optional<TimePoint> said_;
  std::uint64_t left_out_ = 0;
  std::string last_;
};

}  // namespace gradsync::net
