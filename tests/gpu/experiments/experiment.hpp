#pragma once
// The frame of every experiment: parts that print one JSON line each, a watchdog over each part, and the start of the
// same program as a worker. A part ends answered, or with the key "hang", "failed" or "skipped" and the reason.

#include "gpu/experiments/json_line.hpp"
#include "gpu/experiments/workers/worker.hpp"

#include <functional>
#include <string>

namespace gradsync::experiments {

class Experiment {
 public:
  Experiment(std::string name, bool quick, double seconds);
  Experiment(Experiment&&) = delete;
  Experiment& operator=(Experiment&&) = delete;
  ~Experiment();

  /// Prints one line. What `ask` throws becomes its "hang" or "failed", beside the fields found until then. Past the
  /// seconds the watchdog prints "failed", kills the workers and ends the program with 3. A part that would begin after
  /// the experiment's own time is skipped.
  void part(const std::string& name, double seconds, const std::function<void(JsonLine&)>& ask);

  /// Small sizes and few rounds: for the emulation and the sanitizers. Lines say so.
  [[nodiscard]] bool quick() const { return quick_; }

  [[nodiscard]] int failures() const { return failures_; }

 private:
  void print(const std::string& part, const JsonLine& fields) const;

  struct Watchdog;
  std::string name_;
  bool quick_;
  double began_us_;
  double seconds_;
  std::string device_;
  std::string driver_;
  int failures_ = 0;
  Watchdog* watchdog_;
};

/// `seconds`: of the whole experiment. Without a device prints {"experiment", "skipped"} and ends with 0; ends with 1
/// when a part failed.
int experiment_main(
    int argc,
    char** argv,
    const char* name,
    double seconds,
    const std::function<Handlers()>& handlers,
    const std::function<void(Experiment&)>& ask
);

}  // namespace gradsync::experiments
