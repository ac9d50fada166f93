#include "net/limits/limited_log.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradsync::net {

void LimitedLog::write(Kind kind, spdlog::level::level_enum level, std::string_view line) {
  Line& limited = lines_[static_cast<std::size_t>(kind)];
  limited.level = level;
  if (const auto text = limited.line.say(line, std::chrono::steady_clock::now())) {
    spdlog::log(level, "{}", *text);
  } else {
    arm();
  }
}

void LimitedLog::stop() {
  stopped_ = true;
  timer_.cancel();
  write_rests(TimePoint::max());
}

void LimitedLog::write_rests(TimePoint until) {
  for (Line& limited : lines_) {
    if (const auto due = limited.line.due(); due && *due <= until) {
      spdlog::log(limited.level, "{}", limited.line.rest(std::chrono::steady_clock::now()));
    }
  }
}

void LimitedLog::arm() {
  if (armed_ || stopped_) {
    return;
  }
  std::optional<TimePoint> next;
  for (const Line& limited : lines_) {
    if (const auto due = limited.line.due(); due && (!next || *due < *next)) {
      next = due;
    }
  }
  if (!next) {
    return;
  }
  armed_ = true;
  timer_.expires_at(*next);
  timer_.async_wait([self = weak_from_this()](boost::system::error_code error) {
    if (const auto log = self.lock(); log && !error) {
      log->armed_ = false;
      log->write_rests(std::chrono::steady_clock::now());
      log->arm();
    }
  });
}

}  // namespace gradsync::net
