// Question 4: can two processes on one GPU be two ranks of an NCCL communicator, when NCCL_HOSTID tells them apart
// (2.28 refuses duplicates by host hash and bus id), and how do such communicators fail and come back? They talk over
// sockets of the loopback interface: figures of speed hold for this arrangement only, those of failures do not.
//
//   same_host         the refusal without NCCL_HOSTID, in NCCL's words.
//   right             sums on memory of the ranks and on memory imported from a trainer's process: `different` is 0.
//   speed_*           milliseconds and GB/s (bytes of one buffer ÷ time) of an all-reduce on imported memory.
//   build             milliseconds until a communicator is ready, of finalize with destroy, of abort; five in a row.
//   memory_*          device memory per communicator and rank: after init, after a small and a large all-reduce, of a
//                     second communicator; as NCCL chooses, and with maxCTAs 4.
//   missing_rank      blocking=0 and a deadline when the other rank never comes: is the call bounded, what does abort
//                     take, which threads stay; the next communicator with all ranks.
//   abort_never_came  the other process is stopped (SIGSTOP) before it takes part: the state until then, the time of
//                     abort, what event and stream say after it; the other side after SIGCONT; the rebuild.
//                     `event_after_abort` cudaSuccess with fewer `right_sums` than `count`: an event proves nothing.
//   abort_midway      the same, stopped while the reduction runs.
//   peer_killed       the other process gets SIGKILL: seconds until NCCL says so by itself.

#include "gpu/experiments/experiment.hpp"
#include "gpu/experiments/nccl_library.hpp"
#include "gpu/experiments/workers/device_worker.hpp"
#include "gpu/experiments/workers/nccl_worker.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

Environment rank_environment(const char* host) {
  Environment environment = lazy_environment();
  const std::array<std::pair<const char*, const char*>, 7> settings{{
      {"NCCL_SOCKET_IFNAME", "lo"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_MNNVL_ENABLE", "0"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_RAS_ENABLE", "0"},
      {"NCCL_DEBUG", "WARN"},
      // As in a worker of the daemon: imported memory is not registered.
      {"NCCL_LOCAL_REGISTER", "0"},
  }};
  for (const auto& [key, value] : settings) {
    environment = with(environment, key, value);
  }
  return host == nullptr ? environment : with(environment, "NCCL_HOSTID", host);
}

constexpr double kSeconds = 12;

/// A trainer that owns the memory, and two ranks that import it as "grads".
class Ranks {
 public:
  explicit Ranks(std::size_t bytes, bool told_apart = true)
      : trainer({"trainer", eager_environment()}),
        ranks{
            Worker({.name = "rank0", .environment = rank_environment(told_apart ? "gradsync-0" : nullptr)}),
            Worker({.name = "rank1", .environment = rank_environment(told_apart ? "gradsync-1" : nullptr)})},
        count(bytes / 4) {
    start_all({&trainer, &ranks[0], &ranks[1]});
    for (int rank : {0, 1}) {
      const std::string block = "grads" + std::to_string(rank);
      (void)trainer.call(Message("allocate").set("block", block).set("bytes", bytes));
      const Message exported = trainer.call(Message("export").set("block", block));
      (void)ranks[rank].call(Message("open").set("block", "grads").set("handle", exported.text("handle")));
    }
  }

  /// Both ranks' answers.
  std::array<Message, 2> form(const std::string& name = "a", double seconds = kSeconds, int max_ctas = 0) {
    const std::string id = ranks[0].call(Message("unique_id")).text("id");
    for (int rank : {0, 1}) {
      ranks[rank].send(about_init(name, id, rank, seconds, max_ctas));
    }
    return replies(seconds + 10);
  }

  static Message about_init(const std::string& name, const std::string& id, int rank, double seconds, int max_ctas) {
    Message message = Message("init").set("communicator", name).set("id", id).set("rank", rank).set("seconds", seconds);
    return max_ctas > 0 ? message.set("max_ctas", max_ctas) : message;
  }

  std::array<Message, 2> both(const Message& message, double seconds = kSeconds) {
    ranks[0].send(message);
    ranks[1].send(message);
    return replies(seconds);
  }

