#pragma once
// A process of an experiment: this program once more, told what to do message by message. The experiment itself never
// makes a CUDA call that can block, so that a hang is seen by its deadline, written down, and ended with SIGKILL.
// Workers are executed, never forked with a CUDA context, and die with the experiment (PR_SET_PDEATHSIG).

#include "gpu/experiments/message.hpp"

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::experiments {

/// The worker did not answer in time; it was killed. An answer to some questions.
struct WorkerHung : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The worker answered that it could not, with the reason of the failed call.
struct WorkerRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct WorkerOptions {
  std::string name;
  std::vector<std::pair<std::string, std::string>> environment = {};
  /// A PID namespace of its own, in which the worker's PID is this; 0: none.
  int pid_in_namespace = 0;
  bool private_dev_shm = false;
  /// A socket to another worker, there as kPeerSocket; -1: none.
  int peer_socket = -1;
  /// One more, there as kSecondPeerSocket.
  int second_peer_socket = -1;
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options);
  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  /// Lets it end by itself first: a client of MPS that is killed can take the server with it.
  ~Worker();

  /// Sends and waits for the answer.
  Message call(const Message& message, double seconds = 20);
  void send(const Message& message);
  Message reply(double seconds = 20);
  /// Nothing when it has not answered yet; the worker lives on.
  std::optional<Message> reply_within(double seconds);

  /// The process that was started, and the worker's own PID as it sees it.
  [[nodiscard]] pid_t pid() const { return pid_; }

  [[nodiscard]] pid_t own_pid() const { return own_pid_; }

  /// What a namespace refused, or nothing.
  [[nodiscard]] const std::string& refused() const { return refused_; }

  void signal(int number) const;

  /// SIGKILL, and waits until it is gone.
  void kill();

 private:
  bool gone_within(double seconds);

  std::string name_;
  pid_t pid_ = -1;
  pid_t own_pid_ = -1;
  int socket_ = -1;
  std::string refused_;
};

/// The answers of two workers that work on one thing. What either failed with is thrown with what the other said: the
/// one that waited for the other knows less.
std::pair<Message, Message> replies(Worker& first, Worker& second, double seconds);

constexpr int kCommandSocket = 3;
constexpr int kPeerSocket = 4;
constexpr int kSecondPeerSocket = 5;

using Handlers = std::map<std::string, std::function<Message(const Message&)>>;

/// The life of a worker: answers messages until the experiment closes its end. Does not return.
[[noreturn]] void serve(const Handlers& handlers);

/// Whether this process was started as a worker; enters the namespaces it was asked for.
bool is_worker(int argc, char** argv);

/// A child that the watchdog must end too, and that it is gone.
void remember_child(pid_t pid);
void forget_child(pid_t pid);

/// Kills the workers and the children remembered; for the watchdog.
void kill_children();

}  // namespace gradsync::experiments
