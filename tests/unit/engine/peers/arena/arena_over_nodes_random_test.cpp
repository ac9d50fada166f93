// Steps of data path arena over nodes in random orders, with ranks that are lost, late, paused or at odds, lanes and
// messages that are slow, links and connections that end or are not made. Every attempt has one verdict on all ranks;
// what is done has the sums of every rank, to the bit, with what each gave in that attempt; every call is answered; and
// when the faults stop, steps go on.

#include "unit/engine/peers/arena/arena_world.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace gradsync::engine {
namespace {

class RandomArena {
 public:
  explicit RandomArena(std::uint64_t seed)
      : random_(seed),
        nodes_(2 + below(3)),
        world_(static_cast<std::int64_t>(nodes_), static_cast<std::int64_t>(1 + below(2))),
        all_(nodes_, world_.world() / static_cast<std::int64_t>(nodes_), small_buckets()),
        members_(static_cast<std::size_t>(world_.world())) {}

  void disturb() {
    const std::size_t node = below(nodes_);
    const auto rank = static_cast<std::int64_t>(below(members_.size()));
    switch (below(18)) {
      case 0:
        all_.hold_lane(node, below(2) == 0);
        break;
      case 1:
        all_.hold_messages(node, below(2) == 0);
        break;
      case 2:
        if (node != 0 && all_.linked(node) && below(4) == 0) {
          all_.cut(node);
        }
        break;
      case 3:
        if (below(6) == 0) {
          lose(rank);
        }
        break;
      case 4:
        pause(rank, below(2) == 0);
        break;
      case 5:
        all_.pass(Milliseconds(500));
        break;
      case 6:
        all_.hold_data(node, below(2) == 0);
        break;
      case 7:
        if (below(4) == 0) {
          const auto number = static_cast<plan::TransferNode>(node);
          all_.network().cut(number, static_cast<plan::TransferNode>((node + 1 + below(nodes_ - 1)) % nodes_));
        }
        break;
      case 8:
        if (below(6) == 0) {
          lane(node).fail_next();
        }
        break;
      case 9:
        if (below(8) == 0) {
          all_.fail_data(node);
        }
        break;
      default:
        for (std::size_t i = 0; i < 8; ++i) {
          all_.work_on(below(nodes_));
        }
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (below(3) == 0) {
        behave(static_cast<std::int64_t>(i), below(25) == 0);
      }
    }
  }

  /// Without new faults, until every rank has taken three steps more.
  void go_on() {
    for (std::size_t node = 0; node < nodes_; ++node) {
      all_.hold_lane(node, false);
      all_.hold_messages(node, false);
      all_.hold_data(node, false);
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

  /// Ranks whose memory was compared with what an attempt had to give.
  [[nodiscard]] std::size_t compared() const { return compared_; }

 private:
  struct Asked {
    std::shared_ptr<LinkedEngines::Call> call;
    StepKey key;
  };

  struct Member {
    Asked asked = {};
    bool lost = false;
    bool paused = false;
    bool declares = false;     ///< a declaration waits
    bool redeclares = false;   ///< the engine says that it has to
    std::uint64_t filled = 0;  ///< the attempt for which its gradients are written
    int done = 0;
    std::string last = {};  ///< why its last call failed
  };

  struct Verdicts {
    std::set<std::uint64_t> norms;  ///< their bits
    std::set<std::string> failed;
  };

  std::uint64_t below(std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most - 1)(random_); }

  [[nodiscard]] Member& member(std::int64_t rank) { return members_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] NodeLane& lane(std::size_t node) { return all_.lane(node); }

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

  /// What a trainer does next: it comes again, declares, or takes a step, of which it may have another number.
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
        all_.declare(rank, world_.declaration(rank, 1e9));
      }
      return;
    }
    own.declares = false;
    fill(rank);
    if (below(3) == 0) {
      return;  // buckets that are ready travel meanwhile
    }
    FinishRequest request;
    request.timeout = Milliseconds(5'000);
    own.asked.key = all_.key(rank);
    const auto step = static_cast<std::int64_t>(done());  // trainers agree on it
    own.asked.call = all_.finish(rank, wrong ? step + 1 : step, request);
    all_asked_.push_back(own.asked);
    hear();
  }

  /// Writes the gradients of the attempt that the rank is at, once.
  void fill(std::int64_t rank) {
    const std::uint64_t word = attempt_word(all_.key(rank));
    if (member(rank).filled == word) {
      return;
    }
    member(rank).filled = word;
    Contribution& given = given_[word][rank];
    given = {static_cast<std::int64_t>(below(1000)), {}};
    for (const ArenaWorld::Tensor& tensor : world_.tensors()) {
      if (below(4) == 0) {
        given.unused.insert(tensor.name);
      }
    }
    world_.write(all_, rank, given.seed);
    all_.tensors_unused(rank, world_.rows_unused(rank, given.unused));
    const plan::Plan& plan = all_.plan_of(rank);
    for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      if (below(2) == 0 && !plan.layout(rank).bucket_rows[bucket].empty()) {
        all_.bucket_ready(rank, bucket);
      }
    }
  }

  /// What calls were told since the last time.
  void hear() {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Member& own = members_[i];
      if (!own.asked.call || own.asked.call->calls == 0) {
        continue;
      }
      note(own.asked);
      if (own.asked.call->report) {
        ++own.done;
        compare(static_cast<std::int64_t>(i), own.asked);
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

  /// Its call is answered, and it has not touched its memory since.
  void compare(std::int64_t rank, const Asked& asked) {
    const ArenaWorld::Given& given = given_.at(attempt_word(asked.key));
    ASSERT_EQ(given.size(), members_.size()) << "an attempt is done that not every rank gave something in";
    EXPECT_EQ(world_.difference(all_, rank, given), "")
        << "attempt " << asked.key.attempt << " of epoch " << asked.key.epoch;
    EXPECT_EQ(asked.call->report->norm, static_cast<double>(static_cast<float>(world_.norm_of(given))));
    ++compared_;
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
  ArenaWorld world_;
  LinkedEngines all_;
  std::vector<Member> members_;
  std::vector<Asked> all_asked_;
  std::vector<Asked> left_;                           ///< those of processes that are gone
  std::map<std::uint64_t, ArenaWorld::Given> given_;  ///< by word
  std::map<std::uint64_t, Verdicts> verdicts_;
  std::size_t compared_ = 0;
};

TEST(ArenaOverNodesRandom, have_one_verdict_and_the_sums_of_every_rank_and_go_on_when_the_faults_stop) {
  std::size_t done = 0;
  std::size_t failed = 0;
  std::size_t compared = 0;
  for (std::uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomArena world(seed);
    for (int i = 0; i < 150; ++i) {
      world.disturb();
    }
    world.go_on();
    world.check();
    done += world.done();
    failed += world.failed();
    compared += world.compared();
  }
  EXPECT_GT(done, 500u);
  EXPECT_GT(compared, 2 * done);
  EXPECT_GT(failed, 200u);
}

}  // namespace
}  // namespace gradsync::engine
