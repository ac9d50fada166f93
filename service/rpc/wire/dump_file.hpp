#pragma once
// A dump of the flight recorder as a file: JSON lines, first the head, then attempts, buckets and links, each kind in
// the order in which it was recorded. Files come from anywhere: what is read is checked.

#include "base/error.hpp"
#include "engine/recorder/flight_dump.hpp"
#include "rpc/wire/dump_lines.hpp"

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace gradsync::rpc {

/// What a recorder does not know of its dump.
struct DumpOrigin {
  DumpReason why = DumpReason::Request;
  std::string node;         ///< where the job has no name for this one
  std::string incarnation;  ///< of the daemon
  std::string release;
  std::int64_t taken_unix_us = 0;
};

struct DumpFile {
  DumpHead head;
  std::vector<DumpAttempt> attempts;
  std::vector<DumpBucket> buckets;
  std::vector<DumpLink> links;

  friend bool operator==(const DumpFile&, const DumpFile&) = default;
};

inline constexpr std::size_t kMostDumpRecords = 65'536;  ///< of each kind in a file
inline constexpr std::size_t kMostDumpLine = 4u << 20;   ///< bytes

[[nodiscard]] DumpFile dump_file(const engine::FlightDump& dump, const DumpOrigin& origin);

[[nodiscard]] std::string dump_text(const DumpFile& file);

/// Errors: ParseError or InvalidParams, with a path like `line 3: last_rank`.
[[nodiscard]] Result<DumpFile> read_dump_file(std::istream& in);

}  // namespace gradsync::rpc
