#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/daemon/application.hpp"
#include "app/daemon/signals.hpp"
#include "app/daemon/start_failure.hpp"
#include "base/log.hpp"

#include <spdlog/spdlog.h>

#include <csignal>

namespace gradsync::app {

int execute(const ServeCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  const std::vector<int> stops{SIGTERM, SIGINT};
  block_signals(stops);  // before the first thread
  start_logging_as(configuration->options.log);
  int code = kExitOk;
  {
    Application application{configuration->options};
    Signals signals{application.io(), stops, [&](int number, bool) {
                      if (application.draining()) {
                        spdlog::warn("stopping at once: second signal {}", number);
                        application.stop_at_once();
                      } else {
                        spdlog::info("draining: signal {}", number);
                        application.drain();
                      }
                    }};
    if (const auto failure = application.start()) {
      complain(failure->message, failure->hint);
      code = exit_code_of(*failure);
    } else {
      application.on_closed([&] { signals.stop(); });
      application.run();
      spdlog::info("stopped");
    }
  }
  stop_logging();
  return code;
}

}  // namespace gradsync::app
