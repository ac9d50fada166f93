#include "app/command_line.hpp"
#include "app/exit_code.hpp"

#include <csignal>
#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  using namespace gradsync::app;
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const std::variant<Command, int> parsed = parse_command_line(argc, argv);
    if (const int* code = std::get_if<int>(&parsed)) {
      return *code;
    }
    return std::visit([](const auto& command) { return execute(command); }, std::get<Command>(parsed));
  } catch (const std::exception& defect) {
    std::cerr << "gradsyncd: internal error: " << defect.what()
              << "\n  this is a defect of gradsyncd; please report it\n";
    return kExitInternal;
  }
}
