#include "gpu/experiments/workers/memop_worker.hpp"

#include "gpu/experiments/loads/probe_kernels.hpp"
#include "gpu/experiments/workers/device_worker.hpp"
#include "gpu/experiments/workers/host_flag.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

namespace gradsync::experiments {
namespace {

DeviceWorker& device() {
  static DeviceWorker one;
  return one;
}

/// At most 64 rounds are enqueued ahead of the device.
class Window {
 public:
  explicit Window(const Stream& stream) : stream_(stream) {}

  /// False when the device is stuck.
  [[nodiscard]] bool after(std::int64_t round, double seconds) {
    if (round % 16 != 0) {
      return true;
    }
    const std::size_t slot = static_cast<std::size_t>(round / 16) % events_.size();
    events_[slot].record(stream_);
    const Event& oldest = events_[(slot + 1) % events_.size()];
    const Deadline deadline(seconds);
    while (!oldest.done()) {
      if (deadline.passed()) {
        return false;
      }
    }
    return true;
  }

 private:
  const Stream& stream_;
  std::array<Event, 4> events_{
      Event(cudaEventDisableTiming),
      Event(cudaEventDisableTiming),
      Event(cudaEventDisableTiming),
      Event(cudaEventDisableTiming)};
};

[[noreturn]] void stuck(const Message& message, std::int64_t round) {
  const auto flag = [&](const char* key) {
    return std::to_string(static_cast<std::int64_t>(device().read_word(device().address(message, key))));
  };
  throw std::runtime_error(
      "a lost order: stuck near round " + std::to_string(round) + ", ready " + flag("ready") + ", done " + flag("done")
  );
}

/// Microseconds of busy waiting, 0 to 20.
class Jitter {
 public:
  void wait() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    const double until = now_us() + static_cast<double>(state_ >> 59) * 0.6;
    while (now_us() < until) {
    }
  }

