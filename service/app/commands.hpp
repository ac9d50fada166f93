#pragma once
// What each command is given, and the function that does it. One source file per command.

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::app {

/// Where settings come from, as said on the command line.
struct SettingsSource {
  std::optional<std::string> file;           ///< --config
  std::map<std::string, std::string> flags;  ///< "server.socket" → text
};

struct ServeCommand {
  SettingsSource settings;
};

struct RunCommand {
  SettingsSource settings;
  std::vector<std::string> command;
};

struct CheckConfigCommand {
  SettingsSource settings;
};

struct ConfigShowCommand {
  SettingsSource settings;
  bool origin = false;
};

struct StatusCommand {
  std::string address;  ///< empty: searched
  bool watch = false;
  bool json = false;
};

struct RpcCommand {
  std::string address;
  std::string method;
  std::string params;  ///< JSON object; empty: {}
};

struct PlanCheckCommand {
  SettingsSource settings;
  std::string file;  ///< JSON lines; "-": standard input
  bool explain = false;
  bool json = false;
};

struct PolicyReplayCommand {
  std::string file;                   ///< JSON lines; "-": standard input
  std::vector<std::string> policies;  ///< as policy_text.hpp reads them
  std::string key;                    ///< of the norm; empty: norm or grad_norm
  std::string clip_group;             ///< empty: the norm of the step
  std::string plot;                   ///< SVG file to write; empty: none
  bool json = false;
};

struct VersionCommand {
  bool json = false;
};

using Command = std::variant<
    ServeCommand,
    RunCommand,
    CheckConfigCommand,
    ConfigShowCommand,
    StatusCommand,
    RpcCommand,
    PlanCheckCommand,
    PolicyReplayCommand,
    VersionCommand>;

/// Each returns an exit code.
[[nodiscard]] int execute(const ServeCommand& command);
[[nodiscard]] int execute(const RunCommand& command);
[[nodiscard]] int execute(const CheckConfigCommand& command);
[[nodiscard]] int execute(const ConfigShowCommand& command);
[[nodiscard]] int execute(const StatusCommand& command);
[[nodiscard]] int execute(const RpcCommand& command);
[[nodiscard]] int execute(const PlanCheckCommand& command);
[[nodiscard]] int execute(const PolicyReplayCommand& command);
[[nodiscard]] int execute(const VersionCommand& command);

}  // namespace gradsync::app
