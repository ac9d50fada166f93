#include "app/cli/child_process.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/private_options.hpp"
#include "app/config/settings.hpp"
#include "app/config/socket_places.hpp"
#include "app/daemon/application.hpp"
#include "app/daemon/signals.hpp"
#include "app/daemon/start_failure.hpp"
#include "base/descriptors.hpp"
#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

namespace gradsync::app {

namespace {

/// A folder of mode 0700 for the sockets; its path must leave room in the 108 bytes of a socket address.
class PrivateFolder {
 public:
  PrivateFolder() {
    constexpr std::size_t kRoom = 60;
    std::error_code ignored;
    std::string base = std::filesystem::temp_directory_path(ignored).string();
    if (ignored || base.size() > kRoom) {
      base = "/tmp";
    }
    std::string name = base + "/gradsync-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) {
      path_ = name;
    }
  }

  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) {
      std::filesystem::remove_all(path_, ignored);
    }
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int not_started(const std::string& name, int error) {
  complain(
      fmt::format("cannot run '{}': {}", name, std::generic_category().message(error)),
      "the command follows '--', as in: gradsyncd run -- python train.py"
  );
  return error == ENOENT ? kExitNotFound : kExitNotExecutable;
}

}  // namespace

int execute(const RunCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  const PrivateFolder folder;
  if (folder.path().empty()) {
    complain("cannot make a private folder for the socket", "set TMPDIR to a folder this user may write");
    return kExitUnavailable;
  }
  const std::vector<int> forwarded{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  const sigset_t mask = block_signals(forwarded);  // before the first thread
  Options options = private_options(*configuration, folder.path());
  if (make_private_place(options.blackbox.folder, ::geteuid())) {
    options.blackbox.folder = "off";  // somebody else made that folder
  }
  start_logging_as(options.log);
  int code = kExitInternal;
  {
    Application application{options};
    ChildProcess child{application.io()};
    // The terminal signals the whole foreground group; the child got that one already.
    Signals signals{application.io(), forwarded, [&](int number, bool from_terminal) {
                      if (!from_terminal) {
                        child.signal(number);
                      }
                    }};
    if (const auto failure = application.start()) {
      complain(failure->message, failure->hint);
      code = exit_code_of(*failure);
    } else if (const auto error = child.start(command.command, {"GRADSYNC_ADDRESS=unix:" + options.server.socket}, mask)) {
      code = not_started(command.command.front(), *error);
    } else {
      raise_descriptor_limit();
      child.on_exit([&](int child_code) {
        code = child_code;
        application.drain();
        application.drain();  // no trainer is left that could finish a step
      });
      application.on_closed([&] { signals.stop(); });
      application.run();
    }
  }
  stop_logging();
  return code;
}

}  // namespace gradsync::app
