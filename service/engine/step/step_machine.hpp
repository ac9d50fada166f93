#pragma once
// One epoch's steps as a sans-I/O machine: events in, actions out; no clock, no lane, no reply of its own. It is told
// of the ranks of this node, by their numbers in the job; what it keeps of each it keeps by seat
// (engine/epoch/local_ranks).
//
// Invariants: buckets are launched strictly in plan order, each once per attempt and only when every rank said it is
// ready; the norm is launched behind them, once every rank here asked for the same step; the attempt is
// prepared when the lane did all of it, and done only by a verdict; until then nothing ends it, because other nodes may
// know it as done. Before it is prepared the first failure is sticky: the attempt aborts once, and `Failed` is given
// out only when nothing of it is outstanding on any lane. Where other nodes take part, they are asked between what the
// lanes measure and what is decided, and an attempt that fails here is over when they have said so: attempts have the
// same number on all nodes. An attempt that ended leaves a record, so that a repeated call gets the same answer.
//
// Where gradients travel (data path arena over nodes) a lane is done with a bucket when the other nodes have done their
// part, so what it waits for may be elsewhere. What nodes find together is written in every step, before the vote. A
// failure is told at once: the other nodes end the epoch for it, and each answers its ranks when its own lane is quiet.

#include "engine/epoch/local_ranks.hpp"
#include "engine/epoch/roster.hpp"
#include "engine/plan/project_plan.hpp"
#include "engine/report/step_report.hpp"
#include "engine/step/ask.hpp"
#include "engine/step/step_action.hpp"
#include "engine/types.hpp"
#include "plan/plan.hpp"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gradsync::engine {

class StepMachine {
 public:
  /// Launches nothing before `open`: survivors of an epoch may be ready before its plan is on the lane again.
  StepMachine(std::shared_ptr<const plan::Plan> plan, std::uint64_t epoch, LocalRanks locals);

  /// All ranks of the plan are here.
  StepMachine(std::shared_ptr<const plan::Plan> plan, std::uint64_t epoch);

  /// The lanes have the plan. Where there are several on a node that is alone, each measures its buckets, and one
  /// decision is taken for all. Over nodes each lane is a site: it reduces every bucket, and finishes all of them.
  [[nodiscard]] Actions open(const std::vector<LaneShare>& shares);

  /// `micro_batch`: that completed the bucket, where the rank says so.
  [[nodiscard]] Actions on_bucket_ready(
      std::int64_t rank, std::uint64_t attempt, std::uint32_t bucket, std::optional<std::int64_t> micro_batch = {}
  );
  /// `rows` of the rank's declaration.
  [[nodiscard]] Actions on_unused(std::int64_t rank, std::uint64_t attempt, const std::vector<std::uint32_t>& rows);
  /// `request.kind` Finish or NormOnly. The epoch was checked by the caller.
  [[nodiscard]] Actions on_finish(std::int64_t rank, const FinishRequest& request, TimePoint now, TimePoint deadline);
  [[nodiscard]] Actions on_clip(std::int64_t rank, const ClipRequest& request, TimePoint now, TimePoint deadline);

  [[nodiscard]] Actions on_import(std::int64_t rank, const ImportRequest& request, TimePoint now, TimePoint deadline);

  // The lane is the one that reports, and one that owes a report.
  void on_reduced(device::LaneId lane, std::uint64_t tag);
  [[nodiscard]] Actions on_finished(device::LaneId lane, std::uint64_t tag, device::StepMath math);
  [[nodiscard]] Actions on_measured(device::LaneId lane, device::Measured report);
  /// The answer to `Decide`, at once.
  [[nodiscard]] Actions on_decided(device::StepMath math);
  [[nodiscard]] Actions on_scaled(device::LaneId lane, std::uint64_t tag, double clip_s);
  /// `why`: in place of what the report says.
  [[nodiscard]] Actions on_lane_failed(
      device::LaneId lane, const device::Failed& report, std::optional<Error> why = {}
  );
  [[nodiscard]] Actions on_aborted(device::LaneId lane, std::uint64_t tag);

