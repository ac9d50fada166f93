#pragma once
// Scripts that complete the command line in a shell. Each stands alone: it needs nothing but its shell.

#include "app/manual/command_text.hpp"

namespace gradsync::app {

[[nodiscard]] std::string bash_completion(const CommandText& program);
[[nodiscard]] std::string zsh_completion(const CommandText& program);

}  // namespace gradsync::app
