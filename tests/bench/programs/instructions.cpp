// Steps of one node's engine, for `instructions.py`: it runs this under callgrind and counts what `take_steps`
// executes.
//
//   bench_instructions CASE STEPS FOLDER
//
// CASE: `empty` (one tensor), `arena` (100 tensors in ten buckets) or `stats` (100 tensors, a percentile policy whose
// state is kept in FOLDER). Two ranks, and a lane that answers each command at once with numbers that are made up: what
// is counted is the work of the io thread without its sockets. Prints what built it.

#include "device/lane.hpp"
#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <gnu/libc-version.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradsync::bench {

using namespace engine;

namespace {

constexpr std::int64_t kRanks = 2;
constexpr int kTensors = 100;
constexpr std::int64_t kElements = 8;
constexpr std::uint64_t kBucketBytes = 10 * kElements * sizeof(float);
constexpr std::int64_t kHistory = 100;
constexpr int kWarmUp = 200;  // the history is full, every buffer has its size
constexpr std::size_t kTextBytes = 600;

class InstantLane : public device::Lane {
 public:
  void submit(device::LaneCommand command) override {
    std::visit([this](const auto& given) { answer(given); }, command);
  }

  std::deque<device::LaneReport> reports;

 private:
  void answer(const device::MapBuffer& command) { reports.emplace_back(device::Mapped{command.buffer}); }

  void answer(const device::UnmapBuffer& command) { reports.emplace_back(device::Unmapped{command.buffer}); }

  void answer(const device::LoadPlan& command) { reports.emplace_back(device::Loaded{command.plan}); }

  void answer(const device::LoadStats& command) { reports.emplace_back(device::Loaded{command.plan}); }

  void answer(const device::UnloadPlan& command) { reports.emplace_back(device::Unloaded{command.plan}); }

  void answer(const device::ReduceBucket& command) {
    reports.emplace_back(device::Reduced{command.plan, command.tag, command.bucket, 0.001});
  }

  void answer(const device::FinishStep& command) {
    device::Finished report{command.plan, command.tag, {}};
    const double norm = command.tag % 2 == 0 ? 0.5 : 2;  // every other step is clipped
    report.math.norm = norm;
    report.math.counted_elements = kTensors * kElements;
    for (const plan::ClipRule& rule : command.rules) {
      report.math.groups.push_back(plan::apply_clip_rule(rule, norm, command.scale));
      report.math.raw_group_norms.push_back(norm);
    }
    plan::decide_together(report.math.groups);
    reports.emplace_back(std::move(report));
  }

