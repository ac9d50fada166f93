// Any text as a configuration file, as the value of a variable of the environment and as its name. What is taken
// must be printed as a file that says the same.

#include "app/configuration.hpp"
#include "app/configuration_file.hpp"
#include "app/option_fields.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void check_print(const app::Options& options) {
  const std::string printed = app::print_configuration({options, {}}, false);
  app::Options again;
  require(app::read_configuration_text(printed, "printed", again).has_value());
  require(app::print_configuration({again, {}}, false) == printed);
}

void check_file(const std::string& text) {
  app::Options options;
  if (app::read_configuration_text(text, "file", options)) {
    check_print(options);
  }
}

void check_environment(const std::string& text) {
  static const std::vector<std::string> kVariables = [] {
    std::vector<std::string> names;
    app::Options options;
    app::for_each_field(options, [&](std::string_view section, std::string_view key, auto&, const app::FieldRule&) {
      names.push_back(app::environment_name(section, key));
    });
    return names;
  }();
  app::ConfigurationInputs inputs;
  inputs.environment = {{kVariables[text.size() % kVariables.size()], text}, {text, "1"}};
  const auto configuration = app::resolve_configuration(inputs);
  if (configuration) {
    check_print(configuration->options);
  } else {
    require(configuration.error().code == ErrorCode::InvalidParams);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_file(text);
  check_environment(text);
  return 0;
}
