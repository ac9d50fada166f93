#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/daemon/gpu_workers.hpp"
#include "app/doctor/gpu_probe.hpp"
#include "app/doctor/machine.hpp"
#include "app/doctor/nccl_check.hpp"
#include "base/log.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>
#include <iostream>
#include <string_view>
#include <utility>

namespace gradsync::app {

namespace {

constexpr Milliseconds kProbe{30'000};
constexpr Milliseconds kProbeForDaemon{8'000};  // so that it hears of all GPUs, of which a few hang, within 60 s

const char* name_of(Finding::Level level) {
  for (const auto& [name, entry] : rpc::EnumNames<Finding::Level>::kEntries) {
    if (entry == level) {
      return name;
    }
  }
  return "";
}

/// A finding is a line in terminals and logs, whatever the driver says.
void keep_to_one_line(std::string& text) {
  while (const auto control = rpc::find_control_character(text)) {
    text.replace(control->at, control->length, " ");
  }
}

void say(const Finding& finding) {
  std::cout << fmt::format("{:<8} {}\n", name_of(finding.level), finding.what);
  if (!finding.hint.empty()) {
    std::cout << fmt::format("{:<8} {}\n", "", finding.hint);
  }
  std::cout << std::flush;  // probes take seconds
}

/// False: nobody reads it any more.
bool write_to(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

/// Calls `found` with one finding after the other.
void examine(const Options& options, Milliseconds patience, const std::function<void(Finding)>& found) {
  const GpuSection& gpu = options.gpu;
  const Machine machine = read_machine("/", process_environment(), gpu, this_program());
  std::ranges::for_each(findings_of(machine, gpu), found);
  const bool has_gpus = !usable_gpus(gpu, machine.gpus).empty();
  std::ranges::for_each(findings_of(options.nccl, machine.environment, has_gpus && gpu.kernels != "off"), found);
  if (!machine.kernels.empty()) {
    probe_gpus(gpu, machine.kernels, usable_gpus(gpu, machine.gpus), patience, found);
  }
}

}  // namespace

SettingsSource settings_of(const DoctorCommand& command) {
  SettingsSource settings = command.settings;
  settings.environment = command.fd < 0;  // its flags are all that the daemon has
  return settings;
}

int execute(const DoctorCommand& command) {
  const bool asked_by_daemon = command.fd >= 0;
  if (asked_by_daemon) {
    if (::fcntl(command.fd, F_GETFD) < 0) {
      complain(fmt::format("--fd is {}, which is not open", command.fd), "gradsyncd doctor --json writes to stdout");
      return kExitUsage;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read what it found
  }
  const Result<Configuration> configuration = load_settings(settings_of(command));
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  start_logging(LogFormat::Auto, "warn");  // to stderr; what workers do is said by findings
  std::vector<Finding> findings;
  examine(configuration->options, asked_by_daemon ? kProbeForDaemon : kProbe, [&](Finding finding) {
    keep_to_one_line(finding.what);
    keep_to_one_line(finding.hint);
    if (!command.json && !asked_by_daemon) {
      say(finding);
    }
    findings.push_back(std::move(finding));
  });
  const std::string json = rpc::to_json(findings);
  const bool told = !asked_by_daemon || write_to(command.fd, json);
  if (command.json && !asked_by_daemon) {
    std::cout << nlohmann::ordered_json::parse(json).dump(2) << "\n";
  }
  stop_logging();
  const bool well =
      std::ranges::none_of(findings, [](const Finding& finding) { return finding.level == Finding::Level::Problem; });
  return well && told ? kExitOk : kExitFailure;
}

}  // namespace gradsync::app