  /// Fills as rank r: r + 1 + (r + 1) * (i % 251).
  void fill() {
    for (int rank : {0, 1}) {
      (void)trainer.call(ramp("ramp", rank, rank + 1));
    }
  }

  /// Elements of a rank's gradients that are not those of `values`: 1 and 2 are the ranks' own, 3 is their sum.
  std::int64_t different(int rank, int values) {
    return trainer.call(ramp("ramp_different", rank, values)).integer("different");
  }

  std::array<Message, 2> replies(double seconds) {
    const auto [first, second] = experiments::replies(ranks[0], ranks[1], seconds);
    return {first, second};
  }

  Worker trainer;
  std::array<Worker, 2> ranks;
  std::size_t count;

 private:
  Message ramp(const char* what, int rank, int values) const {
    return Message(what)
        .set("block", "grads" + std::to_string(rank))
        .set("count", count)
        .set("base", static_cast<double>(values))
        .set("slope", static_cast<double>(values));
  }
};

Message about_reduce(const char* what, const std::string& block, std::size_t count, int rounds = 1) {
  return Message(what)
      .set("communicator", "a")
      .set("block", block)
      .set("count", count)
      .set("rounds", rounds)
      .set("seconds", kSeconds);
}

void must_form(const std::array<Message, 2>& formed) {
  for (const Message& one : formed) {
    if (!one.flag("ready")) {
      throw std::runtime_error("no communicator: " + one.text("state") + "; " + one.text("last_error"));
    }
  }
}

void same_host(JsonLine& line) {
  Ranks two(2 * kMiB, false);
  line.add("nccl", two.ranks[0].call(Message("version")).integer("version"));
  const auto formed = two.form();
  line.add("formed", formed[0].flag("ready") && formed[1].flag("ready"))
      .add("rank0", formed[0].text("state"))
      .add("rank0_words", formed[0].text("last_error"))
      .add("rank1", formed[1].text("state"));
}

void right(JsonLine& line, std::size_t bytes) {
  Ranks two(bytes);
  line.add("nccl", two.ranks[0].call(Message("version")).integer("version"));
  const auto formed = two.form();
  line.add("formed", formed[0].flag("ready") && formed[1].flag("ready"))
      .add("rank0", formed[0].text("state"))
      .add("rank0_words", formed[0].text("last_error"))
      .add("init_ms", formed[0].number("ms"))
      .add("init_call_ms", formed[0].number("call_ms"));
  must_form(formed);
  // Memory of the ranks themselves.
  for (int rank : {0, 1}) {
    (void)two.ranks[rank].call(Message("allocate").set("block", "own").set("bytes", bytes));
    (void)two.ranks[rank].call(
        Message("ramp").set("block", "own").set("count", two.count).set("base", rank + 1.0).set("slope", rank + 1.0)
    );
  }
  (void)two.both(about_reduce("reduce", "own", two.count), kSeconds + 5);
  std::int64_t own = 0;
  const Message sum = Message("ramp_different").set("block", "own").set("count", two.count).set("base", 3.0);
  for (const Message& answer : two.both(Message(sum).set("slope", 3.0))) {
    own += answer.integer("different");
  }
  line.add("count", two.count).add("own_memory_different", own);
  two.fill();
  (void)two.both(about_reduce("reduce", "grads", two.count), kSeconds + 5);
  line.add("imported_memory_different", two.different(0, 3) + two.different(1, 3));
}

void speed(JsonLine& line, std::size_t bytes, int rounds) {
  Ranks two(bytes);
  must_form(two.form());
  (void)two.both(about_reduce("reduce", "grads", two.count, 2), 2 * kSeconds);
  const auto timed = two.both(about_reduce("reduce", "grads", two.count, rounds), 2 * kSeconds);
  const std::vector<double> times = timed[0].numbers("times");
  line.add("bytes", bytes)
      .add("ms", summary(times))
      .add("gb_s", static_cast<double>(bytes) * 1e-9 / (median(times) * 1e-3));
}

