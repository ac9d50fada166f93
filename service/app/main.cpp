#include "app/cli/command_line.hpp"
#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"

#include <csignal>
#include <exception>
#include <iostream>
#include <malloc.h>

int main(int argc, char** argv) {
  using namespace gradsync::app;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error of the write
#ifdef M_MMAP_THRESHOLD
  // The memory of a large message goes back to the system at once. By default glibc keeps up to twice as much as the
  // largest block that was ever freed.
  ::mallopt(M_MMAP_THRESHOLD, 256 * 1024);
#endif
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
