// Question 1: can one process use another's GPU memory through CUDA IPC of the driver API, and what does it cost?
//
//   interior          a handle taken at an interior address: offset, sizes seen on both sides, whether kernels of the
//                     importer write what the owner reads (`different` and `damaged_outside` must be 0). A second
//                     opening in one process, an opening in the owner itself. A small allocation: how much of the
//                     owner's other memory does its handle show?
//   cost_*            microseconds for export, open (first and again) and close. If opening takes far more than a
//                     millisecond, buffers are mapped once per job and never per step.
//   owner_killed      the owner gets SIGKILL while mapped: can the memory still be read, when does it become free?
//   owner_frees       the owner frees while mapped (documented as undefined) and allocates again: equal address, equal
//                     handle? If so, caches of mappings must be keyed by generation.
//   pids_*            owner and importer in PID namespaces of their own, with equal and with different PIDs.
//   dev_shm_*         a /dev/shm shared and one apart: does the memory handle open, does the event handle? Decides when
//                     events can be the fallback of memops.

#include "gpu/experiments/experiment.hpp"
#include "gpu/experiments/workers/device_worker.hpp"

#include <signal.h>

#include <vector>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr int kTrainerValue = 0x11111111;
constexpr int kSidecarValue = 0x22222222;

Message allocate(const std::string& block, std::size_t bytes) {
  return Message("allocate").set("block", block).set("bytes", bytes);
}

Message fill(const std::string& block, std::size_t offset, std::size_t bytes, int value) {
  return Message("fill").set("block", block).set("block_offset", offset).set("words", bytes / 4).set("value", value);
}

std::int64_t different(Worker& worker, const std::string& block, std::size_t offset, std::size_t bytes, int value) {
  const Message count =
      Message("count").set("block", block).set("block_offset", offset).set("words", bytes / 4).set("value", value);
  return worker.call(count).integer("different");
}

std::int64_t free_bytes(Worker& worker) { return worker.call(Message("memory")).integer("free"); }

/// Asks and writes what was refused instead of failing.
std::string answer(Worker& worker, const Message& message) {
  try {
    (void)worker.call(message);
    return "ok";
  } catch (const WorkerRefused& refused) {
    return refused.what();
  }
}

void interior(JsonLine& line) {
  Worker trainer({"trainer", eager_environment()});
  Worker sidecar({"sidecar", eager_environment()});
  start_all({&trainer, &sidecar});
  constexpr std::size_t kBytes = 64 * kMiB;
  constexpr std::size_t kOffset = 5 * kMiB + 256;
  constexpr std::size_t kPart = 7 * kMiB;
  (void)trainer.call(allocate("a", kBytes));
  (void)trainer.call(fill("a", 0, kBytes, kTrainerValue));
  const Message from_base = trainer.call(Message("export").set("block", "a"));
  const Message from_inside = trainer.call(Message("export").set("block", "a").set("block_offset", kOffset));
  const Message opened = sidecar.call(Message("open").set("block", "a").set("handle", from_inside.text("handle")));
  line.add("handle_of_interior_equals_handle_of_base", from_base.text("handle") == from_inside.text("handle"))
      .add("offset_reported", from_inside.integer("offset"))
      .add("offset_expected", kOffset)
      .add("owner_sees_bytes", from_inside.integer("allocation_bytes"))
      .add("importer_range_result", opened.text("range_result"))
      .add("importer_sees_bytes", opened.integer("mapped_bytes"))
      .add("importer_gets_base", opened.flag("base_returned"));
  line.add("importer_reads_different", different(sidecar, "a", 0, kBytes, kTrainerValue));
  (void)sidecar.call(fill("a", kOffset, kPart, kSidecarValue));
  line.add("different", different(trainer, "a", kOffset, kPart, kSidecarValue))
      .add(
          "damaged_outside",
          different(trainer, "a", 0, kOffset, kTrainerValue) +
              different(trainer, "a", kOffset + kPart, kBytes - kOffset - kPart, kTrainerValue)
      );
  // Opened again under another name: the same address, and each opening needs its own closing?
  const Message again = sidecar.call(Message("open").set("block", "b").set("handle", from_base.text("handle")));
  line.add("second_open_same_address", again.integer("address") == opened.integer("address"));
  (void)sidecar.call(Message("release").set("block", "b"));
  line.add("readable_after_one_of_two_closes", different(sidecar, "a", kOffset, kPart, kSidecarValue) == 0);
  line.add(
      "open_in_the_owner_itself",
      answer(trainer, Message("open").set("block", "self").set("handle", from_base.text("handle")))
  );
  // Two small allocations: does the handle of one show the other?
  (void)trainer.call(allocate("small", 4096));
  (void)trainer.call(allocate("neighbour", 4096));
  const Message small = trainer.call(Message("export").set("block", "small"));
  const Message neighbour = trainer.call(Message("export").set("block", "neighbour"));
  line.add("small_owner_sees_bytes", small.integer("allocation_bytes"))
      .add("small_importer_sees_bytes", share(trainer, sidecar, "small").integer("mapped_bytes"))
      .add("small_neighbour_has_equal_handle", small.text("handle") == neighbour.text("handle"));
}

