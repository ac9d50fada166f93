#pragma once
// Limits the room that the policy files of one user take in their directory, because many jobs never come back.
//
// Thread: the one that makes a file. Daemons may share the directory, and do not wait for each other. So a file is
// first made, locked and given its size, and then room is made for it: of two that are made at once each counts the
// other.

#include "base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace gradsync::engine {

/// Damaged ones included, but none that is still to be renamed over another.
inline constexpr std::size_t kMostPolicyFiles = 64;
inline constexpr std::size_t kMostPolicyBytes = std::size_t{256} << 20;
inline constexpr std::int64_t kMostIdleS = std::int64_t{30} * 24 * 60 * 60;

/// Followed by ".new" for a larger one that takes its place, by ".damaged-N" where it was set aside. The uid stands
/// beside the hash, so that no user can choose a name that another's file has.
[[nodiscard]] std::string policy_file_name(std::uint32_t uid, const std::string& job);

/// Whether the file that is open as `fd` still has this name.
[[nodiscard]] bool has_name(int directory_fd, const std::string& name, int fd);

/// Removes files of `uid`, those first that were written the longest ago: all that were not for 30 days before the file
/// that is open as `made`, and as many more as are too many. Never one that is locked. Errors: LimitExceeded where too
/// many stay; InternalError.
[[nodiscard]] Result<void> make_room(int directory_fd, const std::string& directory, std::uint32_t uid, int made);

}  // namespace gradsync::engine
