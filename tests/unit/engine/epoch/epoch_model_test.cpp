// Random events drive the epoch machine beside a plain model, which has no actions, tickets or seats: after every event
// both must have answered the same declare and step calls in the same way, must have told other nodes the same, and
// must agree on epoch, state, next deadline and on what each rank has yet to hear. Half of the jobs are over nodes,
// whose others answer late, end epochs and refuse them; the other half has a port that answers at once.

#include "engine/epoch/epoch_machine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

using State = EpochMachine::State;
using Answers = std::vector<std::pair<std::int64_t, std::optional<ErrorCode>>>;

constexpr std::int64_t kDeclareMs = 7000;
constexpr std::int64_t kReconnectMs = 2000;
constexpr std::int64_t kSuccessorMs = 10'000;

/// What a rank declares: `Bad` is refused by its own check; one `Other` makes another plan.
enum class Content { Bad, One, Other };

/// Why an epoch does not form: the code, and the rank whose declaration it is about, or -1.
using Refusal = std::pair<ErrorCode, std::int64_t>;

struct PlainRank {
  bool taken = false, paused = false, stepping = false;
  bool waiting = false, valid = false, fresh = false, committed = false, weights = false;
  std::int64_t since = 0, deadline = 0;
  std::optional<std::int64_t> lost, back_by;
  std::optional<ErrorCode> refused;  ///< its last declaration, with this
  std::optional<Refusal> unheard;    ///< what its step call has yet to be told
};

/// What other nodes are told.
enum class Told { Declared, TakenBack, Left, Ready };  // TakenBack: also which ranks are here, when one has gone

/// Times are in ms. Where the machine has to fail an attempt, the test says when that is over: `quiet`.
struct Model {
  std::vector<PlainRank> ranks;
  bool nodes = false;
  State state = State::Forming;
  std::uint64_t epoch = 5;
  std::int64_t now = 0;
  std::int64_t steps = 0;
  bool redeclare = false, halted = false, told = false;
  std::optional<std::uint64_t> prepared = {};
  std::vector<Told> tells = {};
  std::optional<Content> plan = {}, loading = {};
  Answers answers = {}, step_answers = {};

  [[nodiscard]] bool lacks(const PlainRank& rank) const { return !rank.valid || (redeclare && !rank.fresh); }

  template <typename Rule>
  [[nodiscard]] bool any(Rule rule) const {
    return std::any_of(ranks.begin(), ranks.end(), rule);
  }

  [[nodiscard]] bool stands_still() const {
    return any([](const PlainRank& rank) { return rank.waiting; }) &&
           any([this](const PlainRank& rank) { return rank.paused && !rank.waiting && lacks(rank); });
  }

  [[nodiscard]] std::optional<std::int64_t> successor_by(const PlainRank& rank) const {
    std::optional<std::int64_t> first;
    for (const PlainRank& other : ranks) {
      if (other.waiting) {
        first = std::min(first.value_or(other.since), other.since);
      }
    }
    return rank.lost && first ? std::optional(std::max(*rank.lost, *first) + kSuccessorMs) : std::nullopt;
  }

  [[nodiscard]] std::optional<std::int64_t> next_deadline() const {
    std::optional<std::int64_t> next;
    const auto lower = [&next](std::optional<std::int64_t> other) {
      next = other ? std::min(next.value_or(*other), *other) : next;
    };
    for (const PlainRank& rank : ranks) {
      lower(rank.back_by);
      lower(successor_by(rank));
      if (rank.waiting && !stands_still()) {
        lower(rank.deadline);
      }
    }
    return next;
  }

  [[nodiscard]] bool forms() const {
    return state != State::Forming && state != State::Committed && state != State::Ending;
  }

  [[nodiscard]] bool any_lacks() const {
    return any([this](const PlainRank& rank) { return lacks(rank); });
  }

  void interrupt() { state = forms() ? State::Forming : state; }

  void take_back(Told how) {
    if (told) {
      tells.push_back(how);
    }
    told = false;
    prepared.reset();
  }

  void answer(std::size_t rank, std::optional<ErrorCode> code) {
    if (ranks[rank].waiting) {
      answers.emplace_back(static_cast<std::int64_t>(rank), code);
    }
    ranks[rank].waiting = false;
  }

