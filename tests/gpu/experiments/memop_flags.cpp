// Question 2: do 64-bit flags in pages shared by CUDA IPC order the streams of two processes, how fast, and how are
// waits ended that would have no end?
//
//   attributes        what the driver says, and what a call on an own and on an imported page says.
//   order_*           rounds of gate → trainer fills → flag → sidecar checks and fills → flag back → trainer checks,
//   with up
//                     to 64 rounds enqueued ahead. `trainer_different` and `sidecar_different` (words read before they
//                     were written) must be 0, `rounds` should be 10,000. By the owner of the flags; `_mps`: both under
//                     MPS.
//   pending           the sidecar's stream must be seen waiting while the gate is shut (`early` = 0), and done after.
//   connections_1     CUDA_DEVICE_MAX_CONNECTIONS=1, which some trainers set: can one stream still release another?
//   wake_*            microseconds from the trainer to the sidecar: `gpu_end_to_start` from a kernel's end here to a
//   kernel's
//                     start there (device clock), `host_to_host` from the call here to the host seeing it there.
//   round_trip        microseconds per flag there and back, 500 enqueued at once.
//   released_by_*     which kinds of write end a wait, by the owner and by the other process. `false` for a memcpy
//   means
//                     that poison must be a cuStreamWriteValue64.
//   poison            INT64_MAX ends the wait; the flag is reset, and the next rounds are right.
//   owner_killed      the owner of the page dies while the sidecar waits on it: can the sidecar still release itself?
//   close_*           what closing or freeing does while a stream waits: returns, or only after the wait was released?
//   killed_waiting    the waiting process gets SIGKILL: how long until it is gone, and does the other one still work?

#include "gpu/experiments/device_worker.hpp"
#include "gpu/experiments/experiment.hpp"
#include "gpu/experiments/mps.hpp"
#include "gpu/experiments/probe_kernels.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::int64_t kPoison = std::numeric_limits<std::int64_t>::max();
// Ready and done lie in different pages of a block of 4 MiB, the data behind them.
constexpr std::size_t kReady = 0;
constexpr std::size_t kDone = 64 << 10;
constexpr std::size_t kData = 2 * kMiB;
constexpr std::size_t kDataBytes = kMiB;

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

constexpr double kStuckSeconds = 10;

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

