#include "app/blackbox/chrome_trace.hpp"
#include "app/blackbox/flight_analysis.hpp"
#include "app/blackbox/flight_text.hpp"
#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/cli/offline/named_file.hpp"
#include "app/config/settings.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <optional>
#include <utility>

namespace gradsync::app {

namespace {

int refuse(const Error& error) {
  complain(error.path.empty() ? error.message : fmt::format("{}: {}", error.path, error.message), error.hint);
  return kExitFailure;
}

/// The dumps in these files, or the exit code where one of them cannot be read.
std::variant<std::vector<NamedDump>, int> read_dumps(const std::vector<std::string>& files) {
  std::vector<NamedDump> dumps;
  for (const std::string& name : files) {
    std::ifstream file;
    if (!open_to_read(
            file,
            name,
            "dumps of the flight recorder lie in blackbox.folder of each daemon; `gradsyncd rpc blackbox.dump` writes "
            "them"
        )) {
      return static_cast<int>(kExitUsage);
    }
    Result<rpc::DumpFile> dump = rpc::read_dump_file(file);
    if (!dump) {
      Error error = dump.error();
      error.path = error.path.empty() ? name : fmt::format("{}: {}", name, error.path);
      return refuse(error);
    }
    dumps.push_back({name, std::move(*dump)});
  }
  return dumps;
}

/// Calls `use` with the world that the files are of.
template <typename Use>
int with_world(const std::vector<std::string>& files, const std::string& job, Use use) {
  const auto read = read_dumps(files);
  if (const int* const code = std::get_if<int>(&read)) {
    return *code;
  }
  const Result<FlightWorld> world = make_world(std::get<std::vector<NamedDump>>(read), job);
  if (!world) {
    return refuse(world.error());
  }
  use(*world);
  return kExitOk;
}

}  // namespace

int execute(const BlackboxAnalyzeCommand& command) {
  return with_world(command.files, command.job, [&](const FlightWorld& world) {
    const FlightFinding finding = analyze_flight(world);
    std::cout << (command.json ? flight_json(world, finding) + "\n" : flight_text(world, finding));
  });
}

int execute(const BlackboxTraceCommand& command) {
  return with_world(command.files, command.job, [](const FlightWorld& world) {
    std::cout << chrome_trace(world) << "\n";
  });
}

}  // namespace gradsync::app
