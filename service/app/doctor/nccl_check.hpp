#pragma once
// What a worker would meet of NCCL on this machine: its library, its version, and the NCCL_… of the environment.
// Loading the library executes code of it, so this belongs into the process of a doctor.

#include "app/config/configuration.hpp"
#include "app/config/options.hpp"
#include "rpc/wire/wire_doctor.hpp"

#include <string>
#include <vector>

namespace gradsync::app {

/// "NAME=value" for a worker, instead of what the daemon has of that name.
[[nodiscard]] std::vector<std::string> nccl_environment_of(const NcclSection& nccl);

/// The NCCL_… that a worker gets as they are: all that `nccl_environment_of` does not set. By name.
[[nodiscard]] Environment nccl_passed_on(const Environment& environment, const NcclSection& nccl);

/// `needed`: there are GPUs here, so that jobs over nodes may ask for it.
[[nodiscard]] std::vector<rpc::DoctorFinding> findings_of(
    const NcclSection& nccl, const Environment& environment, bool needed
);

}  // namespace gradsync::app
