#include "app/cli/command_line.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/configuration.hpp"
#include "app/manual/man_pages.hpp"

#include <fmt/chrono.h>

#include <charconv>
#include <ctime>
#include <iostream>

namespace gradsync::app {

namespace {

/// The day of SOURCE_DATE_EPOCH, which builds of packages set; a page has no date otherwise, so that its bytes follow
/// from the sources alone.
std::string source_date() {
  const Environment environment = process_environment();
  const auto variable = environment.find("SOURCE_DATE_EPOCH");
  if (variable == environment.end()) {
    return "";
  }
  const std::string& text = variable->second;
  std::time_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  std::tm day{};
  if (error != std::errc{} || end != text.data() + text.size() || ::gmtime_r(&seconds, &day) == nullptr) {
    return "";
  }
  return fmt::format("{:%Y-%m-%d}", day);
}

}  // namespace

int execute(const ManCommand& command) {
  if (command.page == "gradsyncd") {
    std::cout << command_page(describe_command_line(), source_date());
    return kExitOk;
  }
  const ConfigurationInputs nothing{};  // as the daemon of the machine has it
  std::cout << settings_page(resolve_configuration(nothing).value().options, source_date());
  return kExitOk;
}

}  // namespace gradsync::app