void cost(JsonLine& line, std::size_t bytes, int rounds) {
  Worker trainer({"trainer", eager_environment()});
  Worker sidecar({"sidecar", eager_environment()});
  start_all({&trainer, &sidecar});
  std::vector<double> get;
  std::vector<double> open;
  std::vector<double> reopen;
  std::vector<double> close;
  for (int round = 0; round < rounds; ++round) {
    // A new allocation each time: a handle opened once before may be answered from a cache.
    (void)trainer.call(allocate("a", bytes), 30);
    const Message exported = trainer.call(Message("export").set("block", "a"));
    get.push_back(exported.number("get_us"));
    const Message request = Message("open").set("block", "a").set("handle", exported.text("handle"));
    open.push_back(sidecar.call(request, 60).number("open_us"));
    close.push_back(sidecar.call(Message("release").set("block", "a"), 30).number("us"));
    reopen.push_back(sidecar.call(request, 60).number("open_us"));
    // The mapping is used, so that work put off until then is seen by the next close.
    (void)sidecar.call(fill("a", 0, std::min(bytes, 64 * kMiB), kSidecarValue));
    close.push_back(sidecar.call(Message("release").set("block", "a"), 30).number("us"));
    (void)trainer.call(Message("release").set("block", "a"), 30);
  }
  line.add("bytes", bytes)
      .add("get_us", summary(get))
      .add("open_us", summary(open))
      .add("open_again_us", summary(reopen))
      .add("close_us", summary(close));
}

void owner_killed(JsonLine& line, std::size_t bytes) {
  Worker sidecar = started({"sidecar"});
  const std::int64_t before = free_bytes(sidecar);
  Worker trainer = started({"trainer"});
  (void)trainer.call(allocate("a", bytes));
  (void)trainer.call(fill("a", 0, bytes, kTrainerValue));
  (void)share(trainer, sidecar, "a");
  line.add("bytes", bytes).add("used_before_kill", before - free_bytes(sidecar));
  const double began = now_us();
  trainer.kill();
  line.add("process_gone_ms", (now_us() - began) * 1e-3).add("used_after_kill", before - free_bytes(sidecar));
  try {
    line.add("read_after_kill_different", different(sidecar, "a", 0, bytes, kTrainerValue));
  } catch (const WorkerRefused& refused) {
    line.add("read_after_kill", refused.what());
  }
  line.add("close_us", sidecar.call(Message("release").set("block", "a")).number("us"));
  const Deadline deadline(5);
  std::int64_t used = before - free_bytes(sidecar);
  while (used > static_cast<std::int64_t>(bytes / 2) && !deadline.passed()) {
    used = before - free_bytes(sidecar);
  }
  line.add("used_after_close", used).add("memory_back", used < static_cast<std::int64_t>(bytes / 2));
}

void owner_frees(JsonLine& line, std::size_t bytes) {
  Worker trainer({"trainer", eager_environment()});
  Worker sidecar({"sidecar", eager_environment()});
  Worker observer({"observer", eager_environment()});
  start_all({&trainer, &sidecar, &observer});
  const std::int64_t before = free_bytes(observer);
  const std::int64_t address = trainer.call(allocate("a", bytes)).integer("address");
  (void)trainer.call(fill("a", 0, bytes, kTrainerValue));
  const std::string handle = trainer.call(Message("export").set("block", "a")).text("handle");
  (void)sidecar.call(Message("open").set("block", "a").set("handle", handle));
  line.add("bytes", bytes).add("used_while_mapped", before - free_bytes(observer));
  line.add("free_us", trainer.call(Message("release").set("block", "a"), 10).number("us"))
      .add("used_after_owner_freed", before - free_bytes(observer));
  line.add("read_after_free", answer(sidecar, fill("a", 0, bytes, kSidecarValue)));
  const std::int64_t address_again = trainer.call(allocate("a", bytes)).integer("address");
  (void)trainer.call(fill("a", 0, bytes, kTrainerValue));
  const std::string handle_again = trainer.call(Message("export").set("block", "a")).text("handle");
  line.add("new_allocation_same_address", address_again == address)
      .add("new_allocation_same_handle", handle_again == handle);
  // Through the stale mapping: does it write into the new allocation?
  line.add("write_through_stale_mapping", answer(sidecar, fill("a", 0, bytes, kSidecarValue)))
      .add("new_allocation_damaged_words", different(trainer, "a", 0, bytes, kTrainerValue));
  line.add(
      "open_new_while_stale_is_open", answer(sidecar, Message("open").set("block", "new").set("handle", handle_again))
  );
  line.add("close_stale", answer(sidecar, Message("release").set("block", "a")))
      .add("used_after_stale_closed", before - free_bytes(observer));
}

