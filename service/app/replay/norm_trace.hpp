#pragma once
// The norms of a recorded run, from JSON lines: those of the client's trackers, or reports of steps.

#include "base/error.hpp"

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace gradsync::app {

struct RecordedNorm {
  std::int64_t step = 0;  ///< the recorded one, else how many norms came before
  double norm = 0;
};

struct NormTrace {
  std::vector<RecordedNorm> norms;
  std::size_t other_lines = 0;  ///< without a norm
};

/// Each line is an object with `key`; empty: `norm`, or `grad_norm` where there is none. With `group` it is a report,
/// and the norm is that of the clip group. Errors: InvalidParams naming the line; a trace without a finite norm.
[[nodiscard]] Result<NormTrace> read_norm_trace(std::istream& in, const std::string& key, const std::string& group);

}  // namespace gradsync::app
