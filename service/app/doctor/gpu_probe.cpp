#include "app/doctor/gpu_probe.hpp"

#include "app/daemon/gpu_workers.hpp"
#include "app/doctor/lender.hpp"
#include "base/text/text.hpp"
#include "device/device_error.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace gradsync::app {

namespace {

using enum Finding::Level;

constexpr std::uint64_t kArenaBytes = 1 << 16;
constexpr std::uint64_t kPatternBytes = 64;
constexpr const char* kNotPeers =
    "ranks of one job on these two GPUs are refused; nvidia-smi topo -p2p r says which GPUs of the machine reach each "
    "other";

std::string first_pattern() {
  std::string pattern(kPatternBytes, '\0');
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = static_cast<char>(3 * i + 1);
  }
  return pattern;
}

std::string complement_of(std::string bytes) {
  std::ranges::transform(bytes, bytes.begin(), [](char byte) { return static_cast<char>(~byte); });
  return bytes;
}

/// Workers, and one command after the other for them.
class Workers {
 public:
  Workers(const GpuSection& options, Milliseconds timeout)
      : timeout_(timeout), workers_(options, {}, 0, [this](device::LaneId lane, device::LaneReport report) {
          const std::lock_guard lock(mutex_);
          answers_.insert_or_assign(lane, std::move(report));
          arrived_.notify_all();
        }) {}

  [[nodiscard]] Result<device::Lane*> start(device::LaneId id, const std::string& gpu) {
    return workers_.start(id, gpu);
  }

  /// The answer to a command; an error where it failed or came too late. A worker that was late is asked nothing more:
  /// its answers would be taken for those to other questions.
  Result<device::LaneReport> ask(device::LaneId id, device::Lane& lane, device::LaneCommand command) {
    std::unique_lock lock(mutex_);
    if (!late_.contains(id)) {
      answers_.erase(id);
      lane.submit(std::move(command));
    }
    if (late_.contains(id) || !arrived_.wait_for(lock, timeout_, [&] { return answers_.contains(id); })) {
      late_.insert(id);
      return make_error(
          ErrorCode::ImportRefused,
          fmt::format("it did not answer within {} ms", timeout_.count()),
          "look at nvidia-smi"
      );
    }
    device::LaneReport report = std::move(answers_.at(id));
    if (const auto* failed = std::get_if<device::Failed>(&report)) {
      return make_error(ErrorCode::ImportRefused, failed->message, failed->hint);
    }
    return report;
  }

 private:
  Milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<device::LaneId, device::LaneReport> answers_;  ///< guarded by mutex_
  std::set<device::LaneId> late_;
  GpuWorkers workers_;  ///< last: its threads use the others
};

/// One GPU with the two processes that use it.
struct TriedGpu {
  std::string uuid;
  std::unique_ptr<Lender> lender;
  std::string handle;              ///< empty: nothing is lent
  std::string content;             ///< of the memory that is lent
  device::Lane* worker = nullptr;  ///< null: none can be used
  device::LaneId lane = 0;
  std::vector<std::string> reached = {};  ///< GPUs whose memory its worker maps
  std::optional<Error> not_described = {};
};

class Trial {
 public:
  Trial(const GpuSection& options, std::string kernels, Milliseconds timeout, std::function<void(Finding)> found)
      : kernels_(std::move(kernels)), timeout_(timeout), found_(std::move(found)), workers_(options, timeout) {}

  void run(const std::vector<std::string>& gpus) {
    for (const std::string& uuid : gpus) {
      gpus_.push_back({uuid, nullptr, "", first_pattern()});
      gpus_.back().lane = static_cast<device::LaneId>(gpus_.size());
      describe(gpus_.back());
      open(gpus_.back());
    }
    for (TriedGpu& gpu : gpus_) {
      lend(gpu);
    }
    for (TriedGpu& owner : gpus_) {
      for (TriedGpu& other : gpus_) {
        if (!owner.handle.empty() && other.worker != nullptr) {
          map(owner, other);
        }
      }
    }
    say_who_reaches_whom();
  }

 private:
  void describe(TriedGpu& gpu) {
    try {
      gpu.lender = std::make_unique<Lender>(kernels_, gpu.uuid, timeout_);
    } catch (const device::DeviceError& error) {
      found_({Problem, fmt::format("no process for {} can be started: {}", gpu.uuid, error.what())});
      return;
    }
    const Result<device::GpuDescription> description = gpu.lender->describe();
    if (!description) {
      gpu.lender = nullptr;
      gpu.not_described = description.error();  // a worker that cannot use it either says why
      return;
    }
    for (Finding& finding : findings_of(gpu.uuid, *description)) {
      found_(std::move(finding));
    }
  }

