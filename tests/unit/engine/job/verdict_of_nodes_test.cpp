// A job whose attempts other nodes vote on too: what is stored before the vote and after the verdict, and what a rank
// hears that comes back in doubt. The other nodes are a script.

#include "engine/peers/alone_peers.hpp"
#include "unit/engine/harness.hpp"
#include "unit/engine/policies/state_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstring>

namespace gradsync::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

/// What it says of epochs, and what it decides by, is what one node says alone; verdicts come from the test.
class ScriptedPeers final : public Peers {
 public:
  explicit ScriptedPeers(std::vector<LocalsChanged>& changed, std::vector<std::uint64_t>& votes)
      : changed_(changed), votes_(votes) {}

  [[nodiscard]] PeerEvents tell(LocalEvent event) override {
    if (auto* changed = std::get_if<LocalsChanged>(&event)) {
      changed_.push_back(*changed);
      changed->words = {};
    }
    if (const auto* asked = std::get_if<LocalsAsked>(&event)) {
      PeerDecision decision{asked->ask.word, std::nullopt, {}};
      if (!asked->ask.sites.empty()) {
        decision.cells = asked->ask.sites.front().cells;
      }
      PeerEvents events;
      events.emplace_back(SumsKnown{std::move(decision)});
      return events;
    }
    return alone_.tell(std::move(event));
  }

  [[nodiscard]] bool vote(const Voted& voted) override {
    votes_.push_back(voted.word);
    return false;
  }

  [[nodiscard]] bool alone() const override { return false; }

  [[nodiscard]] std::string waits_for() const override { return {}; }

 private:
  AlonePeers alone_;
  std::vector<LocalsChanged>& changed_;
  std::vector<std::uint64_t>& votes_;
};

std::string words_of(const StepReport& report, std::size_t) { return "step " + std::to_string(report.step); }

/// A daemon with two ranks of a job that has other nodes.
class Node {
 public:
  explicit Node(const std::string& folder, std::uint64_t first_epoch = 1) : h(options(folder, first_epoch)) {}

  EngineOptions options(const std::string& folder, std::uint64_t first_epoch) {
    EngineOptions options;
    options.policy_directory = folder;
    options.first_epoch = first_epoch;
    options.encode_report = words_of;
    options.make_peers = [this](JobNumber number, const AttachRequest&) {
      job = number;
      return std::make_unique<ScriptedPeers>(changed, votes);
    };
    return options;
  }

  /// Two ranks declare; with a doubt, they come back to this daemon.
  void start(std::optional<StepKey> doubt = {}, std::optional<StepKey> last_done = {}) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      h.attach(rank, 2);
    }
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      declare(rank, doubt, last_done);
    }
  }

  void declare(std::int64_t rank, std::optional<StepKey> doubt = {}, std::optional<StepKey> last_done = {}) {
    DeclareRequest request;
    request.declaration = Harness::declaration({Harness::tensor("a")});
    request.declaration.options.clip[0].clip.max_norm.reset();
    request.declaration.options.clip[0].clip.policy = plan::PercentilePolicy{50, 4, 2};
    request.buffer = h.allocate(rank);
    request.comes_back = doubt.has_value();
    request.doubt = doubt;
    request.last_done = last_done;
    h.engine.declare(h.sessions.at(rank), std::move(request), [this, rank](const Result<DeclareResult>& result) {
      answers[rank] = result;
      if (result) {
        h.keys[rank] = {result->epoch, result->attempt};
      }
    });
  }

  void map_record() {
    const RecordGrant& grant = *(*answers.at(0))->record;
    Result<TakenFd> taken = h.engine.exchange_fd(grant.token, 1000, 100, UniqueFd{});
    ASSERT_TRUE(taken);
    void* memory = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, taken->fd.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    record = static_cast<const std::byte*>(memory);
  }

  [[nodiscard]] std::uint64_t word_at(std::size_t offset) const {
    std::uint64_t word = 0;
    std::memcpy(&word, record + offset, sizeof word);
    return word;
  }

  [[nodiscard]] std::uint64_t done() const { return word_at(24); }

  [[nodiscard]] std::uint64_t voted() const { return word_at(32); }

  [[nodiscard]] std::size_t text_bytes() const { return word_at(4096); }

  void tell(PeerEvent event) {
    PeerEvents events;
    events.push_back(std::move(event));
    h.engine.on_peer_events(job, std::move(events));
  }

  /// A step that all nodes vote for.
  StepReport step_of_norm(double norm) {
    h.lane.raw_norms = {norm};
    const auto a = h.finish(0, ++number_);
    const auto b = h.finish(1, number_);
    h.pump();
    tell(VerdictReached{votes.back(), Verdict::Done});
    EXPECT_TRUE(a->report && b->report);
    return a->report.value_or(StepReport{});
  }

  std::vector<LocalsChanged> changed;
  std::vector<std::uint64_t> votes;
  JobNumber job = 0;
  const std::byte* record = nullptr;
  Harness h;
  std::map<std::int64_t, std::optional<Result<DeclareResult>>> answers;  ///< plans in them count for the engine

 private:
  std::int64_t number_ = 0;
};

struct Folder {
  StateFolder folder;
};

class VerdictOfNodes : public testing::Test, protected Folder, protected Node {
 protected:
  VerdictOfNodes() : Node(folder.path()) {}
};