void build(JsonLine& line, int rounds) {
  Ranks two(2 * kMiB);
  std::vector<double> built;
  std::vector<double> destroyed;
  std::vector<double> aborted;
  const std::int64_t threads_before = two.ranks[0].call(Message("threads")).integer("threads");
  for (int round = 0; round < rounds; ++round) {
    const auto formed = two.form();
    must_form(formed);
    built.push_back(formed[0].number("ms"));
    (void)two.both(about_reduce("reduce", "grads", 256), kSeconds + 5);
    const bool abort = round % 2 == 1;
    const auto ended = two.both(Message(abort ? "abort" : "destroy").set("communicator", "a"), 30);
    (abort ? aborted : destroyed).push_back(ended[0].number("ms"));
  }
  line.add("build_ms", built)
      .add("destroy_ms", destroyed)
      .add("abort_ms", aborted)
      .add("threads_left", two.ranks[0].call(Message("threads")).integer("threads") - threads_before);
}

void memory(JsonLine& line, std::size_t bytes, int max_ctas) {
  Ranks two(bytes);
  std::int64_t free = two.trainer.call(Message("memory")).integer("free");
  const auto used = [&](const char* key) {
    const std::int64_t now = two.trainer.call(Message("memory")).integer("free");
    line.add(key, (free - now) / 2);
    free = now;
  };
  must_form(two.form("a", kSeconds, max_ctas));
  used("init_bytes_per_rank");
  (void)two.both(about_reduce("reduce", "grads", 256), kSeconds + 5);
  used("then_small_reduce_bytes_per_rank");
  (void)two.both(about_reduce("reduce", "grads", two.count), kSeconds + 5);
  used("then_large_reduce_bytes_per_rank");
  must_form(two.form("b", kSeconds, max_ctas));
  (void)two.both(about_reduce("reduce", "grads", two.count).set("communicator", "b"), kSeconds + 5);
  used("second_communicator_bytes_per_rank");
}

void missing_rank(JsonLine& line) {
  Ranks two(2 * kMiB);
  const std::int64_t threads_before = two.ranks[0].call(Message("threads")).integer("threads");
  const std::string id = two.ranks[0].call(Message("unique_id")).text("id");
  const Message waited = two.ranks[0].call(Ranks::about_init("a", id, 0, 3, 0), 30);
  line.add("init_call_ms", waited.number("call_ms"))
      .add("state_after_3_s", waited.text("state"))
      .add("bounded", waited.flag("in_progress"));
  const Message aborted = two.ranks[0].call(Message("abort").set("communicator", "a"), 30);
  line.add("abort_ms", aborted.number("ms")).add("abort_result", aborted.text("result"));
  line.add("threads_left", two.ranks[0].call(Message("threads")).integer("threads") - threads_before);
  const auto formed = two.form();
  line.add("formed_next", formed[0].flag("ready") && formed[1].flag("ready")).add("next_ms", formed[0].number("ms"));
}

/// Sums that arrived and inputs that are untouched, of one rank's gradients.
void count_elements(JsonLine& line, Ranks& two, int rank) {
  const auto count = static_cast<std::int64_t>(two.count);
  const std::string prefix = "rank" + std::to_string(rank);
  line.add(prefix + "_right_sums", count - two.different(rank, 3))
      .add(prefix + "_untouched", count - two.different(rank, rank + 1));
}