  void open(TriedGpu& gpu) {
    const auto begin = std::chrono::steady_clock::now();
    const auto failed = [&](const Error& error) {
      found_({Problem, fmt::format("a worker cannot use {}: {}", gpu.uuid, error.message), error.hint});
    };
    const Result<device::Lane*> lane = workers_.start(gpu.lane, gpu.uuid);
    if (!lane) {
      return failed(lane.error());
    }
    Result<UniqueFd> memory = device::create_arena(kArenaBytes);
    if (!memory) {
      return failed(memory.error());
    }
    const auto answer = workers_.ask(gpu.lane, **lane, device::MapBuffer{1, std::move(*memory), kArenaBytes});
    if (!answer) {
      return failed(answer.error());
    }
    gpu.worker = *lane;
    const auto took = std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begin);
    found_({Ok, fmt::format("a worker opened {} and reached memory in {} ms", gpu.uuid, took.count())});
  }

  void lend(TriedGpu& gpu) {
    if (gpu.worker != nullptr && gpu.not_described) {
      const Error& error = *gpu.not_described;
      found_({Problem, fmt::format("another process cannot use {}: {}", gpu.uuid, error.message), error.hint});
    }
    if (gpu.lender == nullptr || gpu.worker == nullptr) {
      return;
    }
    const Result<std::string> handle = gpu.lender->lend(gpu.content);
    if (!handle) {
      const Error& error = handle.error();
      found_({Problem, fmt::format("a process cannot share memory of {}: {}", gpu.uuid, error.message), error.hint});
      return;
    }
    gpu.handle = *handle;
  }

  void map(TriedGpu& owner, TriedGpu& other) {
    constexpr std::uint64_t kNumber = 7;  // of no buffer
    const auto answer = workers_.ask(
        other.lane,
        *other.worker,
        device::ProbeMemory{
            kNumber, kPatternBytes, device::ExportedMemory{kNumber, owner.handle, device::LentMemory::kBytes, 0}}
    );
    const bool same = &owner == &other;
    const auto failed = [&](const std::string& why, const std::string& hint) {
      found_(
          {Problem,
           fmt::format("a worker of {} cannot map memory of {}: {}", other.uuid, same ? "it" : owner.uuid, why),
           same           ? hint
           : hint.empty() ? kNotPeers
                          : fmt::format("{}; {}", hint, kNotPeers)}
      );
    };
    if (!answer) {
      return failed(answer.error().message, answer.error().hint);
    }
    const device::Probe& probe = std::get<device::Probed>(*answer).probe;
    const std::string written = complement_of(owner.content);
    const Result<std::string> now = owner.lender->read(kPatternBytes);
    if (!now) {
      owner.handle.clear();  // its next answer would be that to this question
      return failed(now.error().message, now.error().hint);
    }
    if (probe.read != owner.content || *now != written) {
      owner.content = *now;
      return failed("it mapped other memory than was lent", "the driver is at fault: try another one");
    }
    owner.content = written;
    if (same) {
      found_(
          {Ok,
           fmt::format(
               "a worker of {} mapped memory of another process in {:.1f} ms, read it and wrote it",
               other.uuid,
               probe.open_s * 1e3
           )}
      );
    } else {
      other.reached.push_back(owner.uuid);
    }
  }

  void say_who_reaches_whom() const {
    for (const TriedGpu& gpu : gpus_) {
      if (!gpu.reached.empty()) {
        found_({Ok, fmt::format("a worker of {} reaches memory of {}", gpu.uuid, fmt::join(gpu.reached, ", "))});
      }
    }
  }

  std::string kernels_;
  Milliseconds timeout_;
  std::function<void(Finding)> found_;
  Workers workers_;
  std::vector<TriedGpu> gpus_;
};

}  // namespace

std::vector<Finding> findings_of(const std::string& gpu, const device::GpuDescription& description) {
  std::vector<Finding> found{
      {Ok,
       fmt::format(
           "{}: {}, {}, compute capability {}.{}",
           gpu,
           description.name,
           human_bytes(description.memory_bytes),
           description.capability / 10,
           description.capability % 10
       )}};
  if (description.compute_mode != device::GpuDescription::kDefault) {
    const bool prohibited = description.compute_mode == device::GpuDescription::kProhibited;
    found.push_back(
        {Problem,
         fmt::format(
             "{} is in compute mode {}: a trainer and a worker cannot use it together",
             gpu,
             prohibited ? "prohibited" : "exclusive process"
         ),
         fmt::format("nvidia-smi -i {} -c DEFAULT", gpu)}
    );
  }
  if (description.name.find("MIG") != std::string::npos) {
    found.push_back(
        {Note,
         fmt::format("{} is a MIG instance", gpu),
         "all ranks of a job and the daemon need this instance: memory of one is not shared with another"}
    );
  }
  return found;
}

void probe_gpus(
    const GpuSection& options,
    const std::string& kernels,
    const std::vector<std::string>& gpus,
    Milliseconds timeout,
    const std::function<void(Finding)>& found
) {
  Trial(options, kernels, timeout, found).run(gpus);
}

}  // namespace gradsync::app
