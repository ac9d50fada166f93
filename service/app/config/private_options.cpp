#include "app/config/private_options.hpp"

#include "app/config/socket_places.hpp"

#include <unistd.h>

namespace gradsync::app {

Options private_options(const Configuration& configuration, const std::string& folder) {
  Options options = configuration.options;
  options.server.socket = folder + "/gradsync.sock";
  options.server.socket_mode = FileMode{0600};
  if (!configuration.is_asked_for("server.health")) {
    options.server.health.clear();
  }
  if (!configuration.is_asked_for("server.tcp")) {
    options.server.tcp.clear();
    if (!configuration.is_asked_for("server.tcp_token_file")) {
      options.server.tcp_token_file.clear();
    }
    if (!configuration.is_asked_for("server.tcp_read_token_file")) {
      options.server.tcp_read_token_file.clear();
    }
  }
  if (!configuration.is_asked_for("peer.listen")) {
    options.peer.listen.clear();
  }
  if (configuration.is_default("blackbox.folder")) {
    options.blackbox.folder = private_dump_folder(::geteuid());
  }
  if (configuration.is_default("log.level")) {
    options.log.level = "warn";
  }
  return options;
}

}  // namespace gradsync::app