  void refuse(std::size_t rank, ErrorCode code) {
    answer(rank, code);
    ranks[rank].valid = ranks[rank].fresh = ranks[rank].committed = ranks[rank].weights = false;
  }

  void refuse_fresh(ErrorCode code) {
    const bool formed = forms();
    interrupt();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].fresh) {
        refuse(rank, code);
      }
    }
    if (formed) {
      take_back(Told::Left);
    }
  }

  void fail_step_calls(Refusal why) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].stepping) {
        step_answers.emplace_back(static_cast<std::int64_t>(rank), why.first);
        ranks[rank].stepping = false;
        ranks[rank].unheard = ranks[rank].unheard == why ? std::nullopt : ranks[rank].unheard;
      }
    }
  }

  void tell_waiting(Refusal refusal) {
    refuse_fresh(refusal.first);
    take_back(Told::Left);
    redeclare = redeclare || !any_lacks();
    for (PlainRank& rank : ranks) {
      if (rank.committed) {
        rank.unheard = refusal;
      }
    }
    if (state == State::Forming && any([](const PlainRank& rank) { return rank.committed; })) {
      fail_step_calls(refusal);
    }
  }

  [[nodiscard]] std::optional<ErrorCode> refused_besides(std::size_t number) const {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank != number && ranks[rank].refused && lacks(ranks[rank])) {
        return ranks[rank].refused;
      }
    }
    return std::nullopt;
  }

  void forget_unheard(std::size_t number) {
    if (!refused_besides(number)) {
      for (PlainRank& rank : ranks) {
        rank.unheard.reset();
      }
    }
  }

  void join(std::size_t number) {
    ranks[number].lost.reset();
    ranks[number].taken = true;
    forget_unheard(number);
  }

  void settle() {
    if (state != State::Forming || halted || any_lacks()) {
      return;
    }
    state = State::Gathering;
    if (!told) {
      told = true;
      tells.push_back(Told::Declared);
      if (!nodes) {
        prepare(0);
      }
    } else if (prepared) {
      prepare(*prepared);
    }
  }

  void prepare(std::uint64_t number) {
    if (state == State::Gathering) {
      prepared.reset();
      if (number > epoch) {
        epoch = number;
        if (plan) {
          fail_step_calls({ErrorCode::StaleEpoch, -1});
        }
      }
      state = State::Planning;
    } else if (state == State::Ending && told) {
      prepared = number;
    }
  }

  void ended() {
    prepared.reset();
    if (told && state == State::Committed) {
      state = State::Ending;
    } else if (told && state != State::Ending) {
      interrupt();
      settle();
    }
  }

  void refused() {
    prepared.reset();
    told = false;
    if (state == State::Committed) {
      redeclare = true;
      state = State::Ending;
    } else {
      tell_waiting({ErrorCode::JobMismatch, -1});
    }
  }

  void leave(std::size_t number, bool lost) {
    PlainRank before = ranks[number];
    if (!before.taken) {
      return;
    }
    interrupt();
    answer(number, ErrorCode::RankLost);
    ranks[number] = {};
    const bool waited_for = lacks(before) && any([](const PlainRank& rank) { return rank.waiting; });
    if (lost && (!before.committed || waited_for)) {
      ranks[number].lost = now;
    }
    if (before.committed) {
      redeclare = redeclare || (!lost && any([](const PlainRank& rank) { return rank.weights; }));
      state = State::Ending;
    }
    take_back(Told::Left);
    if (nodes) {
      tells.push_back(Told::TakenBack);
    }
  }

  void declare(std::size_t number, bool weights) {
    PlainRank& rank = ranks[number];
    answer(number, ErrorCode::Superseded);
    interrupt();
    if (rank.committed) {
      if (!redeclare && state != State::Ending) {
        take_back(Told::Left);
        state = State::Ending;
      }
      redeclare = true;
    }
    take_back(Told::TakenBack);
    rank.valid = rank.committed = false;
    forget_unheard(number);
    rank.refused.reset();
    rank.fresh = rank.waiting = true;
    rank.weights = weights;
    rank.since = now;
    rank.deadline = now + kDeclareMs;
  }

  void checked(std::size_t number, bool good) {
    const std::optional<ErrorCode> other = refused_besides(number);
    if (!good) {
      refuse(number, ErrorCode::InvalidDeclaration);
      ranks[number].refused = ErrorCode::InvalidDeclaration;
      tell_waiting({ErrorCode::InvalidDeclaration, number});
    } else if (other) {
      refuse(number, *other);
    } else {
      ranks[number].valid = true;
      settle();
    }
  }

  void refused_unchecked(std::size_t number) {
    if (!ranks[number].waiting) {
      ranks[number].refused = ErrorCode::LimitExceeded;
      if (lacks(ranks[number])) {
        tell_waiting({ErrorCode::LimitExceeded, number});
      }
    }
  }

  void step_called(std::size_t number) {
    ranks[number].refused.reset();
    ranks[number].stepping = state != State::Committed;
    if (state == State::Forming && ranks[number].unheard) {
      fail_step_calls(*ranks[number].unheard);
    }
  }

  void superseded() {
    interrupt();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      answer(rank, ErrorCode::JobMismatch);
      ranks[rank] = {};
    }
    take_back(Told::Left);
    state = plan ? State::Ending : state;
  }

  void halt() {
    interrupt();
    halted = true;
  }

  void planned(std::optional<Content> content, std::optional<std::size_t> released) {
    state = State::Forming;
    if (!content || released) {
      if (released && ranks[*released].committed) {
        refuse(*released, ErrorCode::PlanMismatch);
        take_back(Told::Left);
        state = State::Ending;
        refuse_fresh(ErrorCode::PlanMismatch);
      } else {
        tell_waiting({ErrorCode::PlanMismatch, -1});
      }
    } else if (plan && !redeclare && plan != content && any([](const PlainRank& rank) { return rank.committed; })) {
      redeclare = true;
      take_back(Told::Left);
      state = State::Ending;
    } else {
      loading = content;
      state = State::Loading;
    }
  }

  void loaded() {
    state = State::Joining;
    tells.push_back(Told::Ready);
    if (!nodes) {
      begin();
    }
  }

  void begin() {
    if (state != State::Joining) {
      return;
    }
    plan = loading;
    redeclare = false;
    steps = 0;
    state = State::Committed;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank].fresh = false;
      ranks[rank].committed = true;
      ranks[rank].stepping = false;
      answer(rank, std::nullopt);
    }
  }

  void quiet() {
    ++epoch;
    state = State::Forming;
    for (PlainRank& rank : ranks) {
      rank.stepping = false;
    }
    redeclare = redeclare || (steps > 0 && any([](const PlainRank& rank) { return rank.weights; }));
    if (any_lacks()) {
      take_back(Told::TakenBack);
    }
    settle();
  }

  void pass(std::int64_t ms) {
    bool still = stands_still();
    now += ms;
    for (std::size_t number = 0; number < ranks.size(); ++number) {
      PlainRank& rank = ranks[number];
      rank.deadline += still && rank.waiting ? ms : 0;
    }
    for (std::size_t number = 0; number < ranks.size(); ++number) {
      PlainRank& rank = ranks[number];
      if (rank.back_by && *rank.back_by <= now) {
        leave(number, true);
        still = stands_still();
      } else if (rank.waiting && !still && rank.deadline <= now) {
        interrupt();
        refuse(number, ErrorCode::DeclareTimeout);
        take_back(Told::Left);
      }
    }
    for (const PlainRank& rank : ranks) {
      if (const auto due = successor_by(rank); due && *due <= now) {
        refuse_fresh(ErrorCode::RankLost);
      }
    }
  }
};

