#pragma once
// What a daemon would meet on this machine, read from files and the environment, and what is wrong with it, in words.
// The root is a parameter, so that tests can lay out a file tree of their own.

#include "app/config/options.hpp"
#include "app/config/socket_places.hpp"
#include "rpc/wire/wire_doctor.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

using Finding = rpc::DoctorFinding;

struct Machine {
  std::optional<std::string> driver;  ///< its version; none: there is no driver of NVIDIA
  std::vector<std::string> gpus;      ///< UUIDs that the driver lists
  std::string kernels;                ///< path of the library; empty: there is none
  std::uint64_t memory_bytes = 0;     ///< that arenas may still take
  std::uint64_t shared_bytes = 0;     ///< size of /dev/shm; 0: there is none
  std::uint64_t locked_bytes = 0;     ///< RLIMIT_MEMLOCK; all ones: unlimited
  std::uint64_t descriptors = 0;      ///< RLIMIT_NOFILE, the hard one
  std::string pid_namespace;          ///< "pid:[4026531836]"; empty: unknown
  bool mps = false;                   ///< a control daemon of MPS seems to run
  Environment environment;
};

/// Reads it; `program`: this executable.
[[nodiscard]] Machine read_machine(
    const std::filesystem::path& root, const Environment& environment, const GpuSection& gpu, const std::string& program
);

/// One for each thing, in the order in which a person would look.
[[nodiscard]] std::vector<Finding> findings_of(const Machine& machine, const GpuSection& gpu);

}  // namespace gradsync::app
