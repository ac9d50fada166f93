#pragma once

// The exit codes of every command, after sysexits.h.

namespace gradsync::app {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 64,           ///< the command line is wrong
  kExitUnavailable = 69,     ///< no daemon answers
  kExitInternal = 70,        ///< a defect
  kExitTryAgain = 75,        ///< another daemon is in the way, or a port
  kExitConfiguration = 78,   ///< a setting is wrong
  kExitNotExecutable = 126,  ///< of `run` and `bench`: the command cannot be executed
  kExitNotFound = 127,       ///< of `run` and `bench`: there is no such command
};

struct ExitCodeText {
  ExitCode code;
  const char* meaning;
};

/// Those of all commands, for help and manual.
inline constexpr ExitCodeText kExitCodeTexts[] = {
    {kExitOk, "ok"},
    {kExitFailure, "failure"},
    {kExitUsage, "usage"},
    {kExitUnavailable, "no daemon answers"},
    {kExitInternal, "defect"},
    {kExitTryAgain, "try again"},
    {kExitConfiguration, "configuration"},
};

}  // namespace gradsync::app
