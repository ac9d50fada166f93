#include "app/config/socket_places.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace gradsync::app {

namespace {

constexpr const char* kMachineFolder = "/run/gradsync";
constexpr const char* kFile = "/gradsync.sock";
constexpr mode_t kOnlyForOwner = 0700;
/// But for the one by which new files get the folder's group, which is inherited below an `emptyDir` with an fsGroup.
constexpr mode_t kModeBits = 07777 & ~static_cast<mode_t>(S_ISGID);
constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

std::string private_folder(std::uint32_t uid) { return fmt::format("/tmp/gradsync-{}", uid); }

std::string folder_of(const std::string& socket_path) {
  return std::filesystem::path(socket_path).parent_path().string();
}

bool lies_in_tmp(const std::filesystem::path& folder) {
  const std::string text = folder.string();
  return text == "/tmp" || text.starts_with("/tmp/");
}

Error not_private(const std::string& folder, const std::string& what, std::uint32_t uid) {
  return invalid_params(
      "server.socket",
      fmt::format("'{}' is {}; it has to be a directory of mode 0700 that uid {} owns, and no link", folder, what, uid),
      "remove it, or have its owner remove it, or name another socket: `gradsyncd serve --socket PATH`, and "
      "GRADSYNC_ADDRESS=unix:PATH for its clients"
  );
}

Error of_somebody_else(const std::string& what, std::uint32_t owner, const std::string& socket, std::uint32_t uid) {
  return invalid_params(
      "address",
      fmt::format(
          "'{}' is not connected to: {} belongs to uid {}, not to uid {} or root, and everybody may write to /tmp",
          socket,
          what,
          owner,
          uid
      ),
      "call it as the user who started the daemon, or start the daemon with a --socket in a folder outside of /tmp"
  );
}

}  // namespace

Caller this_caller() {
  return {::geteuid(), [](const std::string& folder) {
            std::error_code ignored;
            return std::filesystem::is_directory(folder, ignored) &&
                   ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
          }};
}

std::vector<std::string> socket_places(const Environment& environment, const Caller& caller) {
  std::vector<std::string> places;
  std::vector<std::string> of_others;
  (caller.uid == 0 || caller.may_write(kMachineFolder) ? places : of_others)
      .push_back(std::string(kMachineFolder) + kFile);
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  if (runtime != environment.end() && runtime->second.starts_with('/')) {
    std::string folder = runtime->second;
    while (folder.size() > 1 && folder.ends_with('/')) {
      folder.pop_back();
    }
    (caller.may_write(folder) ? places : of_others).push_back(folder + "/gradsync" + kFile);
  }
  places.push_back(private_folder(caller.uid) + kFile);
  places.insert(places.end(), of_others.begin(), of_others.end());
  return places;
}

std::string private_dump_folder(std::uint32_t uid) { return private_folder(uid) + "/blackbox"; }

std::optional<Error> check_private_folder(const std::string& folder, std::uint32_t uid) {
  struct stat found {};

  if (::lstat(folder.c_str(), &found) != 0) {
    return errno == ENOENT ? std::nullopt
                           : std::optional(not_private(folder, std::generic_category().message(errno), uid));
  }
  if (S_ISLNK(found.st_mode)) {
    return not_private(folder, "a symbolic link", uid);
  }
  if (!S_ISDIR(found.st_mode)) {
    return not_private(folder, "no directory", uid);
  }
  if (found.st_uid != uid) {
    return not_private(folder, fmt::format("a directory of uid {}", found.st_uid), uid);
  }
  if ((found.st_mode & kModeBits) != kOnlyForOwner) {
    return not_private(folder, fmt::format("a directory of mode {:04o}", found.st_mode & kModeBits), uid);
  }
  return std::nullopt;
}

std::optional<Error> make_private_place(const std::string& socket_path, std::uint32_t uid) {
  const std::string folder = private_folder(uid);
  if (folder_of(socket_path) != folder) {
    return std::nullopt;
  }
  if (::mkdir(folder.c_str(), kOnlyForOwner) != 0 && errno != EEXIST) {
    return invalid_params(
        "server.socket",
        fmt::format("cannot create the folder '{}': {}", folder, std::generic_category().message(errno)),
        "set XDG_RUNTIME_DIR to a folder that this user may write, or name a socket: `gradsyncd serve --socket PATH`"
    );
  }
  return check_private_folder(folder, uid);
}

std::optional<Error> refuse_place(const std::string& socket_path, std::uint32_t uid) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string folder = folder_of(fs::absolute(socket_path, ignored).lexically_normal());
  if (folder == private_folder(uid)) {
    return check_private_folder(folder, uid);
  }
  const fs::path real = fs::canonical(folder, ignored);
  if (!lies_in_tmp(folder) && !lies_in_tmp(real)) {
    return std::nullopt;
  }
  const auto foreign = [uid](const struct stat& found) { return found.st_uid != uid && found.st_uid != 0; };

  struct stat found {};

  for (const std::string& looked_at : {folder, real.string()}) {  // the link, and what it names
    if (::lstat(looked_at.c_str(), &found) != 0) {
      return std::nullopt;  // nothing is there
    }
    if (foreign(found)) {
      return of_somebody_else(fmt::format("the folder '{}'", looked_at), found.st_uid, socket_path, uid);
    }
  }
  if ((found.st_mode & kWritableByOthers) != 0 && ::lstat(socket_path.c_str(), &found) == 0 && foreign(found)) {
    return of_somebody_else("the socket", found.st_uid, socket_path, uid);
  }
  return std::nullopt;
}

}  // namespace gradsync::app
