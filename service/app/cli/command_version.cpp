#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "base/version.hpp"

#include <fmt/format.h>

#include <iostream>

namespace gradsync::app {

int execute(const VersionCommand& command) {
  if (command.json) {
    std::cout << fmt::format(R"({{"name":"gradsyncd","version":"{}","protocol":{}}})", kVersion, kProtocolVersion)
              << "\n";
  } else {
    std::cout << fmt::format("gradsyncd {} (protocol {})\n", kVersion, kProtocolVersion);
  }
  return kExitOk;
}

}  // namespace gradsync::app
