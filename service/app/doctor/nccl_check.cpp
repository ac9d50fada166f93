#include "app/doctor/nccl_check.hpp"

#include "device/device_error.hpp"
#include "device/nccl/nccl_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace gradsync::app {

namespace {

using enum rpc::DoctorFinding::Level;

void add_library(const NcclSection& nccl, bool needed, std::vector<rpc::DoctorFinding>& found) {
  try {
    const device::NcclLibrary library(nccl.library);
    found.push_back({Ok, fmt::format("NCCL {}: {}", device::nccl_version_text(library.version()), library.path()), ""});
  } catch (const device::DeviceError& error) {
    // One that was named has to be there; without a name, GPUs of one node can do without.
    const auto level = nccl.library.empty() ? Note : Problem;
    const std::string but = nccl.library.empty() ? ": jobs on GPUs of several nodes are refused" : "";
    found.push_back({level, error.what() + (needed ? but : ""), error.hint()});
  }
}

}  // namespace

std::vector<std::string> nccl_environment_of(const NcclSection& nccl) {
  // With 1 all launches of a GPU are one chain, so jobs whose launches cross on two nodes wait for each other for ever.
  std::vector<std::string> environment = {"NCCL_LAUNCH_ORDER_IMPLICIT=0"};
  if (!nccl.interface.empty()) {
    environment.push_back("NCCL_SOCKET_IFNAME=" + nccl.interface);
  }
  return environment;
}

Environment nccl_passed_on(const Environment& environment, const NcclSection& nccl) {
  const std::vector<std::string> ours = nccl_environment_of(nccl);
  Environment passed;
  std::ranges::copy_if(environment, std::inserter(passed, passed.end()), [&](const auto& variable) {
    return variable.first.starts_with("NCCL_") &&
           std::ranges::none_of(ours, [&](const std::string& one) { return one.starts_with(variable.first + "="); });
  });
  return passed;
}

std::vector<rpc::DoctorFinding> findings_of(const NcclSection& nccl, const Environment& environment, bool needed) {
  std::vector<rpc::DoctorFinding> found;
  if (nccl.library == "off") {
    found.push_back({Note, "NCCL is switched off ([nccl] library=off): no job has GPUs on several nodes", ""});
    return found;
  }
  if (!needed && nccl.library.empty()) {
    return found;  // no GPU, and nobody asked
  }
  add_library(nccl, needed, found);
  for (const auto& [name, value] : nccl_passed_on(environment, nccl)) {
    if (name == "NCCL_COMM_ID") {
      found.push_back(
          {Problem,
           fmt::format("NCCL_COMM_ID={}: communicators of every epoch would have one address and one magic", value),
           "unset it for the daemon"}
      );
    } else {
      found.push_back({Note, fmt::format("{}={} is passed on to NCCL", name, value), ""});
    }
  }
  return found;
}

}  // namespace gradsync::app
