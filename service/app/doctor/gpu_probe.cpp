#include "app/doctor/gpu_probe.hpp"

#include "app/daemon/gpu_workers.hpp"
#include "device/memory/arena.hpp"

#include <fmt/format.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>

namespace gradsync::app {

namespace {

constexpr std::uint64_t kBytes = 1 << 16;

Finding worker_failed(const std::string& gpu, const std::string& why, const std::string& hint) {
  return {Finding::Level::Problem, fmt::format("a worker cannot use {}: {}", gpu, why), hint};
}

}  // namespace

Finding probe_gpu(const GpuSection& options, const std::string& gpu, Milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  auto answered = std::make_shared<std::promise<device::LaneReport>>();
  std::future<device::LaneReport> answer = answered->get_future();
  GpuWorkers workers(options, [answered](device::LaneId, device::LaneReport report) {
    try {
      answered->set_value(std::move(report));
    } catch (const std::future_error&) {  // the first report is the answer
    }
  });
  const auto lane = workers.start(1, gpu);
  if (!lane) {
    return worker_failed(gpu, lane.error().message, lane.error().hint);
  }
  Result<UniqueFd> memory = device::create_arena(kBytes);
  if (!memory) {
    return worker_failed(gpu, memory.error().message, memory.error().hint);
  }
  (*lane)->submit(device::MapBuffer{1, std::move(*memory), kBytes});
  if (answer.wait_for(timeout) != std::future_status::ready) {
    return worker_failed(gpu, fmt::format("it did not answer within {} ms", timeout.count()), "look at nvidia-smi");
  }
  const device::LaneReport report = answer.get();
  if (const auto* failed = std::get_if<device::Failed>(&report)) {
    return worker_failed(gpu, failed->message, failed->hint);
  }
  const auto took = std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begin);
  return {Finding::Level::Ok, fmt::format("a worker opened {} and reached memory in {} ms", gpu, took.count())};
}

}  // namespace gradsync::app
