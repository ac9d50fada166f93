#pragma once
// A dump that a daemon wrote because this process asked for it, and that nobody needs when it was read. Daemons may
// answer any path, and root may ask any daemon: no file goes but one that was read, and is the dump that was asked for.

#include "base/error.hpp"
#include "rpc/wire/dump_file.hpp"

#include <cstdint>
#include <string>

namespace gradsync::app {

struct DumpRequest {
  std::string incarnation;  ///< of the daemon that was asked
  std::string job;
  std::int64_t asked_unix_us = 0;
};

/// The dump in this file, which is removed then. Errors, after which the file is still there: InvalidParams or
/// ParseError with its path, where it cannot be read, or is no dump, or not the one that was asked for.
[[nodiscard]] Result<rpc::DumpFile> take_requested_dump(const std::string& path, const DumpRequest& request);

}  // namespace gradsync::app
