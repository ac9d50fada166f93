// Steps over nodes in random orders, with ranks that are lost, late, paused or wrong, lanes and messages that are slow,
// and links that end. Every attempt has one verdict on all ranks, with one norm; every call is answered; and when the
// faults stop, steps go on.

#include "unit/engine/peers/steps/linked_engines.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <set>

namespace gradsync::engine {
namespace {

plan::RankDeclaration declaration_of(std::int64_t world) {
  plan::RankDeclaration all;
  all.options.data_path = plan::DataPath::Stats;
  all.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
  plan::TensorDeclaration w;
  w.name = "w";
  w.shape = {2 * world};
  w.local_shape = {2};
  w.mesh = "default";
  w.placements = {{{"dp"}, plan::Shard{0}}};
  plan::TensorDeclaration b = w;
  b.name = "b";
  b.shape = b.local_shape = {2};
  b.placements = {{{"dp"}, plan::Replicate{}}};
  all.tensors = std::vector<plan::TensorDeclaration>{w, b};
  return all;
}

class RandomSteps {
 public:
  explicit RandomSteps(std::uint64_t seed)
      : random_(seed), nodes_(2 + below(2)), all_(nodes_, 2), members_(static_cast<std::size_t>(all_.world())) {}

  void disturb() {
    const std::size_t node = below(nodes_);
    const auto rank = static_cast<std::int64_t>(below(members_.size()));
    switch (below(14)) {
      case 0:
        all_.hold_lane(node, below(2) == 0);
        break;
      case 1:
        all_.hold_messages(node, below(2) == 0);
        break;
      case 2:
        if (node != 0 && all_.linked(node) && below(3) == 0) {
          all_.cut(node);
        }
        break;
      case 3:
        if (below(4) == 0) {
          lose(rank);
        }
        break;
      case 4:
        pause(rank, below(2) == 0);
        break;
      case 5:
        all_.pass(Milliseconds(500));
        break;
      default:
        for (std::size_t i = 0; i < 6; ++i) {
          all_.work_on(below(nodes_));
        }
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (below(3) == 0) {
        behave(static_cast<std::int64_t>(i), below(12) == 0);
      }
    }
  }

  /// Without new faults, until every rank has taken three steps more.
  void go_on() {
    for (std::size_t node = 0; node < nodes_; ++node) {
      all_.hold_lane(node, false);
      all_.hold_messages(node, false);
    }
    hear();
    std::vector<int> wanted;
    for (const Member& member : members_) {
      wanted.push_back(member.done + 3);
    }
    for (int round = 0; round < 400 && !over(wanted); ++round) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        pause(static_cast<std::int64_t>(i), false);
        behave(static_cast<std::int64_t>(i), false);
      }
      all_.pump();
      all_.pass(Milliseconds(500));
    }
    EXPECT_TRUE(over(wanted)) << "steps do not go on: " << state();
    all_.pass(Milliseconds(10'000));  // the time of every call is over then
    hear();
    for (const Asked& asked : all_asked_) {
      EXPECT_EQ(asked.call->calls, 1) << "answers to a call for attempt " << asked.key.attempt << " of epoch "
                                      << asked.key.epoch;
    }
  }

  void check() const {
    for (const auto& [word, verdicts] : verdicts_) {
      EXPECT_TRUE(verdicts.norms.empty() || verdicts.failed.empty())
          << "attempt " << (word & 0xFFFFFFFFu) - 1 << " of epoch " << (word >> 32)
          << " is done and failed: " << (verdicts.failed.empty() ? "" : *verdicts.failed.begin());
      EXPECT_LE(verdicts.norms.size(), 1u) << "ranks have different norms";
    }
  }

  [[nodiscard]] std::size_t done() const {
    return static_cast<std::size_t>(std::ranges::count_if(verdicts_, [](const auto& entry) {
      return !entry.second.norms.empty();
    }));
  }

  [[nodiscard]] std::size_t failed() const { return verdicts_.size() - done(); }

 private:
  struct Asked {
    std::shared_ptr<LinkedEngines::Call> call;
    StepKey key;
  };

  struct Member {
    Asked asked = {};
    bool lost = false;
    bool paused = false;
    bool declares = false;    ///< a declaration waits
    bool redeclares = false;  ///< the engine says that it has to
    int done = 0;
    std::string last = {};  ///< why its last call failed
  };

  struct Verdicts {
    std::set<std::uint64_t> norms;  ///< their bits
    std::set<std::string> failed;
  };

  std::uint64_t below(std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most - 1)(random_); }

