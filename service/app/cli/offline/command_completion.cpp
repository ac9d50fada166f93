#include "app/cli/command_line.hpp"
#include "app/cli/exit_code.hpp"
#include "app/manual/completion.hpp"
#include "app/manual/error_pages.hpp"

#include <iostream>

namespace gradsync::app {

namespace {

/// The kinds of errors are what `explain` takes; they are too many for its help.
CommandText with_kinds(CommandText program) {
  for (CommandText& command : program.commands) {
    for (ArgumentText& argument : command.arguments) {
      if (command.name == "explain" && !argument.is_option()) {
        argument.words = error_kinds();
      }
    }
  }
  return program;
}

}  // namespace

int execute(const CompletionCommand& command) {
  const CommandText program = with_kinds(describe_command_line());
  std::cout << (command.shell == "zsh" ? zsh_completion(program) : bash_completion(program));
  return kExitOk;
}

}  // namespace gradsync::app
