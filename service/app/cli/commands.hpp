#pragma once
// The arguments of each command, and the function that executes it. Each command has its own source file.

#include "app/config/options.hpp"

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::app {

/// The sources of settings that the command line names.
struct SettingsSource {
  std::optional<std::string> file;           ///< --config
  std::map<std::string, std::string> flags;  ///< "server.socket" → text
  bool environment = true;                   ///< false: GRADSYNC_… say nothing
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
  std::string key;                    ///< the field of a line that has the norm; empty: norm or grad_norm
  std::string clip_group;             ///< empty: the norm of the step
  std::string plot;                   ///< SVG file to write; empty: none
  bool json = false;
};

/// Says what dumps of the flight recorder show.
struct BlackboxAnalyzeCommand {
  std::vector<std::string> files;
  std::string job;  ///< empty: all files are of one job
  bool json = false;
};

/// Prints dumps as a trace for chrome://tracing.
struct BlackboxTraceCommand {
  std::vector<std::string> files;
  std::string job;
};

/// Prints the last steps of a job of a running daemon as such a trace.
struct TraceCommand {
  std::string address;  ///< empty: searched
  std::string job;      ///< empty: the daemon has one
  int last = 100;       ///< steps
  std::string out;      ///< file; empty: standard output
};

/// Measures a node, by the Python client's command of the same name.
struct BenchCommand {
  std::string address;  ///< empty: a private daemon of this binary
  int megabytes = 64;   ///< gradients of a rank
  int rounds = 12;
  bool json = false;
};

/// Looks for what would keep gradients on this machine from being served.
struct DoctorCommand {
  SettingsSource settings;
  bool json = false;
  int fd = -1;  ///< a daemon started it, reads the JSON here, and takes it along when it ends; −1: no daemon did
};

/// Those that a doctor looks at: of one that a daemon started, what the daemon said.
[[nodiscard]] SettingsSource settings_of(const DoctorCommand& command);

/// Prints what a kind of error means, and what to do.
struct ExplainCommand {
  std::string kind;  ///< as in `data.kind`; empty: lists them
};

/// Makes a bearer token.
struct TokenNewCommand {
  std::string out;     ///< file; empty: standard output
  bool force = false;  ///< a file that is there is replaced
};

struct VersionCommand {
  bool json = false;
};

struct CompletionCommand {
  std::string shell;  ///< bash or zsh
};

struct ManCommand {
  std::string page = "gradsyncd";  ///< or gradsyncd.toml
};

/// The worker that a process lane starts; people do not call it.
struct WorkerCommand {
  int fd = 3;           ///< the worker's end of the lane's socket
  int threads = 0;      ///< 0: as many as there are CPUs
  std::string kernels;  ///< path of libgradsync_kernels.so; empty: the CPU engine works
  std::string gpu;      ///< UUID; empty: the first one
  bool lend = false;    ///< instead of a lane: lends memory of the GPU, for a doctor
  NcclSection nccl;     ///< its library empty: none; its interface is a variable of the environment
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
    BlackboxAnalyzeCommand,
    BlackboxTraceCommand,
    TraceCommand,
    BenchCommand,
    DoctorCommand,
    ExplainCommand,
    TokenNewCommand,
    VersionCommand,
    CompletionCommand,
    ManCommand,
    WorkerCommand>;

/// Each returns an exit code.
[[nodiscard]] int execute(const ServeCommand& command);
[[nodiscard]] int execute(const RunCommand& command);
[[nodiscard]] int execute(const CheckConfigCommand& command);
[[nodiscard]] int execute(const ConfigShowCommand& command);
[[nodiscard]] int execute(const StatusCommand& command);
[[nodiscard]] int execute(const RpcCommand& command);
[[nodiscard]] int execute(const PlanCheckCommand& command);
[[nodiscard]] int execute(const PolicyReplayCommand& command);
[[nodiscard]] int execute(const BlackboxAnalyzeCommand& command);
[[nodiscard]] int execute(const BlackboxTraceCommand& command);
[[nodiscard]] int execute(const TraceCommand& command);
[[nodiscard]] int execute(const BenchCommand& command);
[[nodiscard]] int execute(const DoctorCommand& command);
[[nodiscard]] int execute(const ExplainCommand& command);
[[nodiscard]] int execute(const TokenNewCommand& command);
[[nodiscard]] int execute(const VersionCommand& command);
[[nodiscard]] int execute(const CompletionCommand& command);
[[nodiscard]] int execute(const ManCommand& command);
[[nodiscard]] int execute(const WorkerCommand& command);

}  // namespace gradsync::app