/// Does what the machine wants, late or at once, and what the model says beside it.
class Twins {
 public:
  explicit Twins(std::uint32_t seed)
      : random_(seed),
        model_{std::vector<PlainRank>(1 + seed / 2 % 4), seed % 2 == 1},
        machine_(
            "job", Roster(world_size() * (model_.nodes ? 2 : 1), world_size()), model_.epoch, deadlines(), tickets_
        ) {}

  void run(int events) {
    for (int event = 0; event < events && !::testing::Test::HasFailure(); ++event) {
      step();
      compare(log_);
    }
  }

 private:
  [[nodiscard]] std::int64_t world_size() const { return static_cast<std::int64_t>(model_.ranks.size()); }

  static EngineDeadlines deadlines() {
    EngineDeadlines deadlines;
    deadlines.reconnect = Milliseconds(kReconnectMs);
    return deadlines;
  }

  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }

  [[nodiscard]] TimePoint now() const { return TimePoint(Milliseconds(model_.now)); }

  void step() {
    if (model_.nodes && below(8) == 0) {
      hear_of_others();
      return;
    }
    const auto rank = static_cast<std::size_t>(below(static_cast<std::int64_t>(model_.ranks.size())));
    const auto number = static_cast<std::int64_t>(rank);
    PlainRank& plain = model_.ranks[rank];
    const std::int64_t kind = below(100);
    log_ = "event " + std::to_string(kind) + " of rank " + std::to_string(rank);
    if (!plain.taken && kind < 60) {
      machine_.on_joined(number, {100 + number, false});
      model_.join(rank);
    } else if (kind < 22 && plain.taken) {
      declare(rank);
    } else if (kind < 62) {
      work();
    } else if (kind < 67) {
      step_call(rank);
    } else if (kind < 70) {
      if (model_.state == State::Committed) {
        ++model_.steps;
        machine_.on_step_done();
      }
    } else if (kind < 76 && plain.taken) {
      const bool lost = below(3) > 0;
      perform(
          machine_.on_left(now(), number, "left", lost ? EpochMachine::Leaving::Lost : EpochMachine::Leaving::ByChoice)
      );
      model_.leave(rank, lost);
    } else if (kind < 80 && plain.taken) {
      if (below(2) == 0) {
        plain.back_by = model_.now + kReconnectMs;
        machine_.on_disconnected(now(), number);
      } else {
        plain.back_by.reset();
        machine_.on_joined(number, {100 + number, true});
      }
    } else if (kind < 86 && plain.taken) {
      plain.paused = below(2) == 0;
      machine_.on_paused(now(), number, plain.paused);
    } else if (kind < 88 && plain.taken) {
      perform(machine_.on_refused_unchecked(now(), number, make_error(ErrorCode::LimitExceeded, "too many")));
      model_.refused_unchecked(rank);
    } else if (kind < 97) {
      model_.pass(below(4) == 0 ? below(12'000) : below(900));
      perform(machine_.on_time(now()));
    } else if (kind == 98) {
      perform(machine_.on_drain(make_error(ErrorCode::Draining, "drains")));
      model_.refuse_fresh(ErrorCode::Draining);
    } else if (kind == 97) {
      rare_event(number);
    }
  }

  void rare_event(std::int64_t rank) {
    const std::int64_t kind = below(8);
    if (kind == 0) {
      perform(machine_.on_halt());
      model_.halt();
    } else if (kind < 3) {
      perform(machine_.on_superseded(make_error(ErrorCode::JobMismatch, "a restart took over")));
      model_.superseded();
    } else if (kind < 5) {
      machine_.on_told(rank, make_error(ErrorCode::StepTimeout, "something else"));
    } else if (model_.state != State::Loading && model_.state != State::Joining) {  // a report of a plan that was
                                                                                    // dropped
      perform(kind < 7 ? machine_.on_lane_loaded() : machine_.on_load_failed(load_failure()));
    }
  }

  /// In time or late; what follows from them has the same words on all nodes.
  void hear_of_others() {
    const std::int64_t kind = below(10);
    log_ = "event " + std::to_string(kind) + " of other nodes";
    if (kind < 4) {
      const std::uint64_t number = model_.epoch + static_cast<std::uint64_t>(below(6) == 0 ? below(3) : 0);
      perform(machine_.on_prepare(number));
      model_.prepare(number);
    } else if (kind < 7) {
      perform(machine_.on_begin());
      model_.begin();
    } else if (kind < 9) {
      perform(machine_.on_ended(now(), make_error(ErrorCode::NodeLost, "a node is gone")));
      model_.ended();
    } else {
      perform(machine_.on_refused(now(), make_error(ErrorCode::JobMismatch, "another world")));
      model_.refused();
    }
  }

  static Error load_failure() { return make_error(ErrorCode::InsufficientMemory, "no memory"); }

  /// As a job does it: what must not come in this state never reaches the machine.
  void step_call(std::size_t rank) {
    const auto number = static_cast<std::int64_t>(rank);
    const bool ending = model_.state == State::Ending;
    if (!model_.ranks[rank].taken || (!model_.ranks[rank].committed && !ending)) {
      return;
    }
    machine_.on_step_called(number);
    if (model_.state != State::Committed) {
      stepping_.insert(number);
      perform(machine_.on_step_waits(number));
    }
    model_.step_called(rank);
  }

  void declare(std::size_t rank) {
    const bool weights = below(3) == 0;
    contents_[rank] = below(9) == 0 ? Content::Bad : below(6) == 0 ? Content::Other : Content::One;
    const auto number = static_cast<std::int64_t>(rank);
    perform(machine_.on_called_again(number));
    perform(machine_.on_declared(now(), number, {Milliseconds(kDeclareMs), weights}));
    model_.declare(rank, weights);
  }

  /// Planner, lane or the end of an attempt gets on, whichever has something to do.
  void work() {
    if (failing_ && below(2) == 0) {
      failing_ = false;
      stepping_.clear();
      perform(machine_.on_attempt_failed(now()));
      model_.quiet();
    } else if (!checks_.empty()) {
      const auto [ticket, asked] = *checks_.begin();
      checks_.erase(checks_.begin());
      if (const auto rank = machine_.rank_checked(ticket)) {
        ASSERT_EQ(*rank, asked);
        const bool good = contents_[static_cast<std::size_t>(asked)] != Content::Bad;
        const auto refusal = make_error(ErrorCode::InvalidDeclaration, "bad");
        perform(machine_.on_checked(now(), asked, good ? std::nullopt : std::optional<Error>(refusal)));
        model_.checked(static_cast<std::size_t>(asked), good);
      }
    } else if (plan_ticket_ && machine_.plans(*plan_ticket_)) {
      plan();
    } else if ((loading_ || model_.state == State::Joining) && below(6) == 0) {
      perform(machine_.on_load_failed(load_failure()));
      model_.tell_waiting({ErrorCode::InsufficientMemory, -1});
    } else if (loading_) {
      loading_ = false;
      loaded_ = true;
      perform(machine_.on_lane_loaded());
      model_.loaded();
    }
  }

  void plan() {
    ASSERT_EQ(model_.state, State::Planning);
    const bool agree = below(6) > 0;
    Content content = Content::One;
    for (const auto& [rank, declared] : contents_) {
      content = declared == Content::Other ? Content::Other : content;
    }
    std::optional<std::size_t> released;
    if (below(8) == 0) {
      released = static_cast<std::size_t>(below(static_cast<std::int64_t>(model_.ranks.size())));
    }
    PlanMade made{content == Content::One ? "one" : "other", std::nullopt, std::nullopt};
    if (!agree || released) {
      made.refusal = make_error(ErrorCode::PlanMismatch, "differs");
      made.refused_for = released;
    }
    perform(machine_.on_planned(now(), made));
    model_.planned(agree ? std::optional(content) : std::nullopt, released);
  }

  void perform(const EpochActions& actions) {
    for (const EpochAction& action : actions) {
      if (const auto* check = std::get_if<CheckDeclaration>(&action)) {
        checks_[check->ticket] = check->rank;
      } else if (const auto* locals = std::get_if<TellLocals>(&action)) {
        tells_.push_back(locals->declared ? Told::Declared : Told::TakenBack);
        if (!model_.nodes && locals->declared) {
          perform(machine_.on_prepare(0));
        }
      } else if (const auto* left = std::get_if<TellLeft>(&action)) {
        tells_.push_back(Told::Left);
        if (!model_.nodes) {
          perform(machine_.on_ended(now(), left->error));
        }
      } else if (std::holds_alternative<TellReady>(action)) {
        tells_.push_back(Told::Ready);
        if (!model_.nodes) {
          perform(machine_.on_begin());
        }
      } else if (const auto* make = std::get_if<MakePlan>(&action)) {
        plan_ticket_ = make->ticket;
      } else if (std::holds_alternative<LoadPlan>(action)) {
        EXPECT_FALSE(loading_ || loaded_) << "one plan at a time";
        loading_ = true;
      } else if (std::holds_alternative<UnloadPlan>(action)) {
        loading_ = loaded_ = false;
      } else if (std::holds_alternative<CommitPlan>(action)) {
        EXPECT_TRUE(loaded_);
        stepping_.clear();
      } else if (const auto* answer = std::get_if<AnswerDeclare>(&action)) {
        answers_.emplace_back(answer->rank, answer->error ? std::optional(answer->error->code) : std::nullopt);
      } else if (const auto* fail = std::get_if<FailAttempt>(&action)) {
        EXPECT_TRUE(!failing_ || fail->error.code == ErrorCode::JobMismatch) << "an attempt fails once";
        failing_ = true;
      } else if (const auto* told = std::get_if<FailStepCalls>(&action)) {
        for (const std::int64_t rank : std::exchange(stepping_, {})) {
          step_answers_.emplace_back(rank, told->error.code);
          machine_.on_told(rank, told->error);
        }
      } else if (const auto* vacate = std::get_if<VacateSeat>(&action)) {
        stepping_.erase(vacate->rank);
      }
    }
  }

  void compare(const std::string& event) {
    std::sort(answers_.begin(), answers_.end());
    std::sort(model_.answers.begin(), model_.answers.end());
    EXPECT_EQ(answers_, model_.answers) << event;
    EXPECT_EQ(step_answers_, model_.step_answers) << event;
    EXPECT_EQ(std::exchange(tells_, {}), std::exchange(model_.tells, {})) << event;
    EXPECT_EQ(machine_.state(), model_.state) << event;
    EXPECT_EQ(machine_.epoch(), model_.epoch) << event;
    EXPECT_EQ(machine_.ending().has_value(), failing_) << event;
    EXPECT_EQ(machine_.halted(), model_.halted) << event;
    EXPECT_EQ(machine_.roster().empty(), !model_.any([](const PlainRank& rank) { return rank.taken; })) << event;
    for (std::size_t rank = 0; rank < model_.ranks.size(); ++rank) {
      const Seat& seat = machine_.seat(static_cast<std::int64_t>(rank));
      EXPECT_EQ(seat.call.has_value(), model_.ranks[rank].waiting) << event;
      EXPECT_EQ(seat.taken, model_.ranks[rank].taken) << event;
      EXPECT_EQ(seat.declaration.committed, model_.ranks[rank].committed) << event;
      EXPECT_EQ(seat.refusal.has_value(), model_.ranks[rank].refused.has_value()) << event;
      EXPECT_EQ(seat.unheard.has_value(), model_.ranks[rank].unheard.has_value()) << event;
    }
    const auto due = model_.next_deadline();
    EXPECT_EQ(machine_.next_deadline(), due ? std::optional(TimePoint(Milliseconds(*due))) : std::nullopt) << event;
    EXPECT_EQ(machine_.state() == State::Loading, loading_) << event;
    for (Answers* answers : {&answers_, &step_answers_, &model_.answers, &model_.step_answers}) {
      answers->clear();
    }
  }

  std::mt19937 random_;
  std::uint64_t tickets_ = 1;
  Model model_;
  EpochMachine machine_;
  std::map<std::size_t, Content> contents_;
  std::map<std::uint64_t, std::int64_t> checks_;  ///< by ticket, the rank
  std::optional<std::uint64_t> plan_ticket_;
  bool loading_ = false, loaded_ = false, failing_ = false;
  std::set<std::int64_t> stepping_;  ///< ranks with a step call that waits
  Answers answers_, step_answers_;
  std::vector<Told> tells_;
  std::string log_;
};

TEST(EpochModel, random_events_are_answered_as_a_plain_model_answers_them) {
  for (std::uint32_t seed = 0; seed < 12'000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Twins(seed).run(60);
  }
}

}  // namespace
}  // namespace gradsync::engine
