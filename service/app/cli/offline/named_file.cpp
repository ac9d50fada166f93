#include "app/cli/offline/named_file.hpp"

#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"

#include <fmt/format.h>

#include <system_error>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace gradsync::app {

bool open_to_read(std::ifstream& stream, const std::string& file, const std::string& hint) {
  stream.open(file, std::ios::binary);
  std::error_code ignored;
  if (stream && std::filesystem::is_directory(file, ignored)) {  // which open() takes, and no read does
    stream.setstate(std::ios::failbit);
    errno = EISDIR;
  }
  if (!stream) {
    refuse_file("read", file, hint);
  }
  return static_cast<bool>(stream);
}

int refuse_file(const std::string& verb, const std::string& file, const std::string& hint) {
  complain(fmt::format("cannot {} {}: {}", verb, file, std::strerror(errno)), hint);
  return kExitUsage;
}

}  // namespace gradsync::app
