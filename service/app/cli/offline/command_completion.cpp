#include "app/cli/command_line.hpp"
#include "app/cli/exit_code.hpp"
#include "app/manual/completion.hpp"

#include <iostream>

namespace gradsync::app {

int execute(const CompletionCommand& command) {
  const CommandText program = describe_command_line();
  std::cout << (command.shell == "zsh" ? zsh_completion(program) : bash_completion(program));
  return kExitOk;
}

}  // namespace gradsync::app
