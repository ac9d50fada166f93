#pragma once
// What the dumps of all nodes of a job have to say of it, in one sentence. Pure.
//
// The first of these that is there counts: something that nodes say differently of one attempt or bucket; what kept the
// attempt that failed, or that has been under way for too long; a rank that the others waited for again and again, or a
// link that carries less than the others. Clocks of nodes are not compared: what all nodes know of one attempt is its
// decision, and times count from there.

#include "app/blackbox/flight_world.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

struct FlightFinding {
  enum class Kind : std::uint8_t {
    Nothing,      ///< nothing stands out
    Differs,      ///< nodes say different things of one attempt or bucket
    LateRank,     ///< the others waited for it
    LostRank,     ///< it died or left
    SlowNode,     ///< it did not end what the others had ended
    SlowLink,     ///< between two nodes
    MissingNode,  ///< it has left no dump, and the others waited for it; or it was lost
    Failure,      ///< why it failed is known, and names no rank and no node
  };

  Kind kind = Kind::Nothing;
  std::string sentence;
  std::optional<AttemptKey> attempt = {};
  std::optional<std::int64_t> step = {};
  std::optional<std::int64_t> rank = {};  ///< the first one, where there are several
  std::optional<std::int64_t> node = {};  ///< number
  std::optional<std::int64_t> peer = {};  ///< the other end of a link
  std::optional<std::uint32_t> bucket = {};
  std::optional<double> seconds = {};  ///< that were waited for it
};

[[nodiscard]] const char* name_of(FlightFinding::Kind kind);

[[nodiscard]] FlightFinding analyze_flight(const FlightWorld& world);

// ---- its parts

/// The first thing that nodes say differently.
[[nodiscard]] std::optional<FlightFinding> first_difference(const FlightWorld& world);

/// What kept the last attempt that failed, or that waits; none where none does.
[[nodiscard]] std::optional<FlightFinding> what_failed(const FlightWorld& world);

/// Over the last attempts that were done.
[[nodiscard]] FlightFinding what_stands_out(const FlightWorld& world);

/// "step 12 (epoch 3, attempt 11)".
[[nodiscard]] std::string attempt_text(AttemptKey key, std::optional<std::int64_t> step);

/// The label of the attempt, where some node knows it.
[[nodiscard]] std::optional<std::int64_t> step_of(const FlightWorld& world, AttemptKey key);

/// "12.3 s", "4.5 ms".
[[nodiscard]] std::string time_text(double time_s);

}  // namespace gradsync::app
