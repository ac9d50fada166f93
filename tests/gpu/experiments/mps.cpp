#include "gpu/experiments/mps.hpp"

#include "gpu/experiments/message.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <utility>
#include <vector>

extern char** environ;

namespace gradsync::experiments {
namespace {

constexpr const char* kControl = "nvidia-cuda-mps-control";
constexpr const char* kFolders = "/usr/bin:/usr/local/cuda/bin";  // of drivers and of toolkits; not in every PATH

std::string search_path() {
  const char* path = std::getenv("PATH");
  return path == nullptr ? kFolders : std::string(path) + ":" + kFolders;
}

/// The control daemon's path; its name alone where it is nowhere.
std::string control_program() {
  std::istringstream folders(search_path());
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/" + kControl;
    if (!folder.empty() && access(program.c_str(), X_OK) == 0) {
      return program;
    }
  }
  return kControl;
}

// `input` becomes the program's standard input; its output is not read.
pid_t spawn_control(const std::vector<std::string>& words, const std::string& folder, const char* input) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "PATH=", 5) != 0) {
      environment.emplace_back(*entry);
    }
  }
  environment.push_back("PATH=" + search_path());  // in which it finds its server
  environment.push_back("CUDA_MPS_PIPE_DIRECTORY=" + folder);
  environment.push_back("CUDA_MPS_LOG_DIRECTORY=" + folder);
  std::vector<char*> arguments;
  std::vector<char*> settings;
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  for (const std::string& setting : environment) {
    settings.push_back(const_cast<char*>(setting.c_str()));
  }
  arguments.push_back(nullptr);
  settings.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  (void)posix_spawn_file_actions_init(&actions);
  (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input, O_RDONLY, 0);
  (void)posix_spawn_file_actions_addopen(
      &actions, STDOUT_FILENO, (folder + "/output").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600
  );
  (void)posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, control_program().c_str(), &actions, nullptr, arguments.data(), settings.data());
  (void)posix_spawn_file_actions_destroy(&actions);
  errno = error;
  return error == 0 ? pid : -1;
}

bool ends_within(pid_t pid, double seconds) {
  const Deadline deadline(seconds);
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    if (deadline.passed()) {
      return false;
    }
    (void)usleep(2000);
  }
  return true;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  (void)std::getline(file, line);
  return line;
}

/// Children of this process by name: a server whose control daemon is gone.
void kill_orphaned_servers() {
  DIR* processes = opendir("/proc");
  if (processes == nullptr) {
    return;
  }
  while (const dirent* entry = readdir(processes)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) {
      continue;
    }
    // "pid (name) state ppid": names are cut to 15 letters.
    const std::string stat = first_line("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t end = stat.rfind(')');
    if (end == std::string::npos || stat.find("(nvidia-cuda-mps") == std::string::npos) {
      continue;
    }
    if (std::atoi(stat.c_str() + end + 3) == getpid()) {
      (void)kill(pid, SIGKILL);
      (void)ends_within(pid, 5);
    }
  }
  (void)closedir(processes);
}

}  // namespace

MultiProcessService::MultiProcessService() {
  char name[] = "/tmp/gradsync-mps-XXXXXX";
  if (mkdtemp(name) == nullptr) {
    refused_ = std::string("mkdtemp: ") + std::strerror(errno);
    return;
  }
  folder_ = name;
  control_ = spawn_control({kControl, "-f"}, folder_, "/dev/null");
  if (control_ < 0) {
    refused_ = std::string(kControl) + ": " + std::strerror(errno);
    return;
  }
  remember_child(control_);
  // It listens at a socket called control.
  const Deadline deadline(5);
  while (access((folder_ + "/control").c_str(), F_OK) != 0) {
    if (waitpid(control_, nullptr, WNOHANG) != 0) {
      forget_child(std::exchange(control_, -1));
      refused_ = "the control daemon ended: " + first_line(folder_ + "/output");
      return;
    }
    if (deadline.passed()) {
      refused_ = "the control daemon opened no socket within 5 s: " + first_line(folder_ + "/output");
      return;
    }
    (void)usleep(2000);
  }
}

MultiProcessService::~MultiProcessService() {
  if (control_ > 0) {
    const std::string order = folder_ + "/order";
    std::ofstream(order) << "quit -t 1\n";
    const pid_t quit = spawn_control({kControl}, folder_, order.c_str());
    if (quit > 0 && !ends_within(quit, 5)) {
      (void)kill(quit, SIGKILL);
      (void)ends_within(quit, 5);
    }
    if (!ends_within(control_, 5)) {
      (void)kill(control_, SIGKILL);
      (void)ends_within(control_, 5);
    }
    forget_child(control_);
    kill_orphaned_servers();
  }
  if (!folder_.empty()) {
    std::error_code ignored;
    (void)std::filesystem::remove_all(folder_, ignored);
  }
}

Environment MultiProcessService::environment() const {
  return with(with(eager_environment(), "CUDA_MPS_PIPE_DIRECTORY", folder_), "CUDA_MPS_LOG_DIRECTORY", folder_);
}

}  // namespace gradsync::experiments
