// What policies remember, from one daemon to the next and from one job to the next of the same name.

#include "fakes/not_finite.hpp"
#include "unit/engine/harness.hpp"
#include "unit/engine/policies/state_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

/// One daemon with one job of two ranks, whose clip group has the median of its last four norms as threshold.
class Daemon {
 public:
  explicit Daemon(const std::string& directory, std::uint64_t first_epoch = 1)
      : h_([&] {
          EngineOptions options;
          options.policy_directory = directory;
          options.first_epoch = first_epoch;
          return options;
        }()) {}

  void start(std::optional<StepKey> last_done = {}, std::optional<StepKey> of_rank_1 = {}, std::int64_t restart = 0) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      AttachRequest request = h_.request(rank, 2);
      request.restart_count = restart;
      request.client_id += std::to_string(restart);
      const Result<AttachResult> attached = h_.engine.attach(request);
      ASSERT_TRUE(attached);
      h_.sessions[rank] = attached->session;
    }
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      DeclareRequest request;
      request.declaration = Harness::declaration({Harness::tensor("a")});
      request.declaration.options.clip[0].clip.max_norm.reset();
      request.declaration.options.clip[0].clip.policy = policy;
      request.buffer = h_.allocate(rank);
      request.last_done = rank == 0 ? last_done : of_rank_1;
      h_.engine.declare(h_.sessions.at(rank), std::move(request), [this, rank](const Result<DeclareResult>& result) {
        ASSERT_TRUE(result) << result.error().message;
        h_.keys[rank] = {result->epoch, result->attempt};
      });
    }
    h_.pump();
  }

  StepReport step(double norm) {
    h_.lane.raw_norms = {norm};
    const auto a = h_.finish(0, ++number_);
    const auto b = h_.finish(1, number_);
    h_.pump();
    EXPECT_TRUE(a->report && b->report);
    return a->report.value_or(StepReport{});
  }

  [[nodiscard]] const std::vector<Event>& events() const { return h_.events; }

  [[nodiscard]] static StepKey key_of(const StepReport& report) { return {report.epoch, report.attempt}; }

  plan::PercentilePolicy policy{50, 4, 2};

 private:
  Harness h_;
  std::int64_t number_ = 0;
};

class Recalled : public testing::Test {
 protected:
  /// A daemon that did steps of norm 1, 3 and 5, and died.
  void SetUp() override {
    Daemon daemon(folder.path());
    daemon.start();
    daemon.step(1);
    before_last = Daemon::key_of(daemon.step(3));
    const StepReport report = daemon.step(5);
    last = Daemon::key_of(report);
    digest = report.policy_digest;
  }

  StateFolder folder;
  StepKey before_last;
  StepKey last;
  std::string digest;
};

TEST_F(Recalled, by_the_step_that_was_done_last) {
  Daemon next(folder.path(), 1000);
  next.start(last, last);
  const StepReport report = next.step(4);
  EXPECT_EQ(report.threshold, 3) << "of 1, 3 and 5";
  EXPECT_THAT(next.events(), Not(Contains(Field(&Event::kind, "policy_state"))));
}

TEST_F(Recalled, by_the_step_before_where_nobody_knows_of_the_last) {
  Daemon next(folder.path(), 1000);
  next.start(before_last, before_last);
  EXPECT_EQ(next.step(5).policy_digest, digest) << "the step is made again, and remembered once";
}

TEST_F(Recalled, for_ranks_of_which_one_was_replaced) {
  Daemon next(folder.path(), 1000);
  next.start(last);
  EXPECT_EQ(next.step(4).threshold, 3);
}

TEST_F(Recalled, and_again_from_the_daemon_after) {
  StepKey done;
  {
    Daemon next(folder.path(), 1000);
    next.start(last, last);
    done = Daemon::key_of(next.step(4));
  }
  Daemon third(folder.path(), 2000);
  third.start(done, done);
  EXPECT_EQ(third.step(4).threshold, 3.5) << "of 1, 3, 5 and 4";
}

TEST_F(Recalled, not_where_the_state_is_another_steps) {
  Daemon next(folder.path(), 1000);
  next.start(StepKey{7, 7}, StepKey{7, 7});
  EXPECT_EQ(next.step(4).threshold, kInfinity);
  EXPECT_THAT(next.events(), Contains(Field(&Event::kind, "policy_state")));
}

TEST_F(Recalled, not_where_ranks_know_different_steps) {
  Daemon next(folder.path(), 1000);
  next.start(last, before_last);
  EXPECT_EQ(next.step(4).threshold, kInfinity);
  EXPECT_THAT(
      next.events(),
      Contains(testing::AllOf(
          Field(&Event::kind, "policy_state"),
          Field(&Event::what, testing::HasSubstr("epoch 1, attempt 2 to rank 0 and epoch 1, attempt 1 to rank 1"))
      ))
  );
}

TEST_F(Recalled, not_by_a_new_job_of_the_same_name_and_for_good) {
  {
    Daemon next(folder.path(), 1000);
    next.start();
    EXPECT_EQ(next.step(4).threshold, kInfinity);
    EXPECT_THAT(next.events(), Not(Contains(Field(&Event::kind, "policy_state"))));
  }
  Daemon third(folder.path(), 2000);
  third.start(last, last);
  EXPECT_EQ(third.step(4).threshold, kInfinity);
}

TEST_F(Recalled, by_trainers_that_restarted_in_the_same_daemon) {
  Daemon daemon(folder.path(), 1000);
  daemon.start(last, last);
  daemon.step(4);
  daemon.start({}, {}, 1);  // supersedes: another job of the same name
  EXPECT_THAT(daemon.events(), Contains(Field(&Event::kind, "policy_state"))) << "it may be newer than a checkpoint";
  EXPECT_EQ(daemon.step(2).threshold, 3.5);
}

TEST_F(Recalled, not_with_other_settings_by_trainers_that_restarted) {
  Daemon next(folder.path(), 1000);
  next.policy.percentile = 60;
  next.start({}, {}, 1);
  EXPECT_THAT(next.events(), Contains(Field(&Event::what, HasSubstr("policies begin anew"))));
  EXPECT_THAT(next.events(), Not(Contains(Field(&Event::what, HasSubstr("go on"))))) << "which contradicts it";
  EXPECT_EQ(next.step(4).threshold, kInfinity);
}

TEST_F(Recalled, not_where_the_directory_cannot_be_had) {
  Daemon next(folder.path() + "/missing/too", 1000);
  next.start(last, last);
  EXPECT_EQ(next.step(4).threshold, kInfinity);
  EXPECT_THAT(next.events(), Contains(Field(&Event::kind, "policy_state")));
}

}  // namespace
}  // namespace gradsync::engine
