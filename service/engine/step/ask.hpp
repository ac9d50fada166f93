#pragma once
// The request of a rank that waits in a step call, and how two ranks' requests may differ.

#include "base/clock.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace gradsync::engine {

/// The request of a rank that waits in a step call.
struct Ask {
  enum class Kind : std::uint8_t { Finish, NormOnly, Clip, Import };
  Kind kind = Kind::Finish;
  std::int64_t step = 0;
  double scale = 1.0;
  bool scaled = false;
  bool abandon = false;
  bool override_max_norm = false;
  std::optional<double> max_norm;
  std::string state_digest;  ///< Import
  TimePoint since;
  TimePoint half;  ///< when to warn
  TimePoint deadline;
};

[[nodiscard]] Ask make_ask(const FinishRequest& request, TimePoint now, TimePoint deadline);
[[nodiscard]] Ask make_ask(const ClipRequest& request, TimePoint now, TimePoint deadline);
[[nodiscard]] Ask make_ask(const ImportRequest& request, TimePoint now, TimePoint deadline);
/// Times apart, the two ask for the same.
[[nodiscard]] bool same_terms(const Ask& a, const Ask& b);

/// StepMismatch naming the first thing that the two do not share; nothing when they ask for the same.
[[nodiscard]] std::optional<Error> mismatch(
    std::int64_t rank, const Ask& ask, std::int64_t other_rank, const Ask& other
);

/// Wire name of the method a rank waits in.
[[nodiscard]] const char* method_of(Ask::Kind kind);

}  // namespace gradsync::engine
