#pragma once
// Everything of a job that ends with an attempt. It is replaced as a whole, so nothing of it is cleared by hand.

#include "engine/policies/policy_keeper.hpp"
#include "engine/step/ask.hpp"
#include "engine/step/lane_stop.hpp"
#include "engine/types.hpp"

#include <boost/container/small_vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// An attempt that was answered, for calls that come again.
struct DoneRecord {
  StepKey key;
  std::shared_ptr<const StepReport> report;
  std::shared_ptr<const plan::Plan> plan;  ///< the one that the report is of
};

/// The step call of a rank.
struct StepCall {
  Reply<RankReport> reply;  ///< none: the rank does not wait
  StepKey key;
  Ask ask;
  std::vector<std::uint32_t> bucket_digests;
};

/// Everything that the end of an attempt needs when it is done.
struct PreparedAttempt {
  std::shared_ptr<StepReport> report;
  std::vector<RankReport> answers;          ///< by seat; their texts are in the record
  std::vector<plan::ClipOutcome> outcomes;  ///< by clip group; of an import none
  std::uint64_t nonfinite_values = 0;
  std::string result;  ///< a digest that all nodes have to share; empty on a node that is alone
};

/// The step call of a rank that left while it waited.
struct DepartedCall {
  std::size_t seat = 0;
  Reply<RankReport> reply;
};

struct Attempt {
  explicit Attempt(std::size_t seats) : calls(seats) {}

  std::vector<StepCall> calls;  ///< by seat
  std::vector<DepartedCall> departed;
  StepTerms terms;                          ///< by which the outcomes are made
  std::optional<DoneRecord> norm;           ///< the norm given out
  std::vector<double> raw_norms;            ///< by clip group, of the norm given out: what clip.apply clips by
  std::vector<plan::ClipOutcome> outcomes;  ///< those of the clip.apply in flight
  std::string import_state;                 ///< that ranks wait to import, the last one given
  std::optional<PreparedAttempt> prepared;  ///< while its verdict is not known
  std::vector<device::Finished> raw;        ///< by lane: what was measured here, where the other nodes are asked
  std::int64_t step = 0;                    ///< the trainers' label
  boost::container::small_vector<double, 1> reduce_s;  ///< by lane: its time for buckets
  std::optional<TimePoint> first_ask;
  std::optional<TimePoint> last_ask;
  LaneStop stop;  ///< of the lanes that are told to abort it
};

}  // namespace gradsync::engine
