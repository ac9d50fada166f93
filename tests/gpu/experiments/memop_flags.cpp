// Question 2: do 64-bit flags in pages shared by CUDA IPC order the streams of two processes, how fast, and how are
// waits ended that would have no end?
//
//   attributes        what the driver says, and what calls on an own and on an imported page say.
//   order_*           rounds of gate, trainer fills, flag, sidecar checks and fills, flag back, trainer checks;
//                     up to 64 rounds enqueued ahead. `trainer_different` and `sidecar_different` (words read before
//                     they were written) must be 0, `rounds` should be 10,000. By the owner of the flags; mps: both
//                     processes under MPS.
//   pending           the sidecar's stream must be seen waiting while the gate is shut (`early` is 0) and be done after
//                     it opened (`never` is 0).
//   connections_1     CUDA_DEVICE_MAX_CONNECTIONS=1, which some trainers set: can one stream still release another?
//   wake_*            microseconds from trainer to sidecar. gpu_end_to_start: from a kernel's end here to a kernel's
//                     start there, by the device's clock (its ticks may be coarse). host_to_host: from the call here to
//                     the host seeing it there.
//   round_trip        microseconds per flag there and back, 200 enqueued at once.
//   released_by_*     which kinds of write end a wait, from the waiting process and from the other. `false`
//                     for a memcpy means that poison must be a cuStreamWriteValue64.
//   poison            INT64_MAX ends the wait; the flag is reset, and the next rounds are right.
//   owner_killed      the owner of the page dies while the sidecar waits on it: can the sidecar still release itself?
//   close_*           closing or freeing while a stream waits: returns at once, or only when the wait is released?
//   killed_waiting    the waiting process gets SIGKILL: how long until it is gone, does the other one still work?
//   host_word         one process: its stream waits for a word in registered host memory. Does a plain store of the
//                     host end the wait, and does it while another thread synchronizes, launches more than the queue
//                     holds, allocates or frees? `_blocks`: that thread had not come back before the store.
//   host_word_killed  the same process gets SIGKILL while it waits: how long until it is gone?

#include "gpu/experiments/experiment.hpp"
#include "gpu/experiments/mps.hpp"
#include "gpu/experiments/workers/device_worker.hpp"
#include "gpu/experiments/workers/memop_worker.hpp"

#include <unistd.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::int64_t kPoison = std::numeric_limits<std::int64_t>::max();

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
    start_all({&trainer, &sidecar});
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
      .set("ready_offset", kReadyOffset)
      .set("done", done_owner)
      .set("done_offset", kDoneOffset)
      .set("data", ready_owner)
      .set("data_offset", kDataOffset);
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
    JsonLine& line, Pair& pair, std::int64_t rounds, double seconds, const char* ready_owner, const char* done_owner
) {
  const auto run = [&](std::int64_t first, std::int64_t last) {
    const auto about = [&](const char* what) {
      return with_flags(Message(what), ready_owner, done_owner).set("first", first).set("last", last);
    };
    pair.trainer.send(about("order_trainer"));
    pair.sidecar.send(about("order_sidecar"));
    return replies(pair.trainer, pair.sidecar, seconds + 2 * kStuckSeconds);
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
    double seconds,
    const char* ready_owner,
    const char* done_owner,
    const Environment& environment = eager_environment()
) {
  Pair pair(environment);
  run_order(line, pair, quick ? 300 : 10'000, seconds, ready_owner, done_owner);
}

void order_mps(JsonLine& line, bool quick) {
  const MultiProcessService service;
  if (!service.refused().empty()) {
    line.add("not_possible", service.refused());
    return;
  }
  order_part(line, quick, 12, "trainer", "trainer", service.environment());
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
    const auto [by_trainer, by_sidecar] = replies(pair.trainer, pair.sidecar, 25);
    const std::vector<double> here = by_trainer.numbers("times");
    const std::vector<double> there = by_sidecar.numbers("times");
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
  const Message answer = replies(pair.trainer, pair.sidecar, 25).first;
  line.add("rounds", rounds).add("us_per_round_trip", answer.number("us_per_round"));
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
        Message("write").set("page", "trainer").set("page_offset", kReadyOffset).set("value", value).set("by", "memop")
    );
  };
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  const double began = now_us();
  write(kPoison);
  line.add("released", pair.sidecar.call(Message("done").set("seconds", 5)).flag("done"))
      .add("released_ms_with_two_messages", (now_us() - began) * 1e-3);
  write(0);
  run_order(line, pair, 300, 5, "trainer", "trainer");
}

