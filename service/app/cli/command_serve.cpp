#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/config/socket_places.hpp"
#include "app/daemon/application.hpp"
#include "app/daemon/signals.hpp"
#include "app/daemon/start_failure.hpp"
#include "app/daemon/systemd_notifier.hpp"
#include "base/descriptors.hpp"
#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <csignal>
#include <iostream>

namespace gradsync::app {

namespace {

/// To the person who started it on a terminal, who would have to find it in the log line otherwise.
void say_where(const std::string& socket) {
  const Caller caller = this_caller();
  const bool searched = socket == socket_places(process_environment(), caller).front();
  const std::string line =
      searched ? fmt::format("gradsyncd listens at {}, where programs of uid {} look for it\n", socket, caller.uid)
               : fmt::format("gradsyncd listens at {}; programs find it by GRADSYNC_ADDRESS=unix:{}\n", socket, socket);
  std::cerr << line << std::flush;  // at once: the log writes to the same terminal
}

}  // namespace

int execute(const ServeCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  const std::string& socket = configuration->options.server.socket;
  if (const auto refused = make_private_place(socket, ::geteuid())) {
    complain(refused->message, refused->hint);
    return kExitConfiguration;
  }
  const std::vector<int> handled{SIGTERM, SIGINT, SIGUSR1};
  block_signals(handled);  // before the first thread
  start_logging_as(configuration->options.log);
  int code = kExitOk;
  {
    raise_descriptor_limit();
    Application application{configuration->options};
    SystemdNotifier notifier{application.io(), process_environment()};
    Signals signals{application.io(), handled, [&](int number, bool) {
                      if (number == SIGUSR1) {
                        application.dump_flights();
                      } else if (application.draining()) {
                        spdlog::warn("stopping at once: second signal {}", number);
                        application.stop_at_once();
                      } else {
                        spdlog::info("draining: signal {}", number);
                        notifier.tell_stopping();
                        application.drain();
                      }
                    }};
    if (const auto failure = application.start()) {
      complain(failure->message, failure->hint);
      code = exit_code_of(*failure);
    } else {
      if (::isatty(STDERR_FILENO) != 0) {
        say_where(socket);
      }
      notifier.tell_ready(fmt::format("serving at {}", socket));
      application.on_closed([&] {
        notifier.close();
        signals.stop();
      });
      application.run();
      spdlog::info("stopped");
    }
  }
  stop_logging();
  return code;
}

}  // namespace gradsync::app
