#include "base/log.hpp"

#include "base/older_runtime.hpp"
#include "base/text/text.hpp"

#include <fmt/chrono.h>
#include <spdlog/async.h>
#include <spdlog/details/os.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <unistd.h>

#include <memory>

namespace gradsync {

namespace {

/// Messages quote names that came from outside: whatever they hold, the line stays one JSON object in UTF-8.
void append_json_escaped(spdlog::memory_buf_t& out, spdlog::string_view_t text) {
  constexpr spdlog::string_view_t kReplacement = "\xEF\xBF\xBD";
  for (std::size_t i = 0; i < text.size();) {
    const char c = text.data()[i];
    const std::size_t length = utf8_length({text.data(), text.size()}, i);
    if (length == 0) {
      out.append(kReplacement.begin(), kReplacement.end());
    } else if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out.append(text.data() + i, text.data() + i + length);
    }
    i += length == 0 ? 1 : length;
  }
}

/// One JSON object per line; spdlog's own pattern cannot escape the message.
class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto since_epoch = message.time.time_since_epoch();
    const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
    const std::tm utc = spdlog::details::os::gmtime(std::chrono::system_clock::to_time_t(message.time));
    fmt::format_to(std::back_inserter(out), "{{\"ts\":\"{:%Y-%m-%dT%H:%M:%S}.{:03}Z\",\"level\":\"", utc, millis);
    append_json_escaped(out, spdlog::level::to_string_view(message.level));
    fmt::format_to(std::back_inserter(out), "\",\"logger\":\"");
    append_json_escaped(out, message.logger_name);
    fmt::format_to(std::back_inserter(out), "\",\"msg\":\"");
    append_json_escaped(out, message.payload);
    fmt::format_to(std::back_inserter(out), "\"}}\n");
  }

  [[nodiscard]] std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

constexpr std::size_t kQueueLines = 8192;

}  // namespace

void start_logging(LogFormat format, const std::string& level) {
  spdlog::init_thread_pool(kQueueLines, 1);
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::async_logger>(
      "gradsyncd", sink, spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest
  );
  const bool json = format == LogFormat::Json || (format == LogFormat::Auto && ::isatty(STDERR_FILENO) == 0);
  if (json) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_pattern("%H:%M:%S.%e %^%-5l%$ %v");
  }
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(logger);
  const auto previous = set_log_level(level);
  static_cast<void>(previous);  // the options reader checked the name
}

void stop_logging() {
  spdlog::shutdown();
  // spdlog has no default logger left then, and the next line from a late destructor would crash.
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("gradsyncd", std::make_shared<spdlog::sinks::null_sink_mt>())
  );
}

Result<std::string> set_log_level(const std::string& level) {
  if (level != "trace" && level != "debug" && level != "info" && level != "warn" && level != "error") {
    return invalid_params("level", "log level '" + level + "' is unknown", "use trace, debug, info, warn or error");
  }
  const auto previous = spdlog::level::to_string_view(spdlog::get_level());
  std::string name(previous.data(), previous.size());
  if (name == "warning") {
    name = "warn";
  }
  spdlog::set_level(level == "error" ? spdlog::level::err : spdlog::level::from_str(level));
  return name;
}

}  // namespace gradsync
