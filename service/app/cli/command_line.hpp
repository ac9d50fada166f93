#pragma once
// Arguments to a command, or to the exit code of a command line that needs none (help) or is wrong.

#include "app/cli/commands.hpp"
#include "app/manual/command_text.hpp"

#include <variant>

namespace gradsync::app {

[[nodiscard]] std::variant<Command, int> parse_command_line(int argc, const char* const* argv);

/// The commands that people call, with their options; `gradsyncd` itself is the root.
[[nodiscard]] CommandText describe_command_line();

}  // namespace gradsync::app