std::vector<double> read_stamps(CUdeviceptr stamps, std::size_t count) {
  std::vector<std::uint64_t> values(count);
  device().free_stream().copy_to_host(values.data(), stamps, count * 8);
  std::vector<double> result;
  for (const std::uint64_t value : values) {
    // Without the upper digits, so that a double keeps nanoseconds; both processes drop the same ones.
    result.push_back(static_cast<double>(value % 1'000'000'000'000'000));
  }
  return result;
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
  return Message("ok").set("times", on_device ? read_stamps(stamps, rounds) : times);
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
  return Message("ok").set("times", on_device ? read_stamps(stamps, rounds) : times);
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

Handlers handlers() {
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
  return all;
}

/// Two workers that share the blocks "trainer" and "sidecar", one owned by each, and a socket.
class Pair {
 public:
  explicit Pair(const Environment& environment = eager_environment())
      : sockets_(socket_pair()),
        trainer({.name = "trainer", .environment = environment, .peer_socket = sockets_.ours}),
        sidecar({.name = "sidecar", .environment = environment, .peer_socket = sockets_.theirs}) {
    // A worker that ends must be seen by the other.
    (void)close(sockets_.ours);
    (void)close(sockets_.theirs);
    trainer.send(Message("start"));
    sidecar.send(Message("start"));
    (void)trainer.reply(40);
    (void)sidecar.reply(40);
    (void)trainer.call(Message("allocate").set("block", "trainer").set("bytes", 4 * kMiB));
    (void)sidecar.call(Message("allocate").set("block", "sidecar").set("bytes", 4 * kMiB));
    for (Worker* worker : {&trainer, &sidecar}) {
      const char* own = worker == &trainer ? "trainer" : "sidecar";
      (void)worker->call(Message("fill").set("block", own).set("words", kMiB).set("value", 0));
    }
    (void)share(trainer, sidecar, "trainer");
    (void)share(sidecar, trainer, "sidecar");
  }

 private:
  SocketPair sockets_;

 public:
  Worker trainer;
  Worker sidecar;
};

Message with_flags(Message message, const std::string& ready_owner, const std::string& done_owner) {
  return message.set("ready", ready_owner)
      .set("ready_offset", kReady)
      .set("done", done_owner)
      .set("done_offset", kDone)
      .set("data", ready_owner)
      .set("data_offset", kData);
}

void attributes(JsonLine& line) {
  Pair pair;
  const Message said = pair.sidecar.call(Message("attributes"));
  line.add("memops_64", said.flag("memops_64"))
      .add("memops_64_v1", said.flag("memops_64_v1"))
      .add("flush_remote_writes", said.flag("flush_remote_writes"))
      .add("ipc_events", said.flag("ipc_events"));
  for (const char* owner : {"sidecar", "trainer"}) {
    std::string answer = "ok";
    try {
      (void)pair.sidecar.call(Message("write").set("page", owner).set("value", 7).set("by", "memop"));
      (void)pair.sidecar.call(Message("wait").set("page", owner).set("value", 7));
      const Message done = pair.sidecar.call(Message("done").set("seconds", 5));
      answer = done.flag("done") ? "ok" : "written, but the wait did not end within 5 s";
    } catch (const WorkerRefused& refused) {
      answer = refused.what();
    }
    line.add(std::string("sidecar_on_page_of_") + owner, answer);
  }
}

void run_order(
    JsonLine& line,
    const Pair& /*keeps both alive*/,
    Worker& trainer,
    Worker& sidecar,
    std::int64_t rounds,
    double seconds,
    const char* ready_owner,
    const char* done_owner
) {
  const auto run = [&](std::int64_t first, std::int64_t last) {
    trainer.send(with_flags(Message("order_trainer"), ready_owner, done_owner).set("first", first).set("last", last));
    sidecar.send(with_flags(Message("order_sidecar"), ready_owner, done_owner).set("first", first).set("last", last));
    const Message by_trainer = trainer.reply(seconds + 2 * kStuckSeconds);
    const Message by_sidecar = sidecar.reply(2 * kStuckSeconds);
    return std::pair{by_trainer, by_sidecar};
  };
  // A short run says how many rounds fit into the time.
  const std::int64_t trial = std::min<std::int64_t>(rounds, 200);
  const double us_per_round = run(1, trial).first.number("us") / static_cast<double>(trial);
  const auto fitting = static_cast<std::int64_t>(seconds * 1e6 / us_per_round);
  const std::int64_t last = std::max(trial + 1, std::min(rounds, fitting));
  const auto [by_trainer, by_sidecar] = run(trial + 1, last);
  line.add("flag_ready_owner", ready_owner)
      .add("flag_done_owner", done_owner)
      .add("rounds", last)
      .add("trainer_different", by_trainer.integer("different"))
      .add("sidecar_different", by_sidecar.integer("different"))
      .add("us_per_round", by_trainer.number("us") / static_cast<double>(last - trial));
}

void order_part(
    JsonLine& line,
    bool quick,
    const char* ready_owner,
    const char* done_owner,
    const Environment& environment = eager_environment()
) {
  Pair pair(environment);
  run_order(line, pair, pair.trainer, pair.sidecar, quick ? 300 : 10'000, 12, ready_owner, done_owner);
}

void order_mps(JsonLine& line, bool quick) {
  const MultiProcessService service;
  if (!service.refused().empty()) {
    line.add("not_possible", service.refused());
    return;
  }
  order_part(line, quick, "trainer", "trainer", service.environment());
}

void pending(JsonLine& line, int rounds) {
  Pair pair;
  int early = 0;
  int late = 0;
  for (int round = 1; round <= rounds; ++round) {
    const auto about = [&](const char* what) {
      return with_flags(Message(what), "trainer", "trainer").set("value", round);
    };
    (void)pair.trainer.call(about("gated_fill"));
    (void)pair.sidecar.call(about("wait_count"));
    early += pair.sidecar.call(Message("done").set("seconds", 0.0005)).flag("done");
    (void)pair.trainer.call(about("open_gate"));
    late += !pair.sidecar.call(Message("done").set("seconds", 5)).flag("done");
  }
  line.add("rounds", rounds)
      .add("early", early)
      .add("never", late)
      .add("different", pair.sidecar.call(Message("different")).integer("different"));
}

void connections_1(JsonLine& line) {
  Pair pair(with(eager_environment(), "CUDA_DEVICE_MAX_CONNECTIONS", "1"));
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  try {
    (void)pair.sidecar.call(Message("write").set("page", "trainer").set("value", kPoison).set("by", "memop"));
    line.add("own_stream_releases", pair.sidecar.call(Message("done").set("seconds", 3)).flag("done"));
  } catch (const WorkerRefused& refused) {
    line.add("own_stream_releases", false).add("reason", refused.what());
  }
  // Ends the wait in any case, from the process that does not wait.
  (void)pair.trainer.call(Message("write").set("page", "trainer").set("value", kPoison).set("by", "memop"));
  line.add("peer_releases", pair.sidecar.call(Message("done").set("seconds", 3)).flag("done"));
}

void wake(JsonLine& line, const char* method, const char* owner, int rounds) {
  Pair pair;
  if (std::string(method) == "event") {
    const std::string handle = pair.trainer.call(Message("export_event")).text("handle");
    (void)pair.sidecar.call(Message("open_event").set("handle", handle));
  }
  std::size_t first = 1;
  for (const bool on_device : {true, false}) {
    const auto about = [&](const char* what) {
      return with_flags(Message(what), owner, owner)
          .set("method", method)
          .set("on_device", on_device)
          .set("rounds", rounds)
          .set("first", first);
    };
    pair.trainer.send(about("wake_trainer"));
    pair.sidecar.send(about("wake_sidecar"));
    const std::vector<double> there = pair.sidecar.reply(30).numbers("times");
    const std::vector<double> here = pair.trainer.reply(30).numbers("times");
    std::vector<double> latencies;
    for (std::size_t i = 0; i < here.size() && i < there.size(); ++i) {
      latencies.push_back((there[i] - here[i]) * (on_device ? 1e-3 : 1));
    }
    line.add(on_device ? "gpu_end_to_start_us" : "host_to_host_us", summary(latencies));
    first += static_cast<std::size_t>(rounds);
  }
}

void round_trip_part(JsonLine& line, int rounds) {
  Pair pair;
  pair.trainer.send(with_flags(Message("round_trip_trainer"), "trainer", "trainer").set("rounds", rounds));
  pair.sidecar.send(with_flags(Message("round_trip_sidecar"), "trainer", "trainer").set("rounds", rounds));
  line.add("rounds", rounds).add("us_per_round_trip", pair.trainer.reply(25).number("us_per_round"));
  (void)pair.sidecar.reply();
}

void released_by(JsonLine& line, const char* by) {
  Pair pair;
  std::int64_t offset = 0;
  for (const bool by_peer : {false, true}) {
    const std::string key = by_peer ? "from_the_peer" : "from_the_waiting_process";
    const auto about = [&](const char* what) {
      return Message(what).set("page", "trainer").set("page_offset", offset);
    };
    (void)pair.sidecar.call(about("wait").set("value", 5));
    Worker& writer = by_peer ? pair.trainer : pair.sidecar;
    bool released = false;
    try {
      (void)writer.call(about("write").set("value", kPoison).set("by", by));
      released = pair.sidecar.call(Message("done").set("seconds", 2)).flag("done");
    } catch (const WorkerRefused& refused) {
      line.add(key + "_reason", refused.what());
    }
    line.add(key, released);
    if (!released) {
      (void)pair.trainer.call(about("write").set("value", kPoison).set("by", "memop"));
      line.add(key + "_then_by_memop", pair.sidecar.call(Message("done").set("seconds", 2)).flag("done"));
    }
    offset += 4096;
  }
}

void poison(JsonLine& line) {
  Pair pair;
  const auto write = [&](std::int64_t value) {
    (void)pair.sidecar.call(
        Message("write").set("page", "trainer").set("page_offset", kReady).set("value", value).set("by", "memop")
    );
  };
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  const double began = now_us();
  write(kPoison);
  line.add("released", pair.sidecar.call(Message("done").set("seconds", 5)).flag("done"))
      .add("released_ms_with_two_messages", (now_us() - began) * 1e-3);
  write(0);
  run_order(line, pair, pair.trainer, pair.sidecar, 300, 5, "trainer", "trainer");
}

void owner_killed(JsonLine& line) {
  Pair pair;
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  pair.trainer.kill();
  line.add("released_by_the_death", pair.sidecar.call(Message("done").set("seconds", 1)).flag("done"));
  (void)pair.sidecar.call(Message("write").set("page", "trainer").set("value", kPoison).set("by", "memop"));
  line.add("released_by_own_poison", pair.sidecar.call(Message("done").set("seconds", 5)).flag("done"));
  const Message rest = pair.sidecar.call(Message("release").set("block", "trainer"));
  line.add("close_after_us", rest.number("us"));
}

void close_while_waiting(JsonLine& line, const std::string& target, bool imported) {
  Pair pair;
  // Named here, because the closing may hang; memory that nothing waits on, of either kind.
  (void)pair.sidecar.call(Message("allocate").set("block", "own").set("bytes", 2 * kMiB));
  (void)pair.trainer.call(Message("allocate").set("block", "other").set("bytes", 2 * kMiB));
  (void)share(pair.trainer, pair.sidecar, "other");
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  (void)pair.sidecar.call(Message("begin_close").set("target", target).set("imported", imported));
  // Asked until it is closed or the time is over. A driver that holds a lock while it closes blocks the question
  // itself.
  bool asked = false;
  const auto state_within = [&](double seconds) {
    const Deadline deadline(seconds);
    std::optional<Message> state;
    do {
      if (!asked) {
        pair.sidecar.send(Message("close_state"));
      }
      state = pair.sidecar.reply_within(seconds);
      asked = !state.has_value();
    } while (!deadline.passed() && state.has_value() && !state->flag("closed"));
    return state;
  };
  const std::optional<Message> before = state_within(2);
  line.add("other_calls_blocked", !before.has_value())
      .add("returned_while_waiting", before.has_value() && before->flag("closed"))
      .add("stream_after_closing", before.has_value() ? before->text("stream") : "not known");
  (void)pair.trainer.call(Message("write").set("page", "trainer").set("value", kPoison).set("by", "memop"));
  const std::optional<Message> after = state_within(5);
  line.add("returned_after_release", after.has_value() && after->flag("closed"));
  if (after.has_value()) {
    line.add("result", after->text("result"))
        .add("closed_after_us", after->number("us"))
        .add("stream_after_release", after->text("stream"));
  }
}

void killed_waiting(JsonLine& line) {
  Pair pair;
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  const double began = now_us();
  pair.sidecar.kill();
  line.add("process_gone_ms", (now_us() - began) * 1e-3);
  (void)pair.trainer.call(Message("fill").set("block", "trainer").set("words", 1024).set("value", 3));
  line.add("other_process_works", true);
}

void ask(Experiment& experiment) {
  const bool quick = experiment.quick();
  const int rounds = quick ? 20 : 300;
  experiment.part("attributes", 60, attributes);
  experiment.part("order_flags_of_trainer", 80, [&](JsonLine& line) { order_part(line, quick, "trainer", "trainer"); });
  experiment.part("order_flags_of_sidecar", 80, [&](JsonLine& line) { order_part(line, quick, "sidecar", "sidecar"); });
  // Ready lies with the sidecar, done with the trainer: each waits only on memory that it owns.
  experiment.part("order_waits_on_own", 80, [&](JsonLine& line) { order_part(line, quick, "sidecar", "trainer"); });
  experiment.part("pending", 60, [&](JsonLine& line) { pending(line, quick ? 10 : 200); });
  experiment.part("wake_memop_page_of_trainer", 60, [&](JsonLine& line) { wake(line, "memop", "trainer", rounds); });
  experiment.part("wake_memop_page_of_sidecar", 60, [&](JsonLine& line) { wake(line, "memop", "sidecar", rounds); });
  experiment.part("wake_event", 60, [&](JsonLine& line) { wake(line, "event", "trainer", rounds); });
  experiment.part("wake_host", 60, [&](JsonLine& line) { wake(line, "host", "trainer", rounds); });
  experiment.part("round_trip", 60, [&](JsonLine& line) { round_trip_part(line, quick ? 50 : 200); });
  for (const char* by : {"memop", "kernel", "memcpy", "memset"}) {
    experiment.part(std::string("released_by_") + by, 60, [&](JsonLine& line) { released_by(line, by); });
  }
  experiment.part("poison", 60, poison);
  experiment.part("connections_1", 60, connections_1);
  experiment.part("owner_killed", 60, owner_killed);
  experiment.part("close_waited_page", 60, [](JsonLine& line) { close_while_waiting(line, "trainer", true); });
  experiment.part("close_other_page", 60, [](JsonLine& line) { close_while_waiting(line, "other", true); });
  experiment.part("close_own_memory", 60, [](JsonLine& line) { close_while_waiting(line, "own", false); });
  experiment.part("killed_waiting", 60, killed_waiting);
  experiment.part("order_mps", 80, [&](JsonLine& line) { order_mps(line, quick); });
}

}  // namespace
}  // namespace gradsync::experiments

int main(int argc, char** argv) {
  using namespace gradsync::experiments;
  return experiment_main(argc, argv, "memop_flags", 110, handlers, ask);
}