  /// The attempt that was prepared is done or, with an error, failed.
  [[nodiscard]] Actions on_verdict(std::optional<Error> failure);

  /// Ends the attempt with an error that other nodes know, or need not know because the epoch ends or has not begun;
  /// `AttemptFailed` follows now or when the lane is quiet. One that is voted on waits for its verdict: if it is done,
  /// the attempt after it fails.
  [[nodiscard]] Actions fail(Error error);

  /// Ends the attempt with an error that other nodes have to hear first: `TellFailed` comes before `AttemptFailed`.
  [[nodiscard]] Actions fail_here(Error error);

  // other nodes
  /// All nodes ask for the same. `math`: what was decided by the sums of all, for a norm.
  [[nodiscard]] Actions on_agreed(device::StepMath math);
  /// Rows are wanted while the other nodes are asked, by lane as in `open`, of which some have none; else nothing
  /// follows.
  [[nodiscard]] Actions on_rows_wanted(std::vector<device::ReadRows> wanted);
  /// Whether these rows are of the attempt that is under way.
  [[nodiscard]] bool on_rows_read(device::LaneId lane, std::uint64_t tag);

  /// A rank of another node that is waited for is paused, or not any more; `follow_pauses` comes behind it.
  void on_peers_paused(bool paused) { peers_paused_ = paused; }

  /// Other ranks have seats of this node, before the first attempt is opened. What the others asked counts on.
  void reseat(LocalRanks locals);

  /// The earliest of the ranks here, all of which wait.
  [[nodiscard]] TimePoint first_deadline() const;

  /// The other nodes are asked, and have not decided.
  [[nodiscard]] bool asking() const { return course_.phase == Phase::Asking && !course_.error; }

  /// `next_deadline` has come. `forming`: what the epoch lacks, empty when it is complete.
  [[nodiscard]] Actions on_time(TimePoint now, const std::string& forming = {});
  /// The earliest deadline of a waiting rank, or the moment of its warning; none while deadlines stand still.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  /// Called after everything that may change which rank waits for which. The time that a call waited for a paused rank
  /// does not count; a pause that no call waited for does not count twice, and neither do two pauses at once.
  void follow_pauses(TimePoint now, const Roster& roster);

  [[nodiscard]] std::uint64_t attempt() const { return attempt_; }

  /// StaleAttempt, unless the attempt is the current one.
  [[nodiscard]] std::optional<Error> stale(std::int64_t rank, std::uint64_t attempt) const;

  [[nodiscard]] bool waiting(std::int64_t rank) const { return ranks_[seat(rank)].ask.has_value(); }

  [[nodiscard]] const std::optional<Ask>& ask_of(std::int64_t rank) const { return ranks_[seat(rank)].ask; }

  /// Calls `visit` with each bucket that the rank has a part of, and has not called ready.
  template <typename Visit>
  void each_unready(std::int64_t rank, Visit visit) const {
    const Rank& of_rank = ranks_[seat(rank)];
    if (of_rank.notified.size() == of_rank.ready.size()) {
      return;
    }
    for (std::uint32_t bucket = 0; bucket < of_rank.ready.size(); ++bucket) {
      if (!of_rank.ready[bucket] && holds(seat(rank), bucket)) {
        visit(bucket);
      }
    }
  }

  /// All ranks of this node are.
  [[nodiscard]] bool all_waiting() const { return asked_ == ranks_.size(); }

  [[nodiscard]] bool any_waiting() const { return asked_ > 0; }

  [[nodiscard]] bool busy() const;

  /// The attempt is prepared, and its verdict is waited for.
  [[nodiscard]] bool voting() const { return course_.phase == Phase::Voting; }

  [[nodiscard]] bool failing() const { return course_.error.has_value(); }

  /// Why the attempt fails, while the lane has not stopped.
  [[nodiscard]] const std::optional<Error>& failure() const { return course_.error; }

  /// Some rank has begun this attempt.
  [[nodiscard]] bool begun() const;

  [[nodiscard]] std::int64_t launched() const { return static_cast<std::int64_t>(course_.next_launch); }

