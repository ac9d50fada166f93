#pragma once
// Resolves the settings: flag before environment before file before default, and keeps where each value came from.
// Unknown names and wrong types are errors that name the key, the place and the nearest name.
//
// Pure but for reading the file: the environment is passed in and read nowhere else.

#include "app/config/options.hpp"
#include "base/error.hpp"

#include <map>
#include <optional>
#include <string>

namespace gradsync::app {

using Environment = std::map<std::string, std::string>;

[[nodiscard]] Environment process_environment();

struct ConfigurationInputs {
  std::optional<std::string> file;                     ///< must exist when given
  Environment environment;                             ///< all of it
  std::map<std::string, std::string> flags;            ///< "server.socket" → text
  std::string socket = "/run/gradsync/gradsync.sock";  ///< where nothing else says it: see socket_places.hpp
};

struct Configuration {
  Options options;
  std::map<std::string, std::string>
      origins;  ///< "server.socket" → "default", "file /etc/x.toml:3", "environment …", "flag …"

  [[nodiscard]] bool is_default(const std::string& key) const { return origins.at(key) == "default"; }

  /// True where a flag or a variable set it, rather than a file.
  [[nodiscard]] bool is_asked_for(const std::string& key) const {
    return origins.at(key).starts_with("flag ") || origins.at(key).starts_with("environment ");
  }
};

/// $GRADSYNC_CONFIG, else /etc/gradsync/gradsyncd.toml where it exists.
[[nodiscard]] std::optional<std::string> default_configuration_file(const Environment& environment);

/// Error code InvalidParams; `path` is the key at fault.
[[nodiscard]] Result<Configuration> resolve_configuration(const ConfigurationInputs& inputs);

/// The effective settings as a file that `resolve_configuration` reads back.
[[nodiscard]] std::string print_configuration(const Configuration& configuration, bool with_origins);

/// "server.socket" → "--server-socket", "GRADSYNC_SERVER_SOCKET".
[[nodiscard]] std::string flag_name(std::string_view section, std::string_view key);
[[nodiscard]] std::string environment_name(std::string_view section, std::string_view key);

}  // namespace gradsync::app
