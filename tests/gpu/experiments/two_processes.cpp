// Question 3: how do two processes share one GPU, without MPS and with it?
//
//   beside_*          back-to-back matrix products of the trainer beside a load of the sidecar: memory (a kernel bound
//                     by memory), copy_device (cudaMemcpy inside the GPU, which CUDA 13.0 does by a kernel and not by a
//                     copy engine), copy_to_device and copy_to_host (copy engines, pinned memory); high: the sidecar's
//                     stream has the highest priority. Rates alone, while the other context exists and rests, and
//                     beside; shares are beside ÷ alone. `sum_of_shares`: 1 is time slicing, 2 would be full overlap,
//                     below 1 taking turns costs.
//   one_process_*     the same two loads on two streams of one process: the overlap that the hardware itself allows.
//   mps_*             the same under MPS, if `attribute_mps` of mps_start is true; 25: the sidecar has a quarter of the
//                     multiprocessors.
//   imported_memory   the memory-bound kernel on own and on imported memory; equal rates: an import costs nothing.
//   context_memory    device memory that one more process takes (context, kernels, two streams), by module loading.
//   flag_to_kernel*   microseconds from the trainer's flag to the start of the sidecar's kernel, while the trainer's
//                     other stream rests (`quiet_us`, the case of epoch separation) or multiplies (`busy_us`).

#include "gpu/experiments/experiment.hpp"
#include "gpu/experiments/loads/load.hpp"
#include "gpu/experiments/loads/probe_kernels.hpp"
#include "gpu/experiments/mps.hpp"
#include "gpu/experiments/workers/device_worker.hpp"

#include <unistd.h>

#include <memory>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

DeviceWorker& device() {
  static DeviceWorker one;
  return one;
}

std::map<std::string, std::unique_ptr<Load>> loads;

Load& load_of(const Message& message) {
  const auto found = loads.find(message.text("slot"));
  if (found == loads.end()) {
    throw std::runtime_error("no load in slot '" + message.text("slot") + "'");
  }
  return *found->second;
}

void expect_from_peer() {
  Message message;
  if (!receive(kPeerSocket, &message, Deadline(10))) {
    throw std::runtime_error("the other worker sent nothing for 10 s");
  }
}

Message flag_rounds(const Message& message, bool trainer) {
  const Stream& stream = device().free_stream();
  const std::size_t rounds = message.size("rounds");
  const CUdeviceptr ready = device().address(message, "page");
  const CUdeviceptr stamps = device().words(rounds);
  for (std::size_t round = 0; round < rounds; ++round) {
    if (trainer) {
      expect_from_peer();
      must(stamp(stamps + 8 * round, stream.get()), "stamp");
      stream.write(ready, round + 1);
    } else {
      stream.wait_at_least(ready, round + 1);
      must(stamp(stamps + 8 * round, stream.get()), "stamp");
      send(kPeerSocket, Message("armed"));
    }
    if (!stream.done_within(10)) {
      throw std::runtime_error("round " + std::to_string(round) + " is not done after 10 s");
    }
  }
  return Message("ok").set("times", device().read_stamps(stamps, rounds));
}

Handlers handlers() {
  Handlers all = device().handlers();
  all["prepare"] = [](const Message& message) {
    auto& slot = loads[message.text("slot")];
    slot = nullptr;
    const CUdeviceptr block = message.has("block") ? device().address(message, "block") : 0;
    slot = std::make_unique<Load>(message, block);
    return Message("ok").set("how", slot->how()).set("queued", slot->queued());
  };
  all["begin"] = [](const Message& message) {
    load_of(message).begin();
    return Message("ok");
  };
  all["rate"] = [](const Message& message) { return Message("ok").set("rate", load_of(message).rate()); };
  all["end"] = [](const Message& message) {
    loads.erase(message.text("slot"));
    return Message("ok");
  };
  all["flag_trainer"] = [](const Message& message) { return flag_rounds(message, true); };
  all["flag_sidecar"] = [](const Message& message) { return flag_rounds(message, false); };
  return all;
}

/// A load in a worker, begun and ended by the experiment.
struct Placed {
  Worker* worker;
  std::string kind;
  std::string slot;
  int priority = 0;
  std::string block = "";
};

struct Sizes {
  int n;
  std::size_t bytes;
  double window_seconds;
};

Sizes sizes_of(const Experiment& experiment) {
  return experiment.quick() ? Sizes{128, kMiB, 0.05} : Sizes{8192, 1024 * kMiB, 1.0};
}

Message prepare(const Placed& load, const Sizes& sizes) {
  Message message = Message("prepare")
                        .set("slot", load.slot)
                        .set("kind", load.kind)
                        .set("priority", load.priority)
                        .set("n", sizes.n)
                        // Pieces of about a millisecond each, over PCIe of a few.
                        .set("bytes", load.kind.starts_with("copy_to_") ? sizes.bytes / 8 : sizes.bytes);
  if (!load.block.empty()) {
    message.set("block", load.block);
  }
  return load.worker->call(message, 40);
}

