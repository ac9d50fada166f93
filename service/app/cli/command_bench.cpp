#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"

#include <fmt/format.h>

#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace gradsync::app {

namespace {

constexpr const char* kClient = "gradsync";

std::vector<std::string> words_of(const BenchCommand& command) {
  std::vector<std::string> words{
      kClient, "bench", "--megabytes", std::to_string(command.megabytes), "--rounds", std::to_string(command.rounds)};
  if (!command.address.empty()) {
    words.insert(words.end(), {"--address", command.address});
  }
  if (command.json) {
    words.emplace_back("--json");
  }
  return words;
}

/// Has a private daemon run the binary that was called, and no other that the client would find.
void name_this_binary() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    ::setenv("GRADSYNCD", binary.c_str(), 1);
  }
}

}  // namespace

int execute(const BenchCommand& command) {
  name_this_binary();
  std::vector<std::string> words = words_of(command);
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  ::execvp(kClient, arguments.data());
  const int error = errno;
  complain(
      fmt::format("cannot run '{} bench', which measures: {}", kClient, std::generic_category().message(error)),
      "install the Python client (pip install gradsync), or put its folder into PATH"
  );
  return error == ENOENT ? kExitNotFound : kExitNotExecutable;
}

}  // namespace gradsync::app
