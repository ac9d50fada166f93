#include "app/config/settings.hpp"

#include "app/config/option_fields.hpp"
#include "app/config/option_text.hpp"
#include "app/config/socket_places.hpp"
#include "base/log.hpp"

#include <iostream>
#include <string_view>
#include <type_traits>

namespace gradsync::app {

Result<Configuration> load_settings(const SettingsSource& source) {
  const auto environment = process_environment();
  ConfigurationInputs inputs;
  if (source.environment) {
    inputs.environment = environment;
  }
  inputs.file = source.file ? source.file : default_configuration_file(environment);
  inputs.flags = source.flags;
  inputs.socket = socket_places(environment, this_caller()).front();
  return resolve_configuration(inputs);
}

std::vector<std::string> flags_of(const GpuSection& gpu, const NcclSection& nccl) {
  Options options;
  options.gpu = gpu;
  options.nccl = nccl;
  std::vector<std::string> flags;
  for_each_field(options, [&](std::string_view section, std::string_view key, const auto& field, const FieldRule&) {
    if (section != "gpu" && section != "nccl") {
      return;
    }
    flags.push_back(flag_name(section, key));
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::string>) {
      flags.push_back(field);
    } else {
      flags.push_back(toml_text(field));
    }
  });
  return flags;
}

plan::BucketSizes bucket_sizes(const EngineSection& engine) {
  return {static_cast<std::uint64_t>(engine.first_bucket_bytes), static_cast<std::uint64_t>(engine.bucket_bytes)};
}

namespace {

/// What a setting says, or beside the socket; empty: it is "off".
std::string folder_of(const std::string& chosen, std::string_view socket, std::string_view ending) {
  if (!chosen.empty()) {
    return chosen == "off" ? std::string() : chosen;
  }
  constexpr std::string_view kEnd = ".sock";
  socket.remove_suffix(socket.ends_with(kEnd) ? kEnd.size() : 0);
  return std::string(socket).append(ending);
}

}  // namespace

std::string policy_directory(const Options& options) {
  return folder_of(options.engine.policy_directory, options.server.socket, ".policies");
}

std::string blackbox_folder(const Options& options) {
  return folder_of(options.blackbox.folder, options.server.socket, ".blackbox");
}

void complain(const std::string& message, const std::string& hint) {
  std::cerr << "gradsyncd: " << message << "\n";
  if (!hint.empty()) {
    std::cerr << "  " << hint << "\n";
  }
}

void start_logging_as(const LogSection& log) {
  const LogFormat format = log.format == "text"   ? LogFormat::Text
                           : log.format == "json" ? LogFormat::Json
                                                  : LogFormat::Auto;
  start_logging(format, log.level);
}

}  // namespace gradsync::app