  /// Ranks of this node that have not asked yet.
  [[nodiscard]] std::vector<std::int64_t> missing_ranks() const;
  /// Says in words what the attempt waits for.
  [[nodiscard]] std::string waits_for() const;

  [[nodiscard]] const plan::Plan& plan() const { return *plan_; }

  [[nodiscard]] std::shared_ptr<const plan::Plan> plan_pointer() const { return plan_; }

 private:
  static constexpr std::size_t kNamedTensors = 20;  ///< in an error
  /// After this many steps in a row whose finish multiplied every clip group, the next is expected to do so as well.
  static constexpr std::int64_t kMultipliedBefore = 2;

  enum class Phase : std::uint8_t { Collecting, Finishing, Asking, NormGiven, Scaling, Voting };

  struct Notified {
    std::uint32_t bucket = 0;
    std::optional<std::int64_t> micro_batch;
  };

  struct Rank {
    const plan::ArenaLayout* layout = nullptr;  ///< in the plan; data path arena only
    std::vector<bool> ready;                    ///< per bucket
    std::vector<Notified> notified;             ///< in the order of arrival
    std::optional<std::int64_t> micro_batch;    ///< that completed the buckets that were not notified
    std::vector<std::uint32_t> unused;          ///< rows
    std::vector<bool> is_unused;                ///< per row, the same set
    std::optional<Ask> ask;
    std::optional<Error> notification_error;  ///< the error of a notification; given out with the finish
  };

  /// Everything that ends with an attempt, but for what ranks said. It is replaced as a whole.
  struct Course {
    Phase phase = Phase::Collecting;
    std::size_t next_launch = 0;
    std::size_t finished = 0;                ///< lanes that have answered a finish
    std::vector<device::Measured> measured;  ///< by lanes that share the plan, until all have
    bool half_warned = false;
    bool overdue = false;                ///< Asking: the other nodes were told that the time is over
    std::optional<TimePoint> suspended;  ///< since when deadlines stand still, for a paused rank
    std::optional<Error> error;          ///< sticky failure
    bool known = false;                  ///< it came from other nodes, or they need not hear of it
    bool said = false;                   ///< they were told of it
    bool multiplied = false;             ///< Voting: the finish multiplied every clip group
    std::optional<Error> later;          ///< Voting: why the next attempt fails
  };

  struct GivenNorm {
    device::StepMath math;
    std::int64_t step = 0;
  };

  struct LaneWork {
    device::LaneId lane = device::kHostLane;
    std::size_t outstanding = 0;              ///< commands, an Abort included
    std::vector<std::uint32_t> buckets = {};  ///< its part of a plan that several share
    std::size_t reduced = 0;                  ///< buckets in this attempt
  };

  [[nodiscard]] std::size_t seat(std::int64_t rank) const { return locals_.seat_of_local(rank); }

  [[nodiscard]] Rank made(std::int64_t rank) const;

  /// Counts one command more for the lane, and says its id.
  [[nodiscard]] static device::LaneId launch_on(LaneWork& work);

  /// Lanes have cut the plan's buckets.
  [[nodiscard]] bool shared() const { return lanes_.size() > 1 && locals_.alone(); }

  /// Some ranks are on other nodes.
  [[nodiscard]] bool over_nodes() const { return static_cast<std::int64_t>(locals_.size()) < locals_.world_size(); }

  /// Every lane has every bucket.
  [[nodiscard]] bool is_sites() const { return lanes_.size() > 1 && !locals_.alone(); }

  /// Lanes of several nodes add gradients up.
  [[nodiscard]] bool travels() const { return !locals_.alone() && plan_->options.data_path == plan::DataPath::Arena; }

  /// Every rank here has done its part, and other nodes have not.
  [[nodiscard]] bool waits_for_nodes() const {
    return asking() || voting() || (travels() && course_.phase == Phase::Finishing && !course_.error);
  }

