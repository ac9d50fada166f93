#include "gpu/experiments/experiment.hpp"

#include "gpu/experiments/cuda_calls.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

namespace gradsync::experiments {

/// Ends the program when a part outlives its time in spite of the deadlines of all its waits.
struct Experiment::Watchdog {
  explicit Watchdog(std::string experiment) : name(std::move(experiment)), thread([this] { run(); }) {}

  ~Watchdog() {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
    }
    changed.notify_all();
    thread.join();
  }

  void watch(const std::string& part_name, double seconds) {
    const std::lock_guard lock(mutex);
    part = part_name;
    deadline.emplace(seconds);
    changed.notify_all();
  }

  void rest() {
    const std::lock_guard lock(mutex);
    deadline.reset();
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!stopped) {
      if (!deadline.has_value()) {
        changed.wait(lock);
      } else if (!deadline->passed()) {
        (void)changed.wait_for(lock, std::chrono::milliseconds(deadline->left_ms()));
      } else {
        JsonLine line;
        line.add("experiment", name)
            .add("part", part)
            .add("failed", "the watchdog ended the program: a wait had no end");
        (void)std::printf("%s\n", line.text().c_str());
        (void)std::fflush(stdout);
        kill_children();
        _exit(3);
      }
    }
  }

  std::string name;
  std::mutex mutex;
  std::condition_variable changed;
  std::string part;
  std::optional<Deadline> deadline;
  bool stopped = false;
  std::thread thread;
};

Experiment::Experiment(std::string name, bool quick, double seconds)
    : name_(std::move(name)), quick_(quick), began_us_(now_us()), seconds_(seconds), watchdog_(new Watchdog(name_)) {
  const DeviceIdentity identity = device_identity();
  device_ = identity.name;
  driver_ = identity.driver;
}

Experiment::~Experiment() { delete watchdog_; }

void Experiment::part(const std::string& name, double seconds, const std::function<void(JsonLine&)>& ask) {
  JsonLine fields;
  const double began = now_us();
  if ((began - began_us_) * 1e-6 > seconds_) {
    print(name, fields.add("skipped", "the time of this experiment was used up before this part"));
    return;
  }
  watchdog_->watch(name, seconds);
  try {
    ask(fields);
  } catch (const WorkerHung& hung) {
    fields.add("hang", hung.what());
  } catch (const std::exception& error) {
    fields.add("failed", error.what());
    ++failures_;
  }
  watchdog_->rest();
  print(name, fields.add("seconds", (now_us() - began) * 1e-6));
}

void Experiment::print(const std::string& part, const JsonLine& fields) const {
  JsonLine line;
  line.add("experiment", name_).add("part", part).add("device", device_).add("driver", driver_);
  if (quick_) {
    line.add("quick", true);
  }
  (void)std::printf("%s\n", line.append(fields).text().c_str());
  (void)std::fflush(stdout);
}

int experiment_main(
    int argc,
    char** argv,
    const char* name,
    double seconds,
    const std::function<Handlers()>& handlers,
    const std::function<void(Experiment&)>& ask
) {
  if (is_worker(argc, argv)) {
    serve(handlers());
  }
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--quick") {
      (void)std::fprintf(stderr, "%s: unknown argument '%s'; there is only --quick\n", name, argv[i]);
      return 64;
    }
    quick = true;
  }
  const std::string missing = missing_device();
  if (!missing.empty()) {
    JsonLine line;
    line.add("experiment", name).add("skipped", "no CUDA device").add("reason", missing);
    (void)std::printf("%s\n", line.text().c_str());
    return 0;
  }
  // What a killed worker leaves behind (an MPS server, say) becomes a child of this process and can be ended by it.
  (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
  Experiment experiment(name, quick, seconds);
  ask(experiment);
  return experiment.failures() == 0 ? 0 : 1;
}

}  // namespace gradsync::experiments
