#pragma once
// A line of the log that a peer can cause as often as it likes: written once in `kEvery`, with the number of those that
// were left out. Thread: io only. Internal to net.

#include "base/clock.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <string_view>

namespace gradsync::net {

class RepeatedLine {
 public:
  static constexpr std::chrono::seconds kEvery{10};

  void warn(std::string_view line) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (written_ != TimePoint{} && now - written_ < kEvery) {
      ++left_out_;
      return;
    }
    if (left_out_ == 0) {
      spdlog::warn("{}", line);
    } else {
      spdlog::warn("{} (and {} more since the last such line)", line, left_out_);
    }
    written_ = now;
    left_out_ = 0;
  }

 private:
  TimePoint written_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace gradsync::net
