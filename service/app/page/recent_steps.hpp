#pragma once
// The last steps of one job as GET /steps shows them: made of the reports and of what the flight recorder has. Pure.

#include "engine/recorder/flight_dump.hpp"
#include "engine/report/report.hpp"
#include "rpc/wire/wire_steps.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::app {

/// The limits of the answer, which a browser fetches every second.
inline constexpr std::int64_t kShownSteps = 200;
inline constexpr std::size_t kShownFindings = 20;     ///< steps
inline constexpr std::size_t kShownTensors = 8;       ///< of each kind in one of these
inline constexpr std::size_t kTimelineAttempts = 4;   ///< whose buckets are shown
inline constexpr std::size_t kTimelineBuckets = 512;  ///< the newest of these attempts
inline constexpr std::size_t kShownFailures = 5;      ///< attempts
inline constexpr std::size_t kLagAttempts = 50;

struct StepsQuery {
  std::string job;
  std::optional<std::uint32_t> uid;  ///< none: whoever has a job of this name
};

/// `job=NAME&uid=UID` with percent escapes. Errors: InvalidParams.
[[nodiscard]] Result<StepsQuery> parse_steps_query(std::string_view query);

/// `reports`: oldest first, those of the job of the dump.
[[nodiscard]] rpc::StepsAnswer recent_steps(
    const std::vector<std::shared_ptr<const engine::StepReport>>& reports, engine::FlightDump dump
);

}  // namespace gradsync::app