  [[nodiscard]] Member& member(std::int64_t rank) { return members_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] bool over(const std::vector<int>& wanted) const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].done < wanted[i]) {
        return false;
      }
    }
    return true;
  }

  void lose(std::int64_t rank) {
    if (!member(rank).lost) {
      all_.lose(rank);
      hear();
      if (member(rank).asked.call) {
        left_.push_back(member(rank).asked);  // what it was told it cannot say any more
      }
      const int done = member(rank).done;
      member(rank) = Member{};
      member(rank).lost = true;
      member(rank).done = done;
    }
  }

  void pause(std::int64_t rank, bool paused) {
    if (!member(rank).lost && member(rank).paused != paused) {
      member(rank).paused = paused;
      all_.pause(rank, paused);
    }
  }

  /// What a trainer does next: it comes again, declares, or takes a step, for which its row may be wrong.
  void behave(std::int64_t rank, bool wrong) {
    Member& own = member(rank);
    hear();
    if (own.lost) {
      all_.attach(rank);
      own.lost = false;
    }
    if (own.asked.call || own.paused) {
      return;
    }
    if (!all_.declared(rank) || own.redeclares) {
      if (!own.declares || all_.refusal(rank)) {
        own.declares = true;
        own.redeclares = false;
        all_.declare(rank, declaration_of(all_.world()));
      }
      return;
    }
    own.declares = false;
    device::StatsRow row;
    row.maximum = static_cast<double>(rank + 1);
    row.power_sum = 2 * row.maximum * row.maximum;
    row.maximum = wrong ? -2 : row.maximum;
    all_.write(rank, 0, row);
    row.power_sum = 2;
    row.maximum = 1;
    all_.write(rank, 1, row);
    FinishRequest request;
    request.timeout = Milliseconds(5'000);
    own.asked.key = all_.key(rank);
    own.asked.call = all_.finish(rank, static_cast<std::int64_t>(done()), request);  // trainers agree on the step
    all_asked_.push_back(own.asked);
    hear();
  }

  /// What calls were told since the last time.
  void hear() {
    for (Member& own : members_) {
      if (!own.asked.call || own.asked.call->calls == 0) {
        continue;
      }
      note(own.asked);
      if (own.asked.call->report) {
        ++own.done;
      } else {
        own.last = own.asked.call->error->message;
        own.redeclares = own.asked.call->error->hint.find("declare") != std::string::npos;
      }
      own.asked.call.reset();
    }
    for (const Asked& left : left_) {
      if (left.call->calls != 0) {
        note(left);
      }
    }
  }

  void note(const Asked& asked) {
    const std::uint64_t word = attempt_word(asked.key);
    if (asked.call->report) {
      verdicts_[word].norms.insert(std::bit_cast<std::uint64_t>(asked.call->report->norm));
    } else if (asked.call->begun) {  // else it is of no attempt
      note_failure(word, *asked.call->error);
    }
  }

  void note_failure(std::uint64_t word, const Error& error) {
    const bool before = error.code == ErrorCode::StaleAttempt || error.code == ErrorCode::StaleEpoch ||
                        error.code == ErrorCode::NotDeclared ||  // nothing was asked
                        (error.epoch && attempt_word({*error.epoch, *error.attempt}) == word);
    if (!before && error.code != ErrorCode::StepInDoubt) {
      verdicts_[word].failed.insert(error.message);
    }
  }

  [[nodiscard]] std::string state() const {
    std::string text;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const Member& own = members_[i];
      const auto key = all_.key(static_cast<std::int64_t>(i));
      text += fmt::format(
          "rank {}{}{}: {} done, at ({}, {}), heard '{}'; ",
          i,
          own.asked.call ? " waits" : "",
          own.declares ? " declares" : "",
          own.done,
          key.epoch,
          key.attempt,
          own.last
      );
    }
    return text;
  }

  std::mt19937_64 random_;
  std::size_t nodes_;
  LinkedEngines all_;
  std::vector<Member> members_;
  std::vector<Asked> all_asked_;
  std::vector<Asked> left_;  ///< those of processes that are gone
  std::map<std::uint64_t, Verdicts> verdicts_;
};

TEST(StepsOverNodesRandom, have_one_verdict_for_each_attempt_and_go_on_when_the_faults_stop) {
  std::size_t done = 0;
  std::size_t failed = 0;
  for (std::uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomSteps world(seed);
    for (int i = 0; i < 150; ++i) {
      world.disturb();
    }
    world.go_on();
    world.check();
    done += world.done();
    failed += world.failed();
  }
  EXPECT_GT(done, 500u);
  EXPECT_GT(failed, 200u);
}

}  // namespace
}  // namespace gradsync::engine