TEST_F(VerdictOfNodes, a_step_is_voted_for_and_answered_by_the_verdict) {
  start();
  h.pump();
  map_record();
  const auto a = h.finish(0, 7);
  const auto b = h.finish(1, 7);
  h.pump();
  const std::uint64_t word = attempt_word({1, 0});
  EXPECT_THAT(votes, ElementsAre(word));
  EXPECT_EQ(voted(), word);
  EXPECT_EQ(text_bytes(), std::strlen("step 7")) << "kept before the vote";
  EXPECT_EQ(done(), 0u);
  EXPECT_EQ(a->calls + b->calls, 0);

  tell(VerdictReached{word - 1, Verdict::Done});
  EXPECT_EQ(a->calls, 0) << "that is another attempt";
  tell(VerdictReached{word, Verdict::Done});
  EXPECT_EQ(done(), word);
  EXPECT_TRUE(a->report && b->report);

  tell(VerdictReached{word, Verdict::Done});
  EXPECT_EQ(a->calls, 1) << "a verdict that comes again is no second answer";
}

TEST_F(VerdictOfNodes, a_step_that_fails_elsewhere_is_failed_and_forgotten_here) {
  start();
  h.pump();
  map_record();
  h.lane.raw_norms = {100};
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.pump();
  tell(VerdictReached{votes.front(), Verdict::Failed, make_error(ErrorCode::StepTimeout, "node 'b' is late", "")});
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->message, "node 'b' is late");
  EXPECT_EQ(done(), 0u);

  step_of_norm(1);
  EXPECT_EQ(voted(), attempt_word({1, 1}));
  step_of_norm(3);
  step_of_norm(5);
  EXPECT_EQ(step_of_norm(4).threshold, 3) << "of 1, 3 and 5: the norm of the failed attempt is not remembered";
}

constexpr StepKey kDoubt{40, 3};

TEST_F(VerdictOfNodes, a_doubt_is_told_before_all_ranks_have_declared_and_ruled_on_once) {
  h.attach(0, 2);
  h.attach(1, 2);
  declare(0, kDoubt);
  ASSERT_THAT(changed, SizeIs(1));
  EXPECT_EQ(changed[0].words.doubt, attempt_word(kDoubt));
  EXPECT_TRUE(changed[0].words.known);
  EXPECT_FALSE(changed[0].declared);

  tell(VerdictReached{attempt_word(kDoubt), Verdict::Failed});
  declare(1, kDoubt);
  for (const LocalsChanged& later : std::span(changed).subspan(1)) {
    EXPECT_EQ(later.words.doubt, 0u) << "it has its verdict";
  }
  h.pump();
  for (const auto& [rank, answer] : answers) {
    ASSERT_TRUE(answer && *answer);
    EXPECT_EQ((*answer)->verdict, Verdict::Failed);
  }
}

TEST(VerdictOfNodesAfter, a_doubt_that_is_done_is_the_last_step_of_the_policies) {
  StateFolder folder;
  StepKey last;
  StepKey doubt;
  {
    Node before(folder.path());
    before.start();
    before.h.pump();
    before.step_of_norm(1);
    const StepReport report = before.step_of_norm(3);
    last = {report.epoch, report.attempt};
    doubt = {report.epoch, report.next_attempt};
    before.h.lane.raw_norms = {5};
    std::ignore = before.h.finish(0, 3);
    std::ignore = before.h.finish(1, 3);
    before.h.pump();
    ASSERT_EQ(before.votes.back(), attempt_word(doubt)) << "it dies behind this vote";
  }
  for (const Verdict verdict : {Verdict::Failed, Verdict::Done}) {
    Node after(folder.path(), 1000);
    after.start(doubt, last);
    after.tell(VerdictReached{attempt_word(doubt), verdict});
    after.h.pump();
    for (const auto& [rank, answer] : after.answers) {
      ASSERT_TRUE(answer && *answer);
      EXPECT_EQ((*answer)->verdict, verdict);
    }
    if (verdict == Verdict::Done) {
      EXPECT_EQ(after.step_of_norm(4).threshold, 3) << "of 1, 3 and 5";
    }
  }
}

TEST_F(VerdictOfNodes, a_doubt_that_nobody_can_settle_is_said_to_every_rank_and_the_job_goes_on_without_it) {
  start(kDoubt);
  tell(VerdictReached{attempt_word(kDoubt), Verdict::Unknown, make_error(ErrorCode::StepInDoubt, "nobody can say", "")}
  );
  for (const auto& [rank, answer] : answers) {
    ASSERT_TRUE(answer && !*answer);
    EXPECT_EQ(answer->error().code, ErrorCode::StepInDoubt);
  }
  answers.clear();
  declare(0, kDoubt);
  ASSERT_TRUE(answers[0] && !*answers[0]) << "also to one that asks later";
  EXPECT_EQ(answers[0]->error().code, ErrorCode::StepInDoubt);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    declare(rank);
  }
  h.pump();
  EXPECT_TRUE(*answers[0] && *answers[1]);
}

TEST(VerdictAlone, a_doubt_on_one_node_is_what_its_record_says) {
  Harness h;
  const auto ask = [&](std::optional<StepKey> last_done) {
    std::optional<Verdict> verdict;
    h.attach(0, 1);
    DeclareRequest request;
    request.declaration = Harness::declaration({Harness::tensor("a")});
    request.buffer = h.allocate(0);
    request.doubt = kDoubt;
    request.last_done = last_done;
    h.engine.declare(h.sessions.at(0), std::move(request), [&](const Result<DeclareResult>& result) {
      ASSERT_TRUE(result);
      verdict = result->verdict;
    });
    h.pump();
    EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
    return verdict;
  };
  EXPECT_EQ(ask(kDoubt), Verdict::Done);
  EXPECT_EQ(ask(StepKey{40, 2}), Verdict::Failed);
  EXPECT_EQ(ask({}), Verdict::Failed) << "one node stores done before anybody is answered";
}

}  // namespace
}  // namespace gradsync::engine
