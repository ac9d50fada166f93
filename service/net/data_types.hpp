#pragma once
// Data connections between daemons of one job, as their owner sees them: asked for by a request of HTTP, and bare
// sockets from then on. What goes over them is not known here.

#include "base/unique_fd.hpp"

#include <cstdint>
#include <string>

namespace gradsync::net {

enum class DataPayload : std::uint8_t { Partials, Results };

/// What a data connection is for, as the daemon that opens it says. The listener has checked the spelling alone.
struct DataLinkHello {
  std::string job;        ///< 1 to 256 bytes
  std::uint32_t uid = 0;  ///< its owner
  std::uint64_t epoch = 0;
  DataPayload payload = DataPayload::Partials;
  std::string from;  ///< incarnation of the daemon that connects, 16 hex digits
  std::string to;    ///< that of the daemon that it means
  friend bool operator==(const DataLinkHello&, const DataLinkHello&) = default;
};

/// One that another daemon has opened: nothing was read of it behind the request.
struct DataLink {
  DataLinkHello hello;
  std::string other_address;  ///< numeric, without its port
  UniqueFd socket;            ///< connected, close-on-exec, does not block
};

}  // namespace gradsync::net
