#pragma once
// The table of commands: the name, the options and the arguments of each. Internal to app/cli.

#include "app/cli/commands.hpp"

#include <CLI/CLI.hpp>

#include <span>
#include <string>

namespace gradsync::app {

/// What the command line says, of all commands.
struct Parsed {
  ServeCommand serve;
  RunCommand run;
  CheckConfigCommand check;
  std::string check_file;
  ConfigShowCommand show;
  StatusCommand status;
  RpcCommand rpc;
  PlanCheckCommand plan_check;
  PolicyReplayCommand replay;
  BlackboxAnalyzeCommand analyze;
  BlackboxTraceCommand trace;
  TraceCommand live_trace;
  BenchCommand bench;
  DoctorCommand doctor;
  ExplainCommand explain;
  TokenNewCommand token;
  VersionCommand version;
  CompletionCommand completion;
  ManCommand man;
  WorkerCommand worker;
};

/// A line of the table of commands.
struct CommandRow {
  const char* group;  ///< the command that it is a subcommand of; "": none
  const char* name;
  const char* summary;
  void (*add_options)(CLI::App& command, Parsed& parsed);
  Command (*take)(const Parsed& parsed);  ///< null: the command is a group
};

/// In the order of --help; a group is before its subcommands.
[[nodiscard]] std::span<const CommandRow> command_rows();

}  // namespace gradsync::app
