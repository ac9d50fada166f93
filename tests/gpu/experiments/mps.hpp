#pragma once
// NVIDIA's Multi-Process Service, started as an ordinary process with folders of its own: no setting of the device is
// changed (the compute mode stays as it is). Workers use it when they get its environment.

#include "gpu/experiments/workers/device_worker.hpp"

#include <sys/types.h>

#include <string>

namespace gradsync::experiments {

class MultiProcessService {
 public:
  /// Starts the control daemon in the foreground; why it could not is in `refused`.
  MultiProcessService();
  MultiProcessService(MultiProcessService&&) = delete;
  MultiProcessService& operator=(MultiProcessService&&) = delete;
  /// "quit", then SIGKILL to the control daemon and to the servers that it left to this process.
  ~MultiProcessService();

  [[nodiscard]] const std::string& refused() const { return refused_; }

  /// For workers: eager loading, and this service.
  [[nodiscard]] Environment environment() const;

 private:
  std::string folder_;
  pid_t control_ = -1;
  std::string refused_;
};

}  // namespace gradsync::experiments
