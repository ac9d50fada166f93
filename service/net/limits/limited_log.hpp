#pragma once
// The lines of the log that peers can cause as often as they like, and the timer that writes how many were left out
// when they end. Thread: io only. Internal to net.

#include "net/limits/repeated_line.hpp"
#include "net/socket/asio_types.hpp"

#include <spdlog/common.h>

#include <array>
#include <memory>
#include <string_view>

namespace gradsync::net {

class LimitedLog : public std::enable_shared_from_this<LimitedLog> {
 public:
  using Kind = RepeatedLine::Kind;

  explicit LimitedLog(const Executor& executor) : timer_(executor) {}

  void write(Kind kind, spdlog::level::level_enum level, std::string_view line);
  /// Writes what was left out; from now on nothing waits.
  void stop();

 private:
  struct Line {
    RepeatedLine line;
    spdlog::level::level_enum level = spdlog::level::warn;
  };

  void write_rests(TimePoint until);
  void arm();

  std::array<Line, static_cast<std::size_t>(Kind::RequestWaited) + 1> lines_;
  Timer timer_;
  bool armed_ = false;
  bool stopped_ = false;
};

}  // namespace gradsync::net
