#pragma once
// A process that lends memory of a GPU to workers, as a trainer does: `gradsyncd worker --lend`. A doctor asks it over
// a socket, one question after the other. A GPU that hangs hangs there.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "device/gpu/lent_memory.hpp"
#include "device/process/packet_socket.hpp"
#include "device/process/worker_process.hpp"

#include <cstddef>
#include <string>

namespace gradsync::app {

class Lender {
 public:
  /// Starts it; `timeout`: for each answer. Throws device::DeviceError where it cannot be started.
  Lender(const std::string& kernels, const std::string& gpu, Milliseconds timeout);

  /// Works also where the GPU cannot be opened.
  [[nodiscard]] Result<device::GpuDescription> describe();

  /// Opens the GPU and lends memory that begins with `content`; the bytes of its handle.
  [[nodiscard]] Result<std::string> lend(const std::string& content);

  /// What the memory begins with now.
  [[nodiscard]] Result<std::string> read(std::size_t bytes);

 private:
  struct Ends;

  Lender(const std::string& kernels, const std::string& gpu, Milliseconds timeout, Ends ends);

  /// A question and its answer, as JSON.
  [[nodiscard]] Result<std::string> ask(const std::string& question);

  Milliseconds timeout_;
  device::PacketSocket socket_;
  device::WorkerProcess process_;
};

/// What that process does until its socket ends: answers questions. Throws device::DeviceError where the library cannot
/// be used.
void lend_memory(UniqueFd socket, const std::string& kernels, const std::string& gpu);

}  // namespace gradsync::app
