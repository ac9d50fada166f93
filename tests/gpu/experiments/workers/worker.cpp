#include "gpu/experiments/workers/worker.hpp"

#include <fcntl.h>
#include <linux/prctl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <spawn.h>

extern char** environ;

namespace gradsync::experiments {
namespace {

// Read by the watchdog's thread.
constexpr std::size_t kMostChildren = 64;
std::atomic<pid_t> running[kMostChildren];

[[noreturn]] void refuse(const std::string& what) {
  const int error = errno;
  try {
    send(kCommandSocket, Message("refused").set("reason", what + ": " + strerrorname_np(error)));
  } catch (const std::exception&) {
    // The experiment sees the end of this process instead.
  }
  _exit(0);
}

void die_with_parent() { (void)prctl(PR_SET_PDEATHSIG, SIGKILL); }

// Ends with what the child ended with.
[[noreturn]] void wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

[[noreturn]] void execute_worker(char** argv) {
  char* const plain[] = {argv[0], const_cast<char*>("--worker"), nullptr};
  (void)execv("/proc/self/exe", plain);
  refuse("execv");
}

// As root directly, otherwise as root of a user namespace of its own.
void unshare_or_refuse(int what) {
  if (unshare(what) != 0 && unshare(what | CLONE_NEWUSER) != 0) {
    refuse("unshare");
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    refuse("mount / private");
  }
}

// unshare → init (PID 1) → worker. The PIDs between are used up by children that end at once.
[[noreturn]] void enter_pid_namespace(int pid_wanted, char** argv) {
  // A new process inherits this namespace's open files, not its memory image's path: keep one to execute.
  unshare_or_refuse(CLONE_NEWPID | CLONE_NEWNS);
  const pid_t init = fork();
  if (init < 0) {
    refuse("fork of PID 1");
  }
  if (init > 0) {
    wait_for(init);
  }
  die_with_parent();
  // What tools of a container would see; the worker runs without it too.
  (void)mount("proc", "/proc", "proc", 0, nullptr);
  for (int pid = 2; pid < pid_wanted; ++pid) {
    const pid_t filler = fork();
    if (filler == 0) {
      _exit(0);
    }
    (void)waitpid(filler, nullptr, 0);
  }
  const pid_t worker = pid_wanted > 1 ? fork() : 0;
  if (worker < 0) {
    refuse("fork of the worker");
  }
  if (worker > 0) {
    wait_for(worker);
  }
  die_with_parent();
  execute_worker(argv);
}

[[noreturn]] void enter_private_dev_shm(char** argv) {
  unshare_or_refuse(CLONE_NEWNS);
  if (mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
    refuse("mount tmpfs on /dev/shm");
  }
  execute_worker(argv);
}

std::vector<std::string> with_environment(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
      return text.substr(0, text.find('=')) == change.first;
    });
    if (!changed) {
      result.emplace_back(text);
    }
  }
  for (const auto& [key, value] : changes) {
    result.push_back(key + "=" + value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

}  // namespace

Worker::Worker(const WorkerOptions& options) : name_(options.name) {
  const SocketPair sockets = socket_pair();
  std::vector<std::string> arguments = {
      "worker-" + options.name,
      "--worker",
      "--pid=" + std::to_string(options.pid_in_namespace),
      options.private_dev_shm ? "--private-dev-shm" : "--shared-dev-shm",
  };
  std::vector<std::string> environment = with_environment(options.environment);

  posix_spawn_file_actions_t actions;
  (void)posix_spawn_file_actions_init(&actions);
  // dup2 onto itself would keep close-on-exec, and one target must not overwrite the other's source: via high numbers.
  const std::array<std::pair<int, int>, 3> handed{{
      {sockets.theirs, kCommandSocket},
      {options.peer_socket, kPeerSocket},
      {options.second_peer_socket, kSecondPeerSocket},
  }};
  std::vector<int> copies;
  for (const auto& [ours, theirs] : handed) {
    if (ours >= 0) {
      copies.push_back(fcntl(ours, F_DUPFD_CLOEXEC, 32));
      (void)posix_spawn_file_actions_adddup2(&actions, copies.back(), theirs);
    }
  }
  const int error =
      posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
  (void)posix_spawn_file_actions_destroy(&actions);
  for (const int copy : copies) {
    (void)close(copy);
  }
  (void)close(sockets.theirs);
  socket_ = sockets.ours;
  if (error != 0) {
    (void)close(socket_);
    throw std::runtime_error("posix_spawn of a worker: " + std::string(std::strerror(error)));
  }
  remember_child(pid_);
  try {
    Message hello;
    if (!receive(socket_, &hello, Deadline(10))) {
      throw WorkerHung("worker '" + name_ + "' did not start within 10 s");
    }
    if (hello.name() == "refused") {
      refused_ = hello.text("reason");
    } else {
      own_pid_ = static_cast<pid_t>(hello.integer("pid"));
    }
  } catch (...) {
    kill();
    throw;
  }
}

Worker::Worker(Worker&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      own_pid_(other.own_pid_),
      socket_(std::exchange(other.socket_, -1)),
      refused_(std::move(other.refused_)) {}

Worker::~Worker() {
  if (socket_ >= 0) {
    (void)close(std::exchange(socket_, -1));
  }
  if (pid_ > 0 && gone_within(2)) {
    forget_child(std::exchange(pid_, -1));
  }
  kill();
}

bool Worker::gone_within(double seconds) {
  const Deadline deadline(seconds);
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (deadline.passed()) {
      return false;
    }
    (void)usleep(500);
  }
  return true;
}

void Worker::send(const Message& message) { experiments::send(socket_, message); }

std::optional<Message> Worker::reply_within(double seconds) {
  Message answer;
  try {
    if (!receive(socket_, &answer, Deadline(seconds))) {
      return std::nullopt;
    }
  } catch (const std::exception& error) {
    throw std::runtime_error("worker '" + name_ + "': " + error.what());
  }
  if (answer.name() == "error") {
    throw WorkerRefused("worker '" + name_ + "': " + answer.text("reason"));
  }
  return answer;
}

Message Worker::reply(double seconds) {
  const std::optional<Message> answer = reply_within(seconds);
  if (!answer.has_value()) {
    kill();
    throw WorkerHung("'" + name_ + "' gave no answer within " + std::to_string(static_cast<int>(seconds)) + " s");
  }
  return *answer;
}

Message Worker::call(const Message& message, double seconds) {
  send(message);
  try {
    return reply(seconds);
  } catch (const WorkerHung& hung) {
    throw WorkerHung(message.name() + ": " + hung.what());
  } catch (const WorkerRefused& refused) {
    throw WorkerRefused(message.name() + ": " + refused.what());
  }
}

void Worker::signal(int number) const {
  if (::kill(pid_, number) != 0) {
    throw std::runtime_error("kill: " + std::string(std::strerror(errno)));
  }
}

void Worker::kill() {
  if (socket_ >= 0) {
    (void)close(std::exchange(socket_, -1));
  }
  if (pid_ > 0) {
    (void)::kill(pid_, SIGKILL);
    // A process inside the driver can be slow to end, and must not hold up the experiment for ever.
    (void)gone_within(20);
    forget_child(std::exchange(pid_, -1));
  }
}

std::pair<Message, Message> replies(Worker& first, Worker& second, double seconds) {
  std::array<Message, 2> answers;
  std::string refused;
  bool hung = false;
  for (const auto& [worker, answer] : {std::pair{&first, &answers[0]}, std::pair{&second, &answers[1]}}) {
    try {
      *answer = worker->reply(seconds);
    } catch (const std::exception& error) {
      hung = hung || dynamic_cast<const WorkerHung*>(&error) != nullptr;
      refused += (refused.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (hung) {
    throw WorkerHung(refused);
  }
  if (!refused.empty()) {
    throw WorkerRefused(refused);
  }
  return {answers[0], answers[1]};
}

bool is_worker(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "--worker") != 0) {
    return false;
  }
  die_with_parent();
  // Libraries write there; it is for results.
  (void)dup2(STDERR_FILENO, STDOUT_FILENO);
  if (argc > 3) {
    const int pid_wanted = std::atoi(argv[2] + std::strlen("--pid="));
    if (pid_wanted > 0) {
      enter_pid_namespace(pid_wanted, argv);
    }
    if (std::strcmp(argv[3], "--private-dev-shm") == 0) {
      enter_private_dev_shm(argv);
    }
  }
  return true;
}

void serve(const Handlers& handlers) {
  try {
    send(kCommandSocket, Message("hello").set("pid", static_cast<std::int64_t>(getpid())));
    while (true) {
      Message message;
      if (!receive(kCommandSocket, &message, Deadline(1000))) {
        break;
      }
      Message answer;
      try {
        const auto handler = handlers.find(message.name());
        if (handler == handlers.end()) {
          throw std::runtime_error("no handler for '" + message.name() + "'");
        }
        answer = handler->second(message);
      } catch (const std::exception& error) {
        answer = Message("error").set("reason", error.what());
      }
      send(kCommandSocket, answer);
    }
  } catch (const std::exception&) {
    // The experiment is gone or done.
  }
  // Streams may still wait: no destructor of the runtime must run.
  _exit(0);
}

void remember_child(pid_t pid) {
  for (auto& slot : running) {
    pid_t empty = 0;
    if (slot.compare_exchange_strong(empty, pid)) {
      return;
    }
  }
  (void)::kill(pid, SIGKILL);
  throw std::runtime_error("more than 64 children at once");
}

void forget_child(pid_t pid) {
  for (auto& slot : running) {
    pid_t expected = pid;
    if (slot.compare_exchange_strong(expected, 0)) {
      return;
    }
  }
}

void kill_children() {
  for (auto& slot : running) {
    const pid_t pid = slot.load();
    if (pid > 0) {
      (void)::kill(pid, SIGKILL);
    }
  }
}

}  // namespace gradsync::experiments
