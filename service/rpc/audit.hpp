#pragma once
// One line in the log for each call that changes more than a step: who called, what, and how it ended. The table of
// methods says which calls these are. Thread: io only.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "rpc/types.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::rpc {

struct Caller;
class Value;

/// A call that is noted. Its texts hold nothing secret, and no character that steers a terminal.
struct AuditedCall {
  std::string what;      ///< `method=job.pause uid=1000 pid=4711 connection=3 job="llm" rank=0 paused=true`
  bool limited = false;  ///< by a caller that could fill the log
};

[[nodiscard]] AuditedCall audited_call(
    std::string_view method, const Caller& caller, const std::optional<Value>& params
);

/// Callers without privileges share a number of lines a second. What is left out is counted, and said later.
class AuditLog {
 public:
  static constexpr int kLimitedLines = 100;  ///< a second

  /// No `error`: it went well.
  void write(const AuditedCall& call, const Error* error, TimePoint now);

 private:
  [[nodiscard]] bool has_room(TimePoint now);

  std::optional<TimePoint> second_;  ///< begin of the one that is counted
  int lines_ = 0;
  std::int64_t left_out_ = 0;
};

}  // namespace gradsync::rpc
