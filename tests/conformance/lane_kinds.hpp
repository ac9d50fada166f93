#pragma once
// The kinds of lane that must do the same, and one run of a lane: its arenas, its reports, with a deadline on each
// wait.

#include "device/gpu/gpu_lane.hpp"
#include "device/host/host_lane.hpp"
#include "device/process/process_lane.hpp"
#include "unit/device/lane_fixture.hpp"
#include "unit/device/sharded_job.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {

/// A lane here, or the same behind a process: this test's own binary serves as the worker. The kernels of a GPU run on
/// the emulation of tests/kernels/simt, or on a GPU where GRADSYNC_KERNELS names their library.
enum class LaneKind { Host, Process, Gpu, GpuProcess };

/// The kinds that this build can run: fibers, on which the emulation runs, are nothing that ThreadSanitizer knows.
/// Where a vector target of CPUs is asked for, those that use it.
inline std::vector<LaneKind> all_kinds() {
#ifdef __SANITIZE_THREAD__
  const bool of_cpus = true;
#else
  const bool of_cpus = std::getenv("GRADSYNC_TEST_VECTOR_TARGET") != nullptr;
#endif
  if (of_cpus) {
    return {LaneKind::Host, LaneKind::Process};
  }
  return {LaneKind::Host, LaneKind::Process, LaneKind::Gpu, LaneKind::GpuProcess};
}

inline std::string name_of(LaneKind kind) {
  constexpr const char* kNames[] = {"host", "process", "gpu", "gpu behind a process"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// The emulated device does nothing before the lane waits for it.
inline GpuDeviceOptions gpu_options() {
  const char* library = std::getenv("GRADSYNC_KERNELS");
  GpuDeviceOptions options{library == nullptr ? GRADSYNC_EMULATED_KERNELS : library, ""};
  if (void* loaded = library == nullptr ? ::dlopen(GRADSYNC_EMULATED_KERNELS, RTLD_NOW | RTLD_LOCAL) : nullptr) {
    reinterpret_cast<void (*)(int)>(::dlsym(loaded, "gradsync_emulation_defer"))(1);  // it stays loaded
  }
  return options;
}

inline ProcessLaneOptions worker_options(const char* role = "worker") {
  ProcessLaneOptions options;
  options.command = {"/proc/self/exe", role};
  return options;
}

inline std::unique_ptr<Lane> make_lane(LaneKind kind, LaneSink sink) {
  switch (kind) {
    case LaneKind::Host:
      return std::make_unique<HostLane>(HostLaneOptions{2}, std::move(sink));
    case LaneKind::Process:
      return std::make_unique<ProcessLane>(worker_options(), std::move(sink));
    case LaneKind::Gpu:
      return std::make_unique<GpuLane>(gpu_options(), std::move(sink));
    case LaneKind::GpuProcess:
      return std::make_unique<ProcessLane>(worker_options("gpu_worker"), std::move(sink));
  }
  return nullptr;
}

class LaneRun {
 public:
  static constexpr PlanId kPlan = 42;

  explicit LaneRun(LaneKind kind) { use(make_lane(kind, sink())); }

  LaneRun() = default;  ///< `use` a lane

  [[nodiscard]] LaneSink sink() {
    return [this](LaneReport report) { box_.put(std::move(report)); };
  }

  void use(std::unique_ptr<Lane> lane) { lane_ = std::move(lane); }

  [[nodiscard]] Lane& lane() { return *lane_; }

  void stop() { lane_.reset(); }  ///< returns when everything is answered

  [[nodiscard]] std::size_t waiting() { return box_.waiting(); }

  /// The next report; kept in `reports`.
  const LaneReport& next() { return reports.emplace_back(box_.take()); }

  const LaneReport& ask(LaneCommand command) {
    lane_->submit(std::move(command));
    return next();
  }

  template <typename Report>
  Report expect() {
    const LaneReport& report = next();
    if (const auto* wanted = std::get_if<Report>(&report)) {
      return *wanted;
    }
    const auto* failed = std::get_if<Failed>(&report);
    ADD_FAILURE() << "a report of kind " << report.index() << ": " << (failed != nullptr ? failed->message : "");
    return {};
  }

  /// Arenas with the job's bytes, mapped as the buffers of its ranks, and its plan.
  void load(const ShardedJob& job) {
    for (const std::vector<std::byte>& bytes : job.arenas) {
      arenas.emplace_back(bytes.size());
      lane_->submit(MapBuffer{arenas.size(), arenas.back().descriptor(), bytes.size()});
      expect<Mapped>();
    }
    write(job);
    lane_->submit(LoadPlan{kPlan, job.layout});
    expect<Loaded>();
  }

  void write(const ShardedJob& job) {
    for (std::size_t rank = 0; rank < arenas.size(); ++rank) {
      std::memcpy(arenas[rank].data(), job.arenas[rank].data(), job.arenas[rank].size());
    }
  }

  std::vector<ClientArena> arenas;
  std::vector<LaneReport> reports;

 private:
  ReportBox box_;
  std::unique_ptr<Lane> lane_;  ///< last: its thread uses the box
};

inline std::vector<std::uint32_t> all_ranks(std::uint32_t world) {
  std::vector<std::uint32_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Whole tensors in three formats, summed by all ranks, and one that is scattered over them.
inline ShardedJob mixed_job(std::uint32_t world) {
  const std::vector<std::uint32_t> ranks = all_ranks(world);
  ShardedJob job(world);
  job.add_bucket(plan::DType::Float32, 3.0);
  job.add_bucket(plan::DType::BFloat16, world);
  job.add_bucket(plan::DType::Float64, 1.0);
  for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
    for (const std::uint64_t elements : {1U, 17U, 40'000U}) {
      ShardedTensor tensor = replicated({elements}, {ranks});
      tensor.bucket = bucket;
      tensor.clip_group = bucket % 2;
      job.add(tensor);
    }
  }
  job.add(scattered({world, 33}, 0, Index(world, 1), Index(ranks.begin(), ranks.end())));
  job.load();
  std::mt19937_64 random(world);
  job.fill(random);
  return job;
}

/// One tensor of so many numbers, summed by two ranks.
inline ShardedJob pair_job(std::uint64_t elements) {
  ShardedJob job(2);
  job.add_bucket(plan::DType::Float32, 2.0);
  job.add(replicated({elements}, {{0, 1}}));
  job.load();
  return job;
}

inline plan::ClipRule strict_rule(std::optional<double> max_norm) {
  plan::ClipRule rule;
  rule.max_norm = max_norm;
  return rule;
}

inline FinishStep finish_of(PlanId plan, Tag tag, std::vector<plan::ClipRule> rules, bool apply = true) {
  FinishStep finish;
  finish.plan = plan;
  finish.tag = tag;
  finish.rules = std::move(rules);
  finish.apply = apply;
  return finish;
}

}  // namespace gradsync::device
