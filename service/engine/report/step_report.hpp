#pragma once
// Turns the measurements of a lane into the report that a trainer gets. Pure.

#include "device/lane.hpp"
#include "engine/report/report.hpp"
#include "plan/plan.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// The parts that are the same in every report of a plan; made once, because a plan may have ten thousand tensors.
struct ReportConstants {
  std::vector<SharedText> layers;
  std::vector<std::vector<std::string>> watching;  ///< by clip group, the policies that only watch, in words
  std::string data_path;
  std::optional<std::string> partial_sums;  ///< "bfloat16", where that was declared
  std::vector<ScalarCollectiveReport> scalar_collectives;
};

[[nodiscard]] ReportConstants report_constants(const plan::Plan& plan);

/// Everything but step, epoch, attempts, what was waited for, and the policies: their digest, and what watchers say, of
/// which only the names are there. Nothing is left of what `report` said before, but the memory of it is used again.
void step_report(
    const plan::Plan& plan, const ReportConstants& constants, const device::StepMath& math, StepReport& report
);

/// By finding of non-finite values and rank that brought some, in the order of the measurements; empty: none is known.
using MicroBatches = std::vector<std::vector<std::optional<std::int64_t>>>;

/// Adds to the report of these measurements what the ranks said of their micro-batches.
void name_micro_batches(const MicroBatches& micro_batches, StepReport& report);

/// The report of a norm that was given out before anything is multiplied.
[[nodiscard]] StepReport measured_report(
    const plan::Plan& plan, const ReportConstants& constants, const device::StepMath& math
);

/// The report for one rank: `absent` in the rows of its own declaration, where ranks number tensors differently; else
/// the report for all.
[[nodiscard]] std::shared_ptr<const StepReport> report_for(
    const std::shared_ptr<const StepReport>& report, const plan::Plan& plan, std::int64_t rank
);

}  // namespace gradsync::engine
