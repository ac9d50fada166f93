#include "app/daemon/pages/process_metrics.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gradsync::app {

namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily family(const char* name, const char* help, MetricType type, double value) {
  prometheus::ClientMetric metric;
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {name, help, type, {metric}};
}

/// The fields of /proc/self/stat after the command, which may hold spaces; the first is field 3 of proc(5).
std::vector<double> stat_fields() {
  std::ifstream file{"/proc/self/stat"};
  std::string text;
  std::getline(file, text);
  const std::size_t command_end = text.rfind(')');
  if (command_end == std::string::npos) {
    return {};
  }
  std::istringstream rest{text.substr(command_end + 2)};
  std::vector<double> fields{0};  // the state is a letter
  std::string state;
  rest >> state;
  for (double value = 0; rest >> value;) {
    fields.push_back(value);
  }
  return fields;
}

double boot_time() {
  std::ifstream file{"/proc/stat"};
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("btime ")) {
      return std::stod(line.substr(6));
    }
  }
  return 0;
}

}  // namespace

std::vector<MetricFamily> ProcessMetrics::Collect() const {
  std::vector<MetricFamily> families;
  std::error_code ignored;
  const auto open_fds = std::distance(std::filesystem::directory_iterator{"/proc/self/fd", ignored}, {});
  families.push_back(
      family("process_open_fds", "Open file descriptors.", MetricType::Gauge, static_cast<double>(open_fds))
  );
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families.push_back(
        family("process_max_fds", "File descriptors allowed.", MetricType::Gauge, static_cast<double>(limit.rlim_cur))
    );
  }
  const std::vector<double> stat = stat_fields();
  constexpr std::size_t kUser = 11;  // proc(5) fields 14, 15, 22, 23, 24
  constexpr std::size_t kSystem = 12;
  constexpr std::size_t kStart = 19;
  constexpr std::size_t kVirtual = 20;
  constexpr std::size_t kResident = 21;
  if (stat.size() > kResident) {
    const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    families.push_back(family(
        "process_cpu_seconds_total",
        "CPU time of user and system.",
        MetricType::Counter,
        (stat[kUser] + stat[kSystem]) / ticks
    ));
    families.push_back(family(
        "process_start_time_seconds",
        "Start of the process since the epoch.",
        MetricType::Gauge,
        boot_time() + stat[kStart] / ticks
    ));
    families.push_back(family("process_virtual_memory_bytes", "Virtual memory.", MetricType::Gauge, stat[kVirtual]));
    families.push_back(family(
        "process_resident_memory_bytes",
        "Resident memory.",
        MetricType::Gauge,
        stat[kResident] * static_cast<double>(::sysconf(_SC_PAGESIZE))
    ));
  }
  return families;
}

}  // namespace gradsync::app