 private:
  std::uint64_t state_ = 1;
};

Message order(const Message& message, bool trainer) {
  const Stream& stream = device().stream();
  const CUdeviceptr ready = device().address(message, "ready");
  const CUdeviceptr done = device().address(message, "done");
  const CUdeviceptr data = device().address(message, "data");
  const CUdeviceptr gate = device().word(1);
  const CUdeviceptr different = device().word(2);
  const std::size_t words = kDataBytes / 4;
  Window window(stream);
  Jitter jitter;
  const std::int64_t last = message.integer("last");
  const double began = now_us();
  for (std::int64_t round = message.integer("first"); round <= last; ++round) {
    const auto sequence = static_cast<std::uint64_t>(round);
    const auto ours = static_cast<std::uint32_t>(round);
    if (trainer) {
      stream.wait_at_least(gate, sequence);
      must(fill_words(data, words, ours, stream.get()), "fill_words");
      stream.write(ready, sequence);
      stream.wait_at_least(done, sequence);
      must(count_different_words(data, words, ~ours, different, stream.get()), "count_different_words");
      jitter.wait();
      device().free_stream().write(gate, sequence);
    } else {
      stream.wait_at_least(ready, sequence);
      must(count_different_words(data, words, ours, different, stream.get()), "count_different_words");
      must(fill_words(data, words, ~ours, stream.get()), "fill_words");
      stream.write(done, sequence);
    }
    if (!window.after(round, kStuckSeconds)) {
      stuck(message, round);
    }
  }
  if (!stream.done_within(kStuckSeconds)) {
    stuck(message, last);
  }
  return Message("ok")
      .set("us", now_us() - began)
      .set("different", static_cast<std::int64_t>(device().read_word(different)));
}

// The event that the trainer records for the sidecar.
cudaEvent_t shared_event = nullptr;

enum class Method { kMemop, kEvent, kHost };

Method method_of(const Message& message) {
  const std::string& name = message.text("method");
  if (name != "memop" && name != "event" && name != "host") {
    throw std::runtime_error("no method '" + name + "'");
  }
  return name == "memop" ? Method::kMemop : name == "event" ? Method::kEvent : Method::kHost;
}

void expect_from_peer() {
  Message message;
  if (!receive(kPeerSocket, &message, Deadline(10))) {
    throw std::runtime_error("the other worker sent nothing for 10 s");
  }
}

void tell_peer() { send(kPeerSocket, Message("now")); }

void finish(const Stream& stream) {
  if (!stream.done_within(10)) {
    throw std::runtime_error("the stream is still waiting after 10 s");
  }
}

/// Per round: [kernel ends] → signal. The answer has, per round, the time of the end: device clock or host clock.
Message wake_trainer(const Message& message) {
  const Stream& stream = device().stream();
  const Method method = method_of(message);
  const bool on_device = message.flag("on_device");
  const std::size_t rounds = message.size("rounds");
  const CUdeviceptr ready = device().address(message, "ready");
  const CUdeviceptr stamps = device().words(rounds);
  std::vector<double> times;
  for (std::size_t round = 0; round < rounds; ++round) {
    expect_from_peer();
    if (on_device) {
      // Long enough that everything behind it is enqueued before it ends.
      must(spin(200'000, stream.get()), "spin");
      must(stamp(stamps + 8 * round, stream.get()), "stamp");
    }
    times.push_back(now_us());
    switch (method) {
      case Method::kMemop:
        stream.write(ready, message.size("first") + round);
        break;
      case Method::kEvent:
        must(cudaEventRecord(shared_event, stream.get()), "cudaEventRecord");
        tell_peer();
        break;
      case Method::kHost:
        finish(stream);
        tell_peer();
        break;
    }
    finish(stream);
  }
  expect_from_peer();
  return Message("ok").set("times", on_device ? device().read_stamps(stamps, rounds) : times);
}

Message wake_sidecar(const Message& message) {
  const Stream& stream = device().stream();
  const Method method = method_of(message);
  const std::size_t rounds = message.size("rounds");
  const CUdeviceptr ready = device().address(message, "ready");
  const bool on_device = message.flag("on_device");
  const CUdeviceptr stamps = device().words(rounds);
  std::vector<double> times;
  for (std::size_t round = 0; round < rounds; ++round) {
    if (method == Method::kMemop) {
      stream.wait_at_least(ready, message.size("first") + round);
      if (on_device) {
        must(stamp(stamps + 8 * round, stream.get()), "stamp");
      }
    }
    tell_peer();
    if (method != Method::kMemop) {
      expect_from_peer();
    }
    if (method == Method::kEvent) {
      must(cudaStreamWaitEvent(stream.get(), shared_event, 0), "cudaStreamWaitEvent");
    }
    if (method == Method::kHost) {
      times.push_back(now_us());
    }
    if (method != Method::kMemop && on_device) {
      must(stamp(stamps + 8 * round, stream.get()), "stamp");
    }
    finish(stream);
    if (method != Method::kHost) {
      times.push_back(now_us());
    }
  }
  tell_peer();
  return Message("ok").set("times", on_device ? device().read_stamps(stamps, rounds) : times);
}

Message round_trip(const Message& message, bool trainer) {
  const Stream& stream = device().stream();
  const CUdeviceptr ready = device().address(message, "ready");
  const CUdeviceptr done = device().address(message, "done");
  const std::size_t rounds = message.size("rounds");
  if (trainer) {
    stream.wait_at_least(device().word(1), 1);
  }
  for (std::size_t round = 1; round <= rounds; ++round) {
    if (trainer) {
      stream.write(ready, round);
      stream.wait_at_least(done, round);
    } else {
      stream.wait_at_least(ready, round);
      stream.write(done, round);
    }
  }
  if (!trainer) {
    tell_peer();
    finish(stream);
    return Message("ok");
  }
  expect_from_peer();
  const double began = now_us();
  device().free_stream().write(device().word(1), 1);
  finish(stream);
  return Message("ok").set("us_per_round", (now_us() - began) / static_cast<double>(rounds));
}

Message write_by(const Message& message) {
  const Stream& stream = device().free_stream();
  const CUdeviceptr at = device().address(message, "page");
  const auto value = static_cast<std::uint64_t>(message.integer("value"));
  const std::string& by = message.text("by");
  if (by == "memop") {
    stream.write(at, value);
  } else if (by == "kernel") {
    must(store(at, value, stream.get()), "store");
  } else if (by == "memcpy") {
    stream.copy_to_device(at, &value, sizeof(value));
  } else if (by == "memset") {
    // Sets each byte: 0x01…01 is above every value that is waited for.
    must(cudaMemsetAsync(reinterpret_cast<void*>(at), 1, 8, stream.get()), "cudaMemsetAsync");
  } else {
    throw std::runtime_error("no way '" + by + "'");
  }
  if (!stream.done_within(5)) {
    throw std::runtime_error("the write itself is not done after 5 s");
  }
  return Message("ok");
}

// One closing at a time, on a thread that may never come back.
std::atomic<bool> closed{false};
std::atomic<double> closed_after_us{0};
std::atomic<int> closed_result{0};

Message begin_close(const Message& message) {
  const CUdeviceptr at = device().address(message, "target");
  const bool imported = message.flag("imported");
  std::thread([at, imported] {
    (void)cudaSetDevice(0);
    const double began = now_us();
    const CUresult result = imported ? driver().ipc_close(at) : driver().memory_free(at);
    closed_after_us = now_us() - began;
    closed_result = static_cast<int>(result);
    closed = true;
  }).detach();
  return Message("ok");
}

Message close_state(const Message&) {
  const cudaError_t stream = cudaStreamQuery(device().stream().get());
  return Message("ok")
      .set("closed", closed.load())
      .set("us", closed_after_us.load())
      .set("result", name_of(static_cast<CUresult>(closed_result.load())))
      .set("stream", stream == cudaErrorNotReady ? std::string("waiting") : name_of(stream));
}

}  // namespace

Handlers memop_handlers() {
  Handlers all = device().handlers();
  all["order_trainer"] = [](const Message& message) { return order(message, true); };
  all["order_sidecar"] = [](const Message& message) { return order(message, false); };
  all["wake_trainer"] = wake_trainer;
  all["wake_sidecar"] = wake_sidecar;
  all["round_trip_trainer"] = [](const Message& message) { return round_trip(message, true); };
  all["round_trip_sidecar"] = [](const Message& message) { return round_trip(message, false); };
  all["write"] = write_by;
  all["begin_close"] = begin_close;
  all["close_state"] = close_state;
  all["attributes"] = [](const Message&) {
    return Message("ok")
        .set("memops_64", attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
        .set("memops_64_v1", attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1))
        .set("flush_remote_writes", attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES))
        .set("ipc_events", attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED));
  };
  all["wait"] = [](const Message& message) {
    device().stream().wait_at_least(device().address(message, "page"), message.size("value"));
    return Message("ok");
  };
  all["done"] = [](const Message& message) {
    const double began = now_us();
    const bool done = device().stream().done_within(message.number("seconds"));
    return Message("ok").set("done", done).set("us", now_us() - began);
  };
  all["gated_fill"] = [](const Message& message) {
    const Stream& stream = device().stream();
    stream.wait_at_least(device().word(1), message.size("value"));
    const auto value = static_cast<std::uint32_t>(message.integer("value"));
    must(fill_words(device().address(message, "data"), kDataBytes / 4, value, stream.get()), "fill_words");
    stream.write(device().address(message, "ready"), message.size("value"));
    return Message("ok");
  };
  all["wait_count"] = [](const Message& message) {
    const Stream& stream = device().stream();
    const auto value = static_cast<std::uint32_t>(message.integer("value"));
    stream.wait_at_least(device().address(message, "ready"), message.size("value"));
    must(
        count_different_words(device().address(message, "data"), kDataBytes / 4, value, device().word(2), stream.get()),
        "count_different_words"
    );
    return Message("ok");
  };
  all["open_gate"] = [](const Message& message) {
    device().free_stream().write(device().word(1), message.size("value"));
    return Message("ok");
  };
  all["different"] = [](const Message&) {
    return Message("ok").set("different", static_cast<std::int64_t>(device().read_word(device().word(2))));
  };
  all["export_event"] = [](const Message&) {
    static const Event event(cudaEventInterprocess | cudaEventDisableTiming);
    shared_event = event.get();
    cudaIpcEventHandle_t handle{};
    must(cudaIpcGetEventHandle(&handle, event.get()), "cudaIpcGetEventHandle");
    return Message("ok").set("handle", hex(&handle, sizeof(handle)));
  };
  all["open_event"] = [](const Message& message) {
    cudaIpcEventHandle_t handle{};
    unhex(message.text("handle"), &handle, sizeof(handle));
    must(cudaIpcOpenEventHandle(&shared_event, handle), "cudaIpcOpenEventHandle");
    return Message("ok");
  };
  add_host_flag_handlers(all, device());
  return all;
}

}  // namespace gradsync::experiments
