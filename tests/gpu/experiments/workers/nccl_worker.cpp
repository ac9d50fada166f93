#include "gpu/experiments/workers/nccl_worker.hpp"

#include "gpu/experiments/loads/probe_kernels.hpp"
#include "gpu/experiments/nccl_library.hpp"
#include "gpu/experiments/workers/device_worker.hpp"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <sched.h>

namespace gradsync::experiments {
namespace {

DeviceWorker& device() {
  static DeviceWorker one;
  return one;
}

std::map<std::string, void*> communicators;
std::unique_ptr<Event> reduced;

void* communicator(const Message& message) { return communicators[message.text("communicator")]; }

std::string words_for(int result) {
  return std::string(nccl().error_string(result)) + " (" + std::to_string(result) + ")";
}

int state_of(void* one) {
  int state = kNcclSuccess;
  const int asked = nccl().get_async_error(one, &state);
  return asked != kNcclSuccess ? asked : state;
}

/// The state once it is not "in progress", or that at the deadline.
int settled(void* one, int result, double seconds) {
  const Deadline deadline(seconds);
  while (result == kNcclInProgress && !deadline.passed()) {
    (void)usleep(100);
    result = state_of(one);
  }
  return result;
}

void must_nccl(void* one, int result, const char* call) {
  if (result != kNcclSuccess) {
    throw std::runtime_error(std::string(call) + ": " + words_for(result) + "; " + nccl().last_error(one));
  }
}

std::size_t threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

Message init(const Message& message) {
  NcclUniqueId id{};
  unhex(message.text("id"), &id, sizeof(id));
  NcclConfig config;
  config.blocking = 0;
  if (message.has("max_ctas")) {
    config.max_ctas = static_cast<int>(message.integer("max_ctas"));
  }
  void* one = nullptr;
  const double began = now_us();
  const int returned = nccl().init_rank_config(&one, 2, id, static_cast<int>(message.integer("rank")), &config);
  const double returned_us = now_us() - began;
  const int state = settled(one, returned, message.number("seconds"));
  communicators[message.text("communicator")] = one;
  return Message("ok")
      .set("call_ms", returned_us * 1e-3)
      .set("ms", (now_us() - began) * 1e-3)
      .set("ready", state == kNcclSuccess)
      .set("in_progress", state == kNcclInProgress)
      .set("state", words_for(state))
      .set("last_error", nccl().last_error(one));
}

void enqueue_reduce(const Message& message) {
  void* one = communicator(message);
  const CUdeviceptr at = device().address(message, "block");
  auto* const buffer = reinterpret_cast<void*>(at);
  const int result =
      nccl().all_reduce(buffer, buffer, message.size("count"), kNcclFloat32, kNcclSum, one, device().stream().get());
  // Nothing may be put on the stream while the call is in progress.
  must_nccl(one, settled(one, result, 10), "ncclAllReduce");
  if (reduced == nullptr) {
    reduced = std::make_unique<Event>(cudaEventDisableTiming);
  }
  reduced->record(device().stream());
}

Message reduce(const Message& message) {
  void* one = communicator(message);
  std::vector<double> times;
  for (std::int64_t round = 0; round < message.integer("rounds"); ++round) {
    const double began = now_us();
    enqueue_reduce(message);
    const Deadline deadline(message.number("seconds"));
    while (!reduced->done()) {
      const int state = state_of(one);
      if (state != kNcclSuccess && state != kNcclInProgress) {
        must_nccl(one, state, "all-reduce");
      }
      if (deadline.passed()) {
        throw std::runtime_error("all-reduce: not done within its time, state " + words_for(state));
      }
      (void)sched_yield();
    }
    times.push_back((now_us() - began) * 1e-3);
  }
  return Message("ok").set("times", times);
}

Message stream_state(const Message& message) {
  const double began = now_us();
  if (message.has("seconds")) {
    const Deadline deadline(message.number("seconds"));
    while (cudaEventQuery(reduced->get()) == cudaErrorNotReady && !deadline.passed()) {
      (void)usleep(100);
    }
  }
  const cudaError_t event = cudaEventQuery(reduced->get());
  return Message("ok")
      .set("event", name_of(event))
      .set("stream", name_of(cudaStreamQuery(device().stream().get())))
      .set("pending", event == cudaErrorNotReady)
      .set("waited_ms", (now_us() - began) * 1e-3);
}

Message reduce_state(const Message& message) {
  return stream_state(message).set("async_error", words_for(state_of(communicator(message))));
}

/// Seconds until the communicator itself reports an error, or the deadline.
Message wait_error(const Message& message) {
  void* one = communicator(message);
  const double began = now_us();
  const Deadline deadline(message.number("seconds"));
  int state = state_of(one);
  while ((state == kNcclSuccess || state == kNcclInProgress) && !deadline.passed()) {
    (void)usleep(500);
    state = state_of(one);
  }
  return Message("ok").set("seconds", (now_us() - began) * 1e-6).set("async_error", words_for(state));
}

Message end(const Message& message, bool abort) {
  void* one = communicator(message);
  const double began = now_us();
  int result = kNcclSuccess;
  if (abort) {
    result = nccl().abort(one);
  } else {
    result = settled(one, nccl().finalize(one), 10);
    must_nccl(one, result, "ncclCommFinalize");
    result = nccl().destroy(one);
  }
  communicators.erase(message.text("communicator"));
  return Message("ok").set("ms", (now_us() - began) * 1e-3).set("result", words_for(result));
}

}  // namespace

Handlers nccl_handlers() {
  Handlers all = device().handlers();
  all["version"] = [](const Message&) {
    int version = 0;
    must_nccl(nullptr, nccl().get_version(&version), "ncclGetVersion");
    return Message("ok").set("version", version);
  };
  all["unique_id"] = [](const Message&) {
    NcclUniqueId id{};
    must_nccl(nullptr, nccl().get_unique_id(&id), "ncclGetUniqueId");
    return Message("ok").set("id", hex(&id, sizeof(id)));
  };
  all["init"] = init;
  all["reduce"] = reduce;
  all["begin_reduce"] = [](const Message& message) {
    enqueue_reduce(message);
    return Message("ok");
  };
  all["stream_state"] = stream_state;
  all["reduce_state"] = reduce_state;
  all["wait_error"] = wait_error;
  all["abort"] = [](const Message& message) { return end(message, true); };
  all["destroy"] = [](const Message& message) { return end(message, false); };
  all["threads"] = [](const Message&) { return Message("ok").set("threads", threads()); };
  all["ramp"] = [](const Message& message) {
    const auto base = static_cast<float>(message.number("base"));
    const auto slope = static_cast<float>(message.number("slope"));
    const CUdeviceptr at = device().address(message, "block");
    must(fill_ramp(at, message.size("count"), base, slope, device().free_stream().get()), "fill_ramp");
    device().free_stream().synchronize();
    return Message("ok");
  };
  all["ramp_different"] = [](const Message& message) {
    const Stream& stream = device().free_stream();
    const auto base = static_cast<float>(message.number("base"));
    const auto slope = static_cast<float>(message.number("slope"));
    stream.zero(device().word(3), 8);
    must(
        count_different_ramp(
            device().address(message, "block"), message.size("count"), base, slope, device().word(3), stream.get()
        ),
        "count_different_ramp"
    );
    stream.synchronize();
    return Message("ok").set("different", static_cast<std::int64_t>(device().read_word(device().word(3))));
  };
  return all;
}

}  // namespace gradsync::experiments