  /// Nothing else comes in the steps taken here.
  template <typename Command>
  void answer(const Command&) {}
};

std::string any_text(const StepReport&, std::size_t room) { return std::string(std::min(room, kTextBytes), 'x'); }

/// Two ranks of one job, and all that they talk to.
class Node {
 public:
  Node(std::string_view which, const std::string& folder)
      : stats_(which == "stats"),
        tensors_(which == "empty" ? 1 : kTensors),
        engine_(
            options(stats_ ? folder : std::string()), Lanes(lane_), planner_, [](const Event&) {}, metrics_
        ) {
    engine_.advance(now_);
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      sessions_[rank] = attach(rank);
    }
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      declare(rank);
    }
    settle();
  }

  [[nodiscard]] std::int64_t done() const { return done_; }

  void step() {
    now_ += Milliseconds(1);
    engine_.advance(now_);
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      for (const SessionId session : sessions_) {
        engine_.bucket_ready(session, {key_, bucket, {}});
      }
      settle();
    }
    for (const SessionId session : sessions_) {
      FinishRequest request;
      request.key = key_;
      request.step = number_;
      request.ready_all = true;
      engine_.finish(session, std::move(request), [this](const Result<RankReport>& result) { answered(result); });
    }
    ++number_;
    settle();
  }

 private:
  static EngineOptions options(const std::string& folder) {
    EngineOptions options;
    options.buckets = {kBucketBytes, kBucketBytes};
    options.history = kHistory;
    options.encode_report = any_text;
    options.policy_directory = folder;
    return options;
  }

  SessionId attach(std::int64_t rank) {
    AttachRequest request;
    request.job = "job";
    request.uid = 1000;
    request.pid = 100 + rank;
    request.client_id = "client " + std::to_string(rank);
    request.rank = rank;
    request.world_size = kRanks;
    request.meshes = {{"default", {{"dp", kRanks}}, {}}};
    return engine_.attach(request)->session;
  }

  [[nodiscard]] plan::RankDeclaration declaration() const {
    plan::RankDeclaration all;
    plan::ClipOptions clip;
    clip.max_norm = 1;
    if (stats_) {
      all.options.data_path = plan::DataPath::Stats;
      clip.policy = plan::PercentilePolicy{90, 100, 10};
    }
    all.options.clip = {{"all", clip}};
    for (int number = 0; number < tensors_; ++number) {
      plan::TensorDeclaration& tensor = all.tensors.own().emplace_back();
      tensor.name = "layers." + std::to_string(number / 10) + ".weight_" + std::to_string(number % 10);
      tensor.layer = "layers." + std::to_string(number / 10);
      tensor.shape = tensor.local_shape = {kElements};
      tensor.mesh = "default";
      if (stats_) {
        tensor.placements = {{{"dp"}, plan::Replicate{}}};
      } else {
        tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
      }
    }
    return all;
  }

  void declare(std::int64_t rank) {
    DeclareRequest request;
    request.declaration = declaration();
    request.buffer = engine_.allocate(sessions_[rank], kTensors * 64)->buffer;
    engine_.declare(sessions_[rank], std::move(request), [this](const Result<DeclareResult>& result) {
      if (!result) {
        std::fprintf(stderr, "declare: %s\n", result.error().message.c_str());
        std::exit(1);
      }
      key_ = {result->epoch, result->attempt};
      buckets_ = static_cast<std::uint32_t>(result->plan->buckets.size());
    });
  }

  void answered(const Result<RankReport>& result) {
    if (!result) {
      std::fprintf(stderr, "step: %s\n", result.error().message.c_str());
      std::exit(1);
    }
    key_ = {result->report->epoch, result->report->next_attempt};
    ++done_;
  }

  void settle() {
    while (!planner_.requests.empty() || !lane_.reports.empty()) {
      if (!planner_.requests.empty()) {
        engine_.on_plan(planner_.plan_next());
      } else {
        device::LaneReport report = std::move(lane_.reports.front());
        lane_.reports.pop_front();
        engine_.on_lane_report(device::kHostLane, std::move(report));
      }
    }
  }

  bool stats_;
  int tensors_;
  TimePoint now_{std::chrono::seconds(1000)};
  InstantLane lane_;
  fakes::InlinePlanner planner_;
  prometheus::Registry registry_;
  EngineMetrics metrics_{registry_};
  Engine engine_;
  std::array<SessionId, kRanks> sessions_{};
  StepKey key_;
  std::uint32_t buckets_ = 0;
  std::int64_t number_ = 0;
  std::int64_t done_ = 0;  ///< answers
};

}  // namespace

/// Callgrind counts from its entry to its end. No lambda in it: that would have a part of its name.
[[gnu::noinline]] void take_steps(Node& node, int steps) {
  for (int step = 0; step < steps; ++step) {
    node.step();
  }
}

}  // namespace gradsync::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_instructions empty|arena|stats STEPS FOLDER\n");
    return 64;
  }
  spdlog::set_level(spdlog::level::off);  // what is printed is read
  const int steps = std::atoi(argv[2]);
  gradsync::bench::Node node(argv[1], argv[3]);
  for (int step = 0; step < gradsync::bench::kWarmUp; ++step) {
    node.step();
  }
  gradsync::bench::take_steps(node, steps);
  if (node.done() != gradsync::bench::kRanks * (steps + gradsync::bench::kWarmUp)) {
    std::fprintf(stderr, "%lld answers came\n", static_cast<long long>(node.done()));
    return 1;
  }
  std::printf("GCC %s, glibc %s\n", __VERSION__, ::gnu_get_libc_version());
  return 0;
}
