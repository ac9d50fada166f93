#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"

#include <iostream>

namespace gradsync::app {

int execute(const CheckConfigCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  std::cout << "ok\n";
  return kExitOk;
}

int execute(const ConfigShowCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  std::cout << print_configuration(*configuration, command.origin);
  return kExitOk;
}

}  // namespace gradsync::app
