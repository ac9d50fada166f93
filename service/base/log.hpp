#pragma once
// Logging: spdlog, asynchronous. When the sink is stuck the oldest line is dropped, so that a full pipe never blocks a
// step. A message is followed by `key=value` pairs. On a tty a line is text, elsewhere one JSON object.

#include "base/error.hpp"

#include <spdlog/spdlog.h>

#include <string>

namespace gradsync {

enum class LogFormat { Auto, Text, Json };

/// Starts the log thread and makes the default logger. Call once, from app.
void start_logging(LogFormat format, const std::string& level);

/// Flushes and joins the log thread. Lines logged later are dropped.
void stop_logging();

/// Returns the level before. Errors: InvalidParams for an unknown name.
[[nodiscard]] Result<std::string> set_log_level(const std::string& level);

}  // namespace gradsync
