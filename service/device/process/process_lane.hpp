#pragma once
// A lane whose commands are executed by another process, `gradsyncd worker`. Thread `lane:process`, one per lane: it
// starts the worker, sends commands, receives reports, and calls the sink. `submit` only appends to a queue.
//
// Invariants: each command yields exactly one report, also where the worker dies, hangs or sends garbage. Then the
// worker is killed and reaped first, so that it touches no memory any more; everything outstanding gets `Failed` in the
// order of submission, and so does every later command: a lane that is lost stays lost, and another takes its place.

#include "base/clock.hpp"
#include "device/lane.hpp"

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

struct ProcessLaneOptions {
  /// Executable and arguments. The worker finds its end of the socket in descriptor 3.
  std::vector<std::string> command = {"/proc/self/exe", "worker"};
  /// "NAME=value", instead of what this process has of that name.
  std::vector<std::string> environment = {};
  Milliseconds abort_deadline{30'000};     ///< from an Abort to its report; then the worker is killed
  Milliseconds nccl_abort_deadline{0};     ///< likewise, where the plan has communicators: if longer than that
  Milliseconds import_deadline{20'000};    ///< for memory of another process to be mapped; then the worker is killed
  Milliseconds other_deadline{120'000};    ///< likewise, to unmap, or to load or unload a plan, behind what is queued
  Milliseconds connect_deadline{150'000};  ///< likewise, to build communicators: longer than the worker gives them
  Milliseconds stop_deadline{10'000};      ///< for what is queued when the lane is destroyed; then the worker is killed
  Milliseconds kill_deadline{10'000};      ///< for a killed worker to end; a longer wait is given up, and reported
};

class ProcessLane final : public Lane {
 public:
  /// The sink is called on the lane's thread. Also a worker that cannot be started is reported there, as lost.
  ProcessLane(ProcessLaneOptions options, LaneSink sink);
  ~ProcessLane() override;
  ProcessLane(const ProcessLane&) = delete;
  ProcessLane& operator=(const ProcessLane&) = delete;

  void submit(LaneCommand command) override;

  /// Why the worker is gone; nothing while the lane works. Any thread.
  [[nodiscard]] std::optional<std::string> lost() const;

  /// 0 before the worker was started. Any thread.
  [[nodiscard]] pid_t worker_pid() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace gradsync::device