  /// All ranks here ask for the same, and what had to be measured is: the other nodes are asked first.
  void agree(Actions& actions);
  void go_on(device::StepMath&& math, Actions& actions);
  [[nodiscard]] Actions fail(Error error, bool known);
  void launch_norm(const Ask& ask, Actions& actions);
  void launch_scale(const Ask& ask, Actions& actions);
  void launch_outcomes(device::StepMath&& math, Actions& actions);
  /// The norm is known, and everything is multiplied that should be: what on_finished and on_decided end with.
  void end_measured(device::StepMath&& math, Actions& actions);
  void prepare(device::StepMath&& math, Actions& actions);
  LaneWork& count_report(device::LaneId lane);
  /// Buckets of the plan that every lane which has them has reduced.
  [[nodiscard]] std::size_t reduced() const;
  [[nodiscard]] std::vector<std::string> unready_tensors(std::int64_t rank) const;
  [[nodiscard]] std::optional<Error> bad_index(std::int64_t rank, const FinishRequest& request) const;
  [[nodiscard]] std::optional<Error> bad_unused(
      std::int64_t rank, const char* path, const std::vector<std::uint32_t>& rows
  ) const;
  /// Ranks number tensors by the rows of their declarations; the plan's number of each. Data path arena only.
  [[nodiscard]] const std::vector<std::uint32_t>& rows_of(std::size_t seat) const;
  /// Whether the rank has a tensor in the bucket: if not, it is not waited for.
  [[nodiscard]] bool holds(std::size_t seat, std::uint32_t bucket) const;
  /// Whether every rank here that has a tensor in the bucket has given all of it.
  [[nodiscard]] bool ready_here(std::uint32_t bucket) const;
  [[nodiscard]] static Error not_held(std::int64_t rank, const char* path, std::uint32_t bucket);
  [[nodiscard]] static Error not_ready(std::int64_t rank, std::int64_t step, std::vector<std::string> unready);
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// When half of a waiting rank's time is over, while ranks are missing.
  [[nodiscard]] std::optional<TimePoint> half_time() const;
  [[nodiscard]] PeersOverdue overdue(TimePoint now, bool half) const;
  [[nodiscard]] const Ask& longest_ask() const;  ///< of the rank that waits longest
  [[nodiscard]] Error timeout(TimePoint now, const std::string& forming) const;
  [[nodiscard]] Error lane_error(const device::Failed& report) const;
  [[nodiscard]] std::string lane_work() const;
  [[nodiscard]] std::vector<std::string> missing_tensors() const;
  /// A rank waits to import: nothing is reduced meanwhile.
  [[nodiscard]] bool importing() const;
  void ask(Rank& rank, const Ask& ask);
  void forget_asks();
  void mark_unused(std::int64_t rank, const std::vector<std::uint32_t>& rows);
  /// Notes the buckets and tensors that the request calls ready or unused.
  void mark_asked(std::int64_t rank, const FinishRequest& request);
  void launch_ready(Actions& actions);
  void finish_if_complete(Actions& actions);
  [[nodiscard]] std::optional<Error> disagreement(std::int64_t rank, const Ask& ask) const;
  /// What the ranks said of the buckets in which the lane found non-finite values.
  [[nodiscard]] MicroBatches micro_batches(const std::vector<device::NonfiniteFinding>& findings) const;
  [[nodiscard]] std::optional<std::int64_t> micro_batch_of(std::int64_t rank, std::uint32_t bucket) const;
  void end_attempt();
  void settle_failure(Actions& actions);

  std::shared_ptr<const plan::Plan> plan_;
  LocalRanks locals_;
  std::uint64_t epoch_ = 0;
  std::uint64_t attempt_ = 0;
  bool open_ = false;
  bool peers_paused_ = false;
  Course course_;
  std::vector<Rank> ranks_;                                ///< by seat
  std::size_t asked_ = 0;                                  ///< the ranks that have an ask
  std::vector<std::vector<device::UnusedTensor>> unused_;  ///< per bucket, of all ranks
  boost::container::small_vector<LaneWork, 1> lanes_;
  std::vector<std::size_t> lane_of_bucket_;  ///< index into `lanes_`
  GivenNorm norm_;
  std::int64_t multiplied_in_a_row_ = 0;  ///< steps that ended by `finish` alone
};

}  // namespace gradsync::engine
