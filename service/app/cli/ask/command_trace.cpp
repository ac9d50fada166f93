#include "app/blackbox/chrome_trace.hpp"
#include "app/blackbox/requested_dump.hpp"
#include "app/cli/ask/daemon_call.hpp"
#include "app/cli/ask/rpc_client.hpp"
#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "base/text/text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::app {

namespace {

using TraceJson = nlohmann::ordered_json;

int complain_and_fail(const std::string& message, const std::string& hint) {
  complain(message, hint);
  return kExitFailure;
}

/// The one job of this name, or the only one where no name is given; or the exit code.
std::variant<std::string, int> choose_job(const TraceJson& status, const std::string& wanted) {
  std::vector<std::string> names;
  std::vector<std::string> matching;
  for (const TraceJson& job : status.value("jobs", TraceJson::array())) {
    names.push_back(job.value("job", ""));
    if (wanted.empty() || names.back() == wanted) {
      matching.push_back(names.back());
    }
  }
  if (matching.size() == 1) {
    return matching.front();
  }
  if (names.empty()) {
    return complain_and_fail("the daemon has no jobs", "a job is there when its first trainer attaches");
  }
  if (wanted.empty()) {
    return complain_and_fail(
        fmt::format("the daemon has {} jobs: {}", names.size(), enumerate_names(names)), "name one of them with --job"
    );
  }
  if (matching.size() > 1) {
    return complain_and_fail(
        fmt::format("{} users have a job '{}'", matching.size(), wanted),
        "gradsyncd rpc blackbox.dump names the file of each; gradsyncd blackbox trace FILE takes one of them"
    );
  }
  if (status.value("jobs_left_out", 0) > 0) {
    return wanted;
  }
  const std::string nearest = nearest_name(wanted, names);
  return complain_and_fail(
      fmt::format("the daemon has no job '{}'", wanted),
      nearest.empty() ? "its jobs are " + enumerate_names(names) : fmt::format("did you mean '{}'?", nearest)
  );
}

std::int64_t microseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

/// The dump that the daemon makes for this command, or the exit code.
std::variant<NamedDump, int> have_dumped(const std::string& address, const std::string& wanted) {
  const auto status = call_daemon(address, "status.get", TraceJson::object());
  if (const int* const code = std::get_if<int>(&status)) {
    return *code;
  }
  const auto job = choose_job(std::get<TraceJson>(status), wanted);
  if (const int* const code = std::get_if<int>(&job)) {
    return *code;
  }
  const DumpRequest request{
      std::get<TraceJson>(status).value("incarnation", ""), std::get<std::string>(job), microseconds_since_1970()};
  const auto answer = call_daemon(address, "blackbox.dump", {{"job", request.job}});
  if (const int* const code = std::get_if<int>(&answer)) {
    return *code;
  }
  const TraceJson dumps = std::get<TraceJson>(answer).value("dumps", TraceJson::array());
  if (dumps.size() != 1) {
    return complain_and_fail(
        fmt::format("the daemon wrote {} dumps of job '{}'", dumps.size(), request.job), "try again: jobs come and go"
    );
  }
  const std::string file = dumps[0].value("file", "");
  Result<rpc::DumpFile> dump = take_requested_dump(file, request);
  if (!dump) {
    return complain_and_fail(fmt::format("{}: {}", dump.error().path, dump.error().message), dump.error().hint);
  }
  return NamedDump{file, std::move(*dump)};
}

int write_trace(const std::string& trace, const std::string& out) {
  if (out.empty()) {
    std::cout << trace << "\n";
    return kExitOk;
  }
  std::ofstream file(out, std::ios::binary);
  file << trace << "\n" << std::flush;
  if (!file) {
    return complain_and_fail(
        fmt::format("cannot write '{}': {}", out, std::strerror(errno)), "give --out a file that can be written"
    );
  }
  std::cerr << fmt::format("wrote '{}': open it in https://ui.perfetto.dev or chrome://tracing\n", out);
  return kExitOk;
}

}  // namespace

int execute(const TraceCommand& command) {
  const Result<std::string> socket = find_daemon(command.address, process_environment(), this_caller());
  if (!socket) {
    complain(socket.error().message, socket.error().hint);
    return kExitUnavailable;
  }
  auto dumped = have_dumped(*socket, command.job);
  if (const int* const code = std::get_if<int>(&dumped)) {
    return *code;
  }
  std::vector<NamedDump> dumps{std::get<NamedDump>(std::move(dumped))};
  if (dumps.front().dump.attempts.empty()) {
    return complain_and_fail(
        fmt::format("job '{}' has begun no step yet", dumps.front().dump.head.job),
        "gradsyncd status says what it waits for"
    );
  }
  keep_last_steps(dumps.front().dump, static_cast<std::size_t>(command.last));
  const Result<FlightWorld> world = make_world(dumps, dumps.front().dump.head.job);
  return world ? write_trace(chrome_trace(*world), command.out)
               : complain_and_fail(world.error().message, world.error().hint);
}

}  // namespace gradsync::app
