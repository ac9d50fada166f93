#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/daemon/gpu_workers.hpp"
#include "app/doctor/gpu_probe.hpp"
#include "app/doctor/machine.hpp"
#include "base/log.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <utility>

namespace gradsync::app {

namespace {

constexpr Milliseconds kProbe{30'000};

const char* name_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::Ok:
      return "ok";
    case Finding::Level::Note:
      return "note";
    case Finding::Level::Problem:
      return "problem";
  }
  return "";
}

void say(const Finding& finding) {
  std::cout << fmt::format("{:<8} {}\n", name_of(finding.level), finding.what);
  if (!finding.hint.empty()) {
    std::cout << fmt::format("{:<8} {}\n", "", finding.hint);
  }
  std::cout << std::flush;  // probes take seconds
}

}  // namespace

int execute(const DoctorCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  start_logging(LogFormat::Auto, "warn");  // to stderr; what workers do is said by findings
  const GpuSection& gpu = configuration->options.gpu;
  const Machine machine = read_machine("/", process_environment(), gpu, this_program());
  std::vector<Finding> findings;
  const auto add = [&](Finding finding) {
    if (!command.json) {
      say(finding);
    }
    findings.push_back(std::move(finding));
  };
  std::ranges::for_each(findings_of(machine, gpu), add);
  if (!machine.kernels.empty()) {
    probe_gpus(gpu, machine.kernels, usable_gpus(gpu, machine.gpus), kProbe, add);
  }
  if (command.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const Finding& finding : findings) {
      all.push_back({{"level", name_of(finding.level)}, {"what", finding.what}, {"hint", finding.hint}});
    }
    std::cout << all.dump(2) << "\n";
  }
  stop_logging();
  const bool well =
      std::ranges::none_of(findings, [](const Finding& finding) { return finding.level == Finding::Level::Problem; });
  return well ? kExitOk : kExitFailure;
}

}  // namespace gradsync::app
