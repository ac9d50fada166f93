#pragma once
// The actions that the step machine wants done, in order. The code that performs them decides nothing.

#include "base/error.hpp"
#include "device/lane.hpp"
#include "engine/report/step_report.hpp"
#include "engine/step/ask.hpp"
#include "engine/types.hpp"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// Launch the reduction of a bucket.
struct LaunchReduce {
  device::LaneId lane = device::kHostLane;
  std::uint32_t bucket = 0;
  std::vector<device::UnusedTensor> unused;
  bool defer = false;  ///< the steps before were multiplied as a whole, and this one is expected to be (ADR 0026)
};

/// All ranks agree and all buckets are launched: combine behind them, and multiply unless `norm_only`. The lane takes
/// commands in order, and refuses to combine buckets that are not reduced.
struct LaunchFinish {
  device::LaneId lane = device::kHostLane;
  double scale = 1.0;
  bool scaled = false;
  bool norm_only = false;
  bool override_max_norm = false;
  std::optional<double> max_norm;
};

/// The same on a plan that several lanes share: one of them says what its buckets sum to. `Decide` follows.
struct LaunchMeasure {
  device::LaneId lane = device::kHostLane;
  std::vector<std::uint32_t> buckets;
};

/// All lanes have measured: add up, decide by these terms, and tell `on_decided`.
struct Decide {
  std::vector<device::Measured> parts;
  double scale = 1.0;
  bool scaled = false;
  bool override_max_norm = false;
  std::optional<double> max_norm;
};

/// Where several lanes share the plan: what was decided is not to leave everything as it is, multiply. Where gradients
/// travel it comes in every step.
struct LaunchOutcomes {
  device::LaneId lane = device::kHostLane;
  std::vector<std::uint32_t> buckets;
  std::vector<plan::ClipOutcome> outcomes;
  std::vector<std::uint32_t> absent = {};  ///< on every node, where gradients travel
};

/// The second half of a step that has given out its norm. `buckets`: of a lane that shares the plan; empty: all.
struct LaunchScale {
  device::LaneId lane = device::kHostLane;
  bool override_max_norm = false;
  std::optional<double> max_norm;
  bool abandon = false;
  std::vector<std::uint32_t> buckets = {};
  std::vector<std::uint32_t> absent = {};  ///< on every node, where gradients travel
};

/// Every rank here asks for the same, and the lane has measured: ask the other nodes. `on_agreed` follows.
struct AskPeers {
  Ask terms;  ///< with the earliest deadline of the ranks here
};

/// Read for the other nodes what they compare; `on_rows_read` follows.
struct LaunchRead {
  device::LaneId lane = device::kHostLane;
  device::ReadRows wanted;
};

/// The time of a rank here is over, or half of it, and other nodes are waited for.
struct PeersOverdue {
  bool half = false;
  std::int64_t step = 0;
  double waited_s = 0;
};

/// The attempt fails here, and the lane is quiet: tell the other nodes. `fail` follows.
struct TellFailed {
  Error error;
};

/// Stop what the lane still does for this attempt. A lane that owes nothing is told nothing.
struct LaunchAbort {
  device::LaneId lane = device::kHostLane;
  std::uint64_t attempt = 0;
};

/// Answer one rank's call; the attempt goes on.
struct AnswerRank {
  std::int64_t rank = 0;
  Error error;
};

/// The norm is known (norm_only): answer every waiting rank, the step stays open for `clip`.
struct NormKnown {
  device::StepMath math;
  MicroBatches micro_batches;
};

/// The lane did all of it: get everything ready that the end of the step needs, and vote. `on_verdict` follows.
struct Prepare {
  std::uint64_t attempt = 0;
  device::StepMath math;
  MicroBatches micro_batches;
};

/// Every rank gave the same state: the same, for policies that go on with it.
struct PrepareImport {
  std::uint64_t attempt = 0;
};

/// The step that was prepared is done: answer every rank.
struct Committed {
  std::uint64_t attempt = 0;
};

/// The policies go on with the state that was prepared: answer every rank.
struct Imported {
  std::uint64_t attempt = 0;
};

/// The attempt failed and the lane is quiet: answer every waiting rank with the error. What was prepared is taken back.
struct AttemptFailed {
  std::uint64_t attempt = 0;
  Error error;
  bool begun = false;  ///< false: no rank had sent anything of it
};

/// Half of a waiting rank's time is over, and other ranks are missing. Said once in an attempt.
struct HalfTime {
  std::string waits_for;
};

using Action = std::variant<
    LaunchReduce,
    LaunchFinish,
    LaunchMeasure,
    Decide,
    LaunchOutcomes,
    LaunchScale,
    AskPeers,
    LaunchRead,
    PeersOverdue,
    TellFailed,
    LaunchAbort,
    AnswerRank,
    NormKnown,
    Prepare,
    PrepareImport,
    Committed,
    Imported,
    AttemptFailed,
    HalfTime>;
using Actions = boost::container::small_vector<Action, 2>;

}  // namespace gradsync::engine
