// Question 6: what does one empty step cost through a worker process? Trainer: flag, message; daemon: passes it on;
// worker: waits for the flag on its stream, one kernel, flag back, answer; trainer: waits for the flag on its stream.
//
//   relay             trainer, daemon, worker, daemon, trainer, as in the design.
//   direct            trainer and worker: the difference is what the hop through the daemon costs.
//   messages          the relay without any GPU work: the price of sockets and processes alone.
//   flags             no messages, the worker enqueued ahead: the price of flags and kernels alone.
//   mps_relay         the relay with both processes under MPS.
//
// `step_us`: from the flag's call until the trainer's stream is done and its host knows. `answered_us`: until the
// answer is there and the trainer has enqueued its wait, which is how long its thread is held. Messages have 300 bytes
// and are not JSON; `make bench` has the cost of the real protocol.

#include "gpu/experiments/experiment.hpp"
#include "gpu/experiments/loads/probe_kernels.hpp"
#include "gpu/experiments/mps.hpp"
#include "gpu/experiments/workers/device_worker.hpp"

#include <unistd.h>

#include <optional>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kDone = 64 << 10;

DeviceWorker& device() {
  static DeviceWorker one;
  return one;
}

Message must_receive(int socket) {
  Message message;
  if (!receive(socket, &message, Deadline(10))) {
    throw std::runtime_error("the other worker sent nothing for 10 s");
  }
  return message;
}

void finish(const Stream& stream) {
  if (!stream.done_within(10)) {
    throw std::runtime_error("the stream is still waiting after 10 s");
  }
}

Message trainer_steps(const Message& message) {
  const Stream& stream = device().stream();
  const CUdeviceptr ready = device().address(message, "page");
  const CUdeviceptr done = ready + kDone;
  const bool with_gpu = message.flag("with_gpu");
  const bool with_messages = message.flag("with_messages");
  const Message request = Message("step").set("body", std::string(290, 'x'));
  std::vector<double> steps;
  std::vector<double> answered;
  const std::int64_t rounds = message.integer("rounds");
  const std::int64_t first = message.integer("first");
  for (std::int64_t step = first; step < first + rounds; ++step) {
    const double began = now_us();
    if (with_gpu) {
      stream.write(ready, static_cast<std::uint64_t>(step));
    }
    if (with_messages) {
      send(kPeerSocket, Message(request).set("step", step));
      if (must_receive(kPeerSocket).integer("step") != step) {
        throw std::runtime_error("an answer to another step than " + std::to_string(step));
      }
    }
    if (with_gpu) {
      stream.wait_at_least(done, static_cast<std::uint64_t>(step));
    }
    answered.push_back(now_us() - began);
    finish(stream);
    steps.push_back(now_us() - began);
  }
  return Message("ok").set("steps", steps).set("answered", answered);
}

Message worker_steps(const Message& message) {
  const Stream& stream = device().stream();
  const CUdeviceptr ready = device().address(message, "page");
  const CUdeviceptr done = ready + kDone;
  const std::int64_t first = message.integer("first");
  for (std::int64_t step = first; step < first + message.integer("rounds"); ++step) {
    Message answer("done");
    if (message.flag("with_messages")) {
      answer.set("step", must_receive(kPeerSocket).integer("step"));
    }
    if (message.flag("with_gpu")) {
      stream.wait_at_least(ready, static_cast<std::uint64_t>(step));
      must(stamp(device().word(1), stream.get()), "stamp");
      stream.write(done, static_cast<std::uint64_t>(step));
    }
    if (message.flag("with_messages")) {
      send(kPeerSocket, answer);
    } else if ((step - first) % 64 == 63) {
      // At most 64 steps ahead of the trainer.
      finish(stream);
    }
  }
  finish(stream);
  return Message("ok");
}

/// The daemon: no GPU, two sockets.
Message relay_steps(const Message& message) {
  for (std::int64_t step = 0; step < message.integer("rounds"); ++step) {
    send(kSecondPeerSocket, must_receive(kPeerSocket));
    send(kPeerSocket, must_receive(kSecondPeerSocket));
  }
  return Message("ok");
}

Handlers handlers() {
  Handlers all = device().handlers();
  all["trainer_steps"] = trainer_steps;
  all["worker_steps"] = worker_steps;
  all["relay_steps"] = relay_steps;
  return all;
}

struct Way {
  bool through_daemon = false;
  bool with_messages = false;
  bool with_gpu = false;
};

void steps(JsonLine& line, Way way, std::int64_t rounds, const Environment& environment = eager_environment()) {
  const SocketPair first = socket_pair();
  const SocketPair second = socket_pair();
  Worker trainer({.name = "trainer", .environment = environment, .peer_socket = first.ours});
  Worker worker(
      {.name = "worker", .environment = environment, .peer_socket = way.through_daemon ? second.theirs : first.theirs}
  );
  std::optional<Worker> daemon;
  if (way.through_daemon) {
    daemon.emplace(WorkerOptions{
        .name = "daemon", .environment = environment, .peer_socket = first.theirs, .second_peer_socket = second.ours});
  }
  for (const int socket : {first.ours, first.theirs, second.ours, second.theirs}) {
    (void)close(socket);
  }
  start_all({&trainer, &worker});
  (void)trainer.call(Message("allocate").set("block", "page").set("bytes", 2 * kMiB));
  (void)trainer.call(Message("fill").set("block", "page").set("words", kMiB / 4).set("value", 0));
  (void)share(trainer, worker, "page");
  Message answer;
  std::int64_t next = 1;
  for (const std::int64_t count : {std::min<std::int64_t>(50, rounds), rounds}) {
    const auto about = [&](const char* what) {
      return Message(what)
          .set("page", "page")
          .set("first", next)
          .set("rounds", count)
          .set("with_gpu", way.with_gpu)
          .set("with_messages", way.with_messages);
    };
    if (daemon.has_value()) {
      daemon->send(about("relay_steps"));
    }
    worker.send(about("worker_steps"));
    trainer.send(about("trainer_steps"));
    answer = replies(trainer, worker, 25).first;
    if (daemon.has_value()) {
      (void)daemon->reply();
    }
    next += count;
  }
  line.add("step_us", summary(answer.numbers("steps"))).add("answered_us", summary(answer.numbers("answered")));
}

void ask(Experiment& experiment) {
  const std::int64_t rounds = experiment.quick() ? 100 : 1000;
  const Way relay{.through_daemon = true, .with_messages = true, .with_gpu = true};
  experiment.part("relay", 60, [&](JsonLine& line) { steps(line, relay, rounds); });
  experiment.part("direct", 60, [&](JsonLine& line) {
    steps(line, {.with_messages = true, .with_gpu = true}, rounds);
  });
  experiment.part("messages", 60, [&](JsonLine& line) {
    steps(line, {.through_daemon = true, .with_messages = true}, rounds);
  });
  experiment.part("flags", 60, [&](JsonLine& line) { steps(line, {.with_gpu = true}, rounds); });
  experiment.part("mps_relay", 60, [&](JsonLine& line) {
    const MultiProcessService service;
    if (!service.refused().empty()) {
      line.add("not_possible", service.refused());
      return;
    }
    steps(line, relay, rounds, service.environment());
  });
}

}  // namespace
}  // namespace gradsync::experiments

int main(int argc, char** argv) {
  using namespace gradsync::experiments;
  return experiment_main(argc, argv, "empty_step", 35, handlers, ask);
}
