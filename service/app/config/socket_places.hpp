#pragma once
// Where a daemon listens that is told nothing, and where its clients look for it: docs/protocol.md has the table, the
// Python client (`_launch/_places.py`) the same order, and tests/contract/socket_places.json the cases that both are
// tested with.

#include "app/config/configuration.hpp"
#include "base/error.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

/// The user that asks, and what this user may do.
struct Caller {
  std::uint32_t uid = 0;
  std::function<bool(const std::string& folder)> may_write;  ///< false also where there is no such folder
};

[[nodiscard]] Caller this_caller();

/// A daemon takes the first; clients try them in this order.
[[nodiscard]] std::vector<std::string> socket_places(const Environment& environment, const Caller& caller);

/// Where the dumps of a private daemon stay, whose own folder goes with it.
[[nodiscard]] std::string private_dump_folder(std::uint32_t uid);

/// Makes the folder of a socket that lies in the caller's private folder in /tmp, and does nothing for other sockets.
/// What somebody else put there is refused: `path` is server.socket.
[[nodiscard]] std::optional<Error> make_private_place(const std::string& socket_path, std::uint32_t uid);

/// Why `folder` is not the private folder of `uid`: a directory of mode 0700 that this user owns, and no link. None
/// also where nothing is there.
[[nodiscard]] std::optional<Error> check_private_folder(const std::string& folder, std::uint32_t uid);

/// Why a client must not connect: everybody may write to /tmp, so a socket there counts only in a folder of `uid` or
/// of root, and in one that others may write to only if it belongs to one of the two itself.
[[nodiscard]] std::optional<Error> refuse_place(const std::string& socket_path, std::uint32_t uid);

}  // namespace gradsync::app