/// Rates of loads that run at the same time, over one window after they got going.
std::vector<double> rates(const std::vector<Placed>& loads_placed, double seconds) {
  const auto each = [&](const char* what) {
    std::vector<Message> answers;
    for (const Placed& load : loads_placed) {
      answers.push_back(load.worker->call(Message(what).set("slot", load.slot)));
    }
    return answers;
  };
  (void)each("begin");
  (void)usleep(static_cast<useconds_t>(seconds * 0.2e6));
  (void)each("rate");
  (void)usleep(static_cast<useconds_t>(seconds * 1e6));
  std::vector<double> result;
  for (const Message& answer : each("rate")) {
    result.push_back(answer.number("rate"));
  }
  (void)each("end");
  return result;
}

void shares(JsonLine& line, const Placed& products, const Placed& other, const Sizes& sizes) {
  const Message prepared = prepare(products, sizes);
  line.add("products_by", prepared.text("how")).add("products_queued", prepared.integer("queued"));
  const double products_alone = rates({products}, sizes.window_seconds)[0];
  line.add("other_queued", prepare(other, sizes).integer("queued"));
  const double other_alone = rates({other}, sizes.window_seconds)[0];
  (void)prepare(products, sizes);
  (void)prepare(other, sizes);
  const std::vector<double> beside = rates({products, other}, sizes.window_seconds);
  line.add("products_alone_tflops", products_alone)
      .add("products_beside_tflops", beside[0])
      .add("other_alone_gb_s", other_alone)
      .add("other_beside_gb_s", beside[1])
      .add("products_share", beside[0] / products_alone)
      .add("other_share", beside[1] / other_alone)
      .add("sum_of_shares", beside[0] / products_alone + beside[1] / other_alone);
}

void beside(
    JsonLine& line,
    const Sizes& sizes,
    const std::string& kind,
    int priority,
    const Environment& trainer_environment,
    const Environment& sidecar_environment
) {
  Worker trainer({.name = "trainer", .environment = trainer_environment});
  Worker sidecar({.name = "sidecar", .environment = sidecar_environment});
  start_all({&trainer, &sidecar});
  shares(line, {&trainer, "matrix", "a"}, {&sidecar, kind, "a", priority}, sizes);
}

void one_process(JsonLine& line, const Sizes& sizes, const std::string& kind, int priority) {
  Worker worker = started({.name = "both", .environment = lazy_environment()});
  shares(line, {&worker, "matrix", "a"}, {&worker, kind, "b", priority}, sizes);
}

void imported_memory(JsonLine& line, const Sizes& sizes) {
  Worker trainer({"trainer", lazy_environment()});
  Worker sidecar({"sidecar", lazy_environment()});
  start_all({&trainer, &sidecar});
  (void)trainer.call(Message("allocate").set("block", "a").set("bytes", 2 * sizes.bytes));
  (void)share(trainer, sidecar, "a");
  const Placed own{&sidecar, "memory", "own"};
  const Placed imported{&sidecar, "memory", "imported", 0, "a"};
  (void)prepare(own, sizes);
  line.add("own_gb_s", rates({own}, sizes.window_seconds)[0]);
  (void)prepare(imported, sizes);
  line.add("imported_gb_s", rates({imported}, sizes.window_seconds)[0]);
}

void context_memory(JsonLine& line, const Environment& base) {
  Worker observer = started({.name = "observer", .environment = base});
  const auto free_now = [&] { return observer.call(Message("memory")).integer("free"); };
  for (const char* loading : {"LAZY", "EAGER"}) {
    const std::int64_t before = free_now();
    {
      Worker worker({.name = "worker", .environment = with(base, "CUDA_MODULE_LOADING", loading)});
      const Message answer = worker.call(Message("start"), 40);
      line.add(std::string("bytes_") + loading, before - free_now())
          .add(std::string("context_ms_") + loading, answer.number("context_ms"))
          .add(std::string("start_ms_") + loading, answer.number("start_ms"));
    }
    const Deadline deadline(3);
    while (free_now() + static_cast<std::int64_t>(kMiB) < before && !deadline.passed()) {
    }
    line.add(std::string("not_back_after_end_") + loading, before - free_now());
  }
}

