// Any text as a configuration file, as the value of a variable of the environment and as its name, as the value of a
// flag, and behind a `$` as a command line (arguments are lines). What is taken must be printed as a file that says the
// same.

#include "app/cli/command_line.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/configuration.hpp"
#include "app/config/configuration_file.hpp"
#include "app/config/option_fields.hpp"
#include "fuzz/fuzz.hpp"

#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

void check_print(const app::Options& options) {
  const std::string printed = app::print_configuration({options, {}}, false);
  app::Options again;
  REQUIRE(app::read_configuration_text(printed, "printed", again).has_value());
  REQUIRE(app::print_configuration({again, {}}, false) == printed);
}

void check_file(const std::string& text) {
  app::Options options;
  if (app::read_configuration_text(text, "file", options)) {
    check_print(options);
  }
}

struct Names {
  std::vector<std::string> variables;
  std::vector<std::string> flags;
};

const Names& names() {
  static const Names kNames = [] {
    Names names;
    app::Options options;
    app::for_each_field(options, [&](std::string_view section, std::string_view key, auto&, const app::FieldRule&) {
      names.variables.push_back(app::environment_name(section, key));
      names.flags.push_back(std::string(section) + "." + std::string(key));
    });
    return names;
  }();
  return kNames;
}

void check_resolved(const app::ConfigurationInputs& inputs) {
  const auto configuration = app::resolve_configuration(inputs);
  if (configuration) {
    check_print(configuration->options);
  } else {
    REQUIRE(configuration.error().code == ErrorCode::InvalidParams);
  }
}

/// Every setting in turn: the first byte picks it.
void check_setting(const std::string& text) {
  const std::size_t index = text.empty() ? 0 : static_cast<unsigned char>(text.front()) % names().flags.size();
  const std::string value = text.substr(text.empty() ? 0 : 1);
  app::ConfigurationInputs inputs;
  inputs.environment = {{names().variables[index], value}, {text, "1"}};
  check_resolved(inputs);
  inputs.environment = {{names().variables[index], value}};
  check_resolved(inputs);
  inputs.flags = {{names().flags[index], value}};
  check_resolved(inputs);
}

void check_command_line(std::string_view text) {
  std::vector<std::string> words{"gradsyncd"};
  while (!text.empty() && words.size() < 32) {
    words.emplace_back(fuzz::next_piece(text, '\n'));
    words.back() = words.back().c_str();  // an argument ends at a NUL
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(word.c_str());
  }
  const auto parsed = app::parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  if (const int* code = std::get_if<int>(&parsed)) {
    REQUIRE(*code == app::kExitOk || *code == app::kExitUsage);
  } else if (const auto* serve = std::get_if<app::ServeCommand>(&std::get<app::Command>(parsed))) {
    app::ConfigurationInputs inputs;
    inputs.flags = serve->settings.flags;
    check_resolved(inputs);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Help and complaints; libFuzzer writes past the streams.
  static const bool kQuiet = (std::cout.rdbuf(nullptr), std::cerr.rdbuf(nullptr), true);
  static_cast<void>(kQuiet);
  const std::string text(fuzz::text_of(data, size));
  if (text.starts_with("$")) {
    check_command_line(text.substr(1));
    return 0;
  }
  check_file(text);
  check_setting(text);
  return 0;
}
