#pragma once
// An examination of the node on behalf of a daemon: `gradsyncd doctor`, as a process of its own. A driver that hangs
// hangs there, and the daemon never loads CUDA.
//
// Its functions block, so they belong to a thread that may. Where that thread ends, the process is killed.

#include "app/config/options.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "device/process/worker_process.hpp"
#include "rpc/wire/wire_doctor.hpp"

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

struct ExaminationOptions {
  std::vector<std::string> command;  ///< writes a list of findings, as JSON, to descriptor 3, and ends
  GpuSection gpu = {};
  Milliseconds deadline{60'000};  ///< for all of it; then the process is killed
  std::size_t most_bytes = 1 << 20;
};

/// The examination for a daemon with these settings. They are given as flags, which win over the environment, and no
/// file is read: it may have changed since the daemon read it.
[[nodiscard]] ExaminationOptions examination_of(const GpuSection& gpu, const NcclSection& nccl);

class Examination {
 public:
  /// `stop` becomes readable when nobody needs the examination any more.
  Examination(ExaminationOptions options, const UniqueFd& stop) : options_(std::move(options)), stop_(stop) {}

  /// Starts the process and reads what it writes. The process has ended when this returns, or it was killed.
  [[nodiscard]] Result<rpc::DoctorAnswer> run();

  /// Waits for the end of the process, at most that long (none: until it comes) and while `stop` is quiet. True: it has
  /// ended, or was never there.
  [[nodiscard]] bool wait_for_end(std::optional<Milliseconds> most);

  [[nodiscard]] pid_t pid() const { return process_ ? process_->pid() : 0; }

 private:
  /// The end of a pipe from which comes what the process writes.
  [[nodiscard]] Result<UniqueFd> start();
  /// Everything that it wrote until it closed its end.
  [[nodiscard]] Result<std::string> read(int fd, TimePoint deadline);
  [[nodiscard]] Error overdue() const;

  ExaminationOptions options_;
  const UniqueFd& stop_;
  std::optional<device::WorkerProcess> process_;
};

}  // namespace gradsync::app