/// Tries with two workers whether the second can open and write memory of the first.
void try_memory(JsonLine& line, Worker& trainer, Worker& sidecar) {
  (void)trainer.call(allocate("a", 2 * kMiB));
  (void)trainer.call(fill("a", 0, 2 * kMiB, kTrainerValue));
  const Message exported = trainer.call(Message("export").set("block", "a"));
  const std::string opened = answer(sidecar, Message("open").set("block", "a").set("handle", exported.text("handle")));
  line.add("open", opened);
  if (opened == "ok") {
    (void)sidecar.call(fill("a", 0, 2 * kMiB, kSidecarValue));
    line.add("different", different(trainer, "a", 0, 2 * kMiB, kSidecarValue));
  }
}

void try_event(JsonLine& line, Worker& trainer, Worker& sidecar) {
  try {
    const Message exported = trainer.call(Message("export_event"));
    line.add("event", answer(sidecar, Message("use_event").set("handle", exported.text("handle"))));
  } catch (const WorkerRefused& refused) {
    line.add("event", refused.what());
  }
}

void pids(JsonLine& line, int trainer_pid, int sidecar_pid) {
  WorkerOptions trainer_options{"trainer", eager_environment(), trainer_pid};
  WorkerOptions sidecar_options{"sidecar", eager_environment(), sidecar_pid};
  Worker trainer(trainer_options);
  Worker sidecar(sidecar_options);
  if (!trainer.refused().empty() || !sidecar.refused().empty()) {
    // The answer for this machine: such a namespace cannot be had.
    line.add("not_possible", trainer.refused() + sidecar.refused());
    return;
  }
  line.add("owner_pid", trainer.own_pid()).add("importer_pid", sidecar.own_pid());
  start_all({&trainer, &sidecar});
  try_memory(line, trainer, sidecar);
  try_event(line, trainer, sidecar);
}

void dev_shm(JsonLine& line, bool apart) {
  Worker trainer = started({"trainer"});
  WorkerOptions options{"sidecar", eager_environment()};
  options.private_dev_shm = apart;
  Worker sidecar(options);
  if (!sidecar.refused().empty()) {
    line.add("not_possible", sidecar.refused());
    return;
  }
  (void)sidecar.call(Message("start"), 40);
  try_memory(line, trainer, sidecar);
  try_event(line, trainer, sidecar);
}

Handlers handlers() {
  static DeviceWorker device;
  Handlers all = device.handlers();
  all["export_event"] = [](const Message&) {
    static const Event event(cudaEventInterprocess | cudaEventDisableTiming);
    cudaIpcEventHandle_t handle{};
    must(cudaIpcGetEventHandle(&handle, event.get()), "cudaIpcGetEventHandle");
    event.record(device.stream());
    return Message("ok").set("handle", hex(&handle, sizeof(handle)));
  };
  all["use_event"] = [](const Message& message) {
    cudaIpcEventHandle_t handle{};
    unhex(message.text("handle"), &handle, sizeof(handle));
    cudaEvent_t event = nullptr;
    must(cudaIpcOpenEventHandle(&event, handle), "cudaIpcOpenEventHandle");
    must(cudaStreamWaitEvent(device.stream().get(), event, 0), "cudaStreamWaitEvent");
    if (!device.stream().done_within(5)) {
      throw std::runtime_error("the stream still waits for the imported event after 5 s");
    }
    return Message("ok");
  };
  return all;
}

void ask(Experiment& experiment) {
  const std::size_t large = experiment.quick() ? 4 * kMiB : kGiB;
  experiment.part("interior", 60, interior);
  const std::vector<std::pair<const char*, std::size_t>> sizes = {
      {"cost_2_MiB", 2 * kMiB}, {"cost_100_MiB", 100 * kMiB}, {"cost_1_GiB", kGiB}, {"cost_8_GiB", 8 * kGiB}};
  for (const auto& [name, bytes] : sizes) {
    if (!experiment.quick() || bytes <= 2 * kMiB) {
      experiment.part(name, 60, [bytes = bytes](JsonLine& line) { cost(line, bytes, 5); });
    }
  }
  experiment.part("owner_killed", 60, [&](JsonLine& line) { owner_killed(line, large); });
  experiment.part("owner_frees", 60, [&](JsonLine& line) { owner_frees(line, large); });
  experiment.part("dev_shm_shared", 60, [](JsonLine& line) { dev_shm(line, false); });
  experiment.part("dev_shm_apart", 60, [](JsonLine& line) { dev_shm(line, true); });
  experiment.part("pids_different", 60, [](JsonLine& line) { pids(line, 11, 12); });
  experiment.part("pids_equal", 60, [](JsonLine& line) { pids(line, 11, 11); });
  experiment.part("pids_equal_to_1", 60, [](JsonLine& line) { pids(line, 1, 1); });
}

}  // namespace
}  // namespace gradsync::experiments

int main(int argc, char** argv) {
  using namespace gradsync::experiments;
  return experiment_main(argc, argv, "ipc_memory", 70, handlers, ask);
}