void flag_to_kernel(JsonLine& line, const Sizes& sizes, int rounds, int priority, const Environment& environment) {
  const SocketPair sockets = socket_pair();
  Worker trainer = started({.name = "trainer", .environment = environment, .peer_socket = sockets.ours});
  Worker sidecar = started({.name = "sidecar", .environment = environment, .peer_socket = sockets.theirs}, priority);
  (void)close(sockets.ours);
  (void)close(sockets.theirs);
  for (const bool busy : {false, true}) {
    const std::string page = busy ? "page_busy" : "page_quiet";
    (void)trainer.call(Message("allocate").set("block", page).set("bytes", 2 * kMiB));
    (void)trainer.call(Message("fill").set("block", page).set("words", 1024).set("value", 0));
    (void)share(trainer, sidecar, page);
    const Placed products{&trainer, "matrix", "a"};
    if (busy) {
      line.add("products_by", prepare(products, sizes).text("how"));
      (void)trainer.call(Message("begin").set("slot", "a"));
    }
    trainer.send(Message("flag_trainer").set("page", page).set("rounds", rounds));
    sidecar.send(Message("flag_sidecar").set("page", page).set("rounds", rounds));
    const auto [by_trainer, by_sidecar] = replies(trainer, sidecar, 25);
    const std::vector<double> here = by_trainer.numbers("times");
    const std::vector<double> there = by_sidecar.numbers("times");
    if (busy) {
      (void)trainer.call(Message("end").set("slot", "a"));
    }
    std::vector<double> latencies;
    for (std::size_t i = 0; i < here.size() && i < there.size(); ++i) {
      latencies.push_back((there[i] - here[i]) * 1e-3);
    }
    line.add(busy ? "busy_us" : "quiet_us", summary(latencies));
  }
}

constexpr int kHigh = -100;  // CUDA takes the highest that the device has

/// The loads that decide whether a sidecar may work beside a backward pass: in two processes, without MPS or with it.
void ask_beside(Experiment& experiment, const std::string& prefix, const Environment& environment) {
  const Sizes sizes = sizes_of(experiment);
  const int rounds = experiment.quick() ? 10 : 100;
  const auto ask_load = [&](const std::string& name, const char* kind, int priority) {
    experiment.part(prefix + "beside_" + name, 60, [&](JsonLine& line) {
      beside(line, sizes, kind, priority, environment, environment);
    });
  };
  ask_load("memory", "memory", 0);
  ask_load("copy_to_device", "copy_to_device", 0);
  ask_load("memory_high", "memory", kHigh);
  for (const int priority : {0, kHigh}) {
    experiment.part(prefix + "flag_to_kernel" + (priority == 0 ? "" : "_high"), 60, [&](JsonLine& line) {
      flag_to_kernel(line, sizes, rounds, priority, environment);
    });
  }
  experiment.part(prefix + "context_memory", 60, [&](JsonLine& line) { context_memory(line, environment); });
}

void ask_mps(Experiment& experiment) {
  std::unique_ptr<MultiProcessService> service;
  experiment.part("mps_start", 40, [&](JsonLine& line) {
    service = std::make_unique<MultiProcessService>();
    if (!service->refused().empty()) {
      line.add("not_possible", service->refused());
      service = nullptr;
      return;
    }
    try {
      Worker worker({.name = "worker", .environment = service->environment()});
      const Message answer = worker.call(Message("start"), 20);
      line.add("attribute_mps", answer.flag("mps")).add("context_ms", answer.number("context_ms"));
    } catch (const std::exception& error) {
      line.add("not_possible", error.what());
      service = nullptr;
    }
  });
  if (service == nullptr) {
    return;
  }
  const Environment mps = with(service->environment(), "CUDA_MODULE_LOADING", "LAZY");
  ask_beside(experiment, "mps_", mps);
  experiment.part("mps_beside_memory_25", 60, [&](JsonLine& line) {
    beside(line, sizes_of(experiment), "memory", 0, mps, with(mps, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"));
  });
}

void ask(Experiment& experiment) {
  const Sizes sizes = sizes_of(experiment);
  const Environment without = lazy_environment();
  // What decides most comes first: the time of the experiment may be over before the end. MPS comes last, because a
  // fault of one of its clients ends all of them, and its server may stay where it cannot be ended.
  ask_beside(experiment, "", without);
  for (const char* kind : {"copy_to_host", "copy_device"}) {
    experiment.part(std::string("beside_") + kind, 60, [&, kind = std::string(kind)](JsonLine& line) {
      if (kind == "copy_device") {
        line.add("note", "a copy inside one GPU is a kernel on CUDA 13.0, not work of a copy engine");
      }
      beside(line, sizes, kind, 0, without, without);
    });
  }
  experiment.part("one_process_memory", 60, [&](JsonLine& line) { one_process(line, sizes, "memory", 0); });
  experiment.part("one_process_memory_high", 60, [&](JsonLine& line) { one_process(line, sizes, "memory", kHigh); });
  experiment.part("one_process_copy_to_device", 60, [&](JsonLine& line) {
    one_process(line, sizes, "copy_to_device", 0);
  });
  experiment.part("imported_memory", 60, [&](JsonLine& line) { imported_memory(line, sizes); });
  ask_mps(experiment);
}

}  // namespace
}  // namespace gradsync::experiments

int main(int argc, char** argv) {
  using namespace gradsync::experiments;
  return experiment_main(argc, argv, "two_processes", 105, handlers, ask);
}