void owner_killed(JsonLine& line) {
  Pair pair;
  (void)pair.sidecar.call(Message("wait").set("page", "trainer").set("value", 5));
  pair.trainer.kill();
  line.add("released_by_the_death", pair.sidecar.call(Message("done").set("seconds", 1)).flag("done"));
  try {
    (void)pair.sidecar.call(Message("write").set("page", "trainer").set("value", kPoison).set("by", "memop"));
    line.add("released_by_own_poison", pair.sidecar.call(Message("done").set("seconds", 5)).flag("done"));
    const Message rest = pair.sidecar.call(Message("release").set("block", "trainer"));
    line.add("close_after_us", rest.number("us"));
  } catch (const WorkerRefused& refused) {
    // The page may be gone with its owner, which is an answer too.
    line.add("refused", refused.what());
  }
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

void host_word(JsonLine& line) {
  for (const std::string beside : {"idle", "synchronize", "launch", "allocate", "free"}) {
    Worker trainer = started({.name = "trainer", .environment = eager_environment()});
    (void)trainer.call(Message("host_wait").set("value", 5).set("beside", beside));
    line.add(beside + "_released_early", trainer.call(Message("done").set("seconds", 0.2)).flag("done"))
        .add(beside + "_blocks", !trainer.call(Message("beside_ended")).flag("ended"));
    (void)trainer.call(Message("host_store").set("value", 5));
    const Message after = trainer.call(Message("done").set("seconds", 2));
    line.add(beside + "_released_by_store", after.flag("done")).add(beside + "_us", after.number("us"));
    if (!after.flag("done")) {
      (void)trainer.call(Message("host_memop").set("value", 6));
      line.add(beside + "_released_by_memop", trainer.call(Message("done").set("seconds", 2)).flag("done"));
    }
  }
}

void host_word_killed(JsonLine& line) {
  Worker trainer = started({.name = "trainer", .environment = eager_environment()});
  (void)trainer.call(Message("host_wait").set("value", 5).set("beside", "idle"));
  const double began = now_us();
  trainer.kill();
  line.add("process_gone_ms", (now_us() - began) * 1e-3);
}

void ask(Experiment& experiment) {
  const bool quick = experiment.quick();
  const int rounds = quick ? 20 : 300;
  experiment.part("attributes", 60, attributes);
  // The time lets a round take 4 ms, two slices of a GPU that takes turns; then the others have fewer than 10,000.
  experiment.part("order_flags_of_trainer", 120, [&](JsonLine& line) {
    order_part(line, quick, 40, "trainer", "trainer");
  });
  experiment.part("order_flags_of_sidecar", 80, [&](JsonLine& line) {
    order_part(line, quick, 12, "sidecar", "sidecar");
  });
  // Ready lies with the sidecar, done with the trainer: each waits only on memory that it owns.
  experiment.part("order_waits_on_own", 80, [&](JsonLine& line) { order_part(line, quick, 12, "sidecar", "trainer"); });
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
  experiment.part("host_word", 60, host_word);
  experiment.part("host_word_killed", 60, host_word_killed);
  experiment.part("order_mps", 80, [&](JsonLine& line) { order_mps(line, quick); });
}

}  // namespace
}  // namespace gradsync::experiments

int main(int argc, char** argv) {
  using namespace gradsync::experiments;
  return experiment_main(argc, argv, "memop_flags", 110, memop_handlers, ask);
}