void abort_while_stopped(JsonLine& line, std::size_t bytes, bool midway) {
  Ranks two(bytes);
  must_form(two.form());
  const auto whole = two.both(about_reduce("reduce", "grads", two.count, 2), 2 * kSeconds);
  const double whole_ms = whole[0].numbers("times").back();
  two.fill();
  line.add("count", two.count).add("whole_reduce_ms", whole_ms);
  if (midway) {
    (void)two.both(about_reduce("begin_reduce", "grads", two.count));
    (void)usleep(static_cast<useconds_t>(whole_ms * 1e3 / 3));
  }
  two.ranks[1].signal(SIGSTOP);
  if (!midway) {
    (void)two.ranks[0].call(about_reduce("begin_reduce", "grads", two.count));
  }
  (void)usleep(500'000);
  const Message about = Message("reduce_state").set("communicator", "a");
  const Message stopped = two.ranks[0].call(about);
  line.add("pending_while_stopped", stopped.flag("pending"))
      .add("async_error_while_stopped", stopped.text("async_error"));
  const Message aborted = two.ranks[0].call(Message("abort").set("communicator", "a"), 20);
  line.add("abort_ms", aborted.number("ms")).add("abort_result", aborted.text("result"));
  // The communicator is gone; event and stream are ours.
  const Message after = two.ranks[0].call(Message("stream_state").set("seconds", 5.0));
  line.add("event_after_abort", after.text("event"))
      .add("event_settled_after_ms", after.number("waited_ms"))
      .add("stream_after_abort", after.text("stream"));
  count_elements(line, two, 0);
  two.ranks[1].signal(SIGCONT);
  if (midway) {
    const Message told = two.ranks[1].call(Message("wait_error").set("communicator", "a").set("seconds", 5), 20);
    line.add("other_learns_after_s", told.number("seconds")).add("other_async_error", told.text("async_error"));
    const Message state = two.ranks[1].call(about);
    line.add("other_event", state.text("event"));
    count_elements(line, two, 1);
  }
  const Message other = two.ranks[1].call(Message("abort").set("communicator", "a"), 20);
  line.add("other_abort_ms", other.number("ms"));
  const auto formed = two.form();
  line.add("rebuilt", formed[0].flag("ready") && formed[1].flag("ready"))
      .add("rebuild_ms", formed[0].number("ms"))
      .add("rebuild_state", formed[0].text("state"));
  must_form(formed);
  two.fill();
  (void)two.both(about_reduce("reduce", "grads", two.count), kSeconds + 5);
  line.add("different_after_rebuild", two.different(0, 3) + two.different(1, 3));
}

void peer_killed(JsonLine& line, std::size_t bytes) {
  Ranks two(bytes);
  must_form(two.form());
  (void)two.both(about_reduce("reduce", "grads", two.count), kSeconds + 5);
  (void)two.ranks[0].call(about_reduce("begin_reduce", "grads", two.count));
  two.ranks[1].kill();
  const Message told = two.ranks[0].call(Message("wait_error").set("communicator", "a").set("seconds", 8), 20);
  line.add("learns_after_s", told.number("seconds")).add("async_error", told.text("async_error"));
  const Message state = two.ranks[0].call(Message("stream_state"));
  line.add("event", state.text("event"));
  const Message aborted = two.ranks[0].call(Message("abort").set("communicator", "a"), 20);
  line.add("abort_ms", aborted.number("ms"));
  line.add("event_after_abort", two.ranks[0].call(Message("stream_state").set("seconds", 5.0)).text("event"));
}

void ask(Experiment& experiment) {
  const std::string missing = missing_nccl();
  if (!missing.empty()) {
    experiment.part("library", 30, [&](JsonLine& line) { line.add("skipped", missing); });
    return;
  }
  const std::size_t large = experiment.quick() ? kMiB : 64 * kMiB;
  experiment.part("right", 110, [&](JsonLine& line) { right(line, large); });
  experiment.part("same_host", 60, same_host);
  experiment.part("missing_rank", 110, missing_rank);
  experiment.part("abort_never_came", 110, [&](JsonLine& line) { abort_while_stopped(line, large, false); });
  experiment.part("abort_midway", 110, [&](JsonLine& line) { abort_while_stopped(line, 4 * large, true); });
  experiment.part("peer_killed", 110, [&](JsonLine& line) { peer_killed(line, large); });
  experiment.part("build", 110, [&](JsonLine& line) { build(line, experiment.quick() ? 2 : 5); });
  experiment.part("memory_default", 110, [&](JsonLine& line) { memory(line, large, 0); });
  experiment.part("memory_4_ctas", 110, [&](JsonLine& line) { memory(line, large, 4); });
  experiment.part("speed_1_KiB", 110, [&](JsonLine& line) { speed(line, 1024, 50); });
  experiment.part("speed_1_MiB", 110, [&](JsonLine& line) { speed(line, kMiB, 20); });
  if (!experiment.quick()) {
    experiment.part("speed_64_MiB", 110, [&](JsonLine& line) { speed(line, 64 * kMiB, 5); });
  }
}

}  // namespace
}  // namespace gradsync::experiments

int main(int argc, char** argv) {
  using namespace gradsync::experiments;
  return experiment_main(argc, argv, "nccl_one_gpu", 80, nccl_handlers, ask);
}
