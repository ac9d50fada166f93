#include "net/limits/process_turns.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::net {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

const ProcessTurns::Process kBusy{1000, 1};
const ProcessTurns::Process kOther{1000, 2};

/// An io thread that runs what is posted, in order.
struct Turns {
  std::deque<std::function<void()>> posted;
  std::vector<std::string> woken;
  std::shared_ptr<ProcessTurns> turns =
      std::make_shared<ProcessTurns>([this](std::function<void()> later) { posted.push_back(std::move(later)); });

  ProcessTurns* operator->() const { return turns.get(); }

  ProcessTurns::Ticket wait(const ProcessTurns::Process& process, const std::string& name) {
    return turns->wait(process, [this, name] {
      woken.push_back(name);
      return true;
    });
  }

  void run_one() {
    const auto next = std::move(posted.front());
    posted.pop_front();
    next();
  }

  void run() {
    while (!posted.empty()) {
      run_one();
    }
  }
};

TEST(ProcessTurns, a_process_has_its_time_in_each_round) {
  Turns turns;
  EXPECT_TRUE(turns->free(kBusy));
  turns->used(kBusy, ProcessTurns::kTurn);
  EXPECT_TRUE(turns->free(kBusy));
  turns->used(kBusy, 1us);
  EXPECT_FALSE(turns->free(kBusy));
  EXPECT_TRUE(turns->free(kOther));
  turns.run();
  EXPECT_TRUE(turns->free(kBusy));
  EXPECT_EQ(turns->processes(), 0U) << "nothing is remembered of a round that is over";
}

TEST(ProcessTurns, short_messages_post_nothing) {
  Turns turns;
  for (int message = 0; message < 5; ++message) {
    turns->used(kBusy, 40us);
  }
  EXPECT_TRUE(turns.posted.empty());
}

TEST(ProcessTurns, what_waits_is_woken_one_at_a_time_and_in_order) {
  Turns turns;
  turns->used(kBusy, 1ms);
  const auto first = turns.wait(kBusy, "first");
  const auto second = turns.wait(kBusy, "second");
  EXPECT_TRUE(turns.woken.empty()) << "not before what others have sent";
  turns.run();
  EXPECT_THAT(turns.woken, ElementsAre("first"));
  EXPECT_FALSE(turns->free(kBusy)) << "a later message does not overtake";
  turns->end(kBusy, first);
  EXPECT_THAT(turns.woken, ElementsAre("first"));
  turns.run();
  EXPECT_THAT(turns.woken, ElementsAre("first", "second"));
  turns->end(kBusy, second);
  turns.run();
  EXPECT_TRUE(turns->free(kBusy));
}

TEST(ProcessTurns, processes_go_in_turn_however_many_messages_they_have) {
  Turns turns;
  std::vector<ProcessTurns::Ticket> busy;
  turns->used(kBusy, 1ms);
  turns->used(kOther, 1ms);
  for (int message = 0; message < 3; ++message) {
    busy.push_back(turns.wait(kBusy, "busy"));
  }
  const auto other = turns.wait(kOther, "other");
  turns.run();
  turns->end(kBusy, busy[0]);
  turns->end(kOther, other);
  turns.run();
  EXPECT_THAT(turns.woken, ElementsAre("busy", "other", "busy"));
}

TEST(ProcessTurns, one_that_has_gone_or_gives_up_holds_nobody_back) {
  Turns turns;
  turns->used(kBusy, 1ms);
  const auto gone = turns->wait(kBusy, [] { return false; });
  const auto gives_up = turns.wait(kBusy, "gives up");
  const auto waits = turns.wait(kBusy, "waits");
  turns->end(kBusy, gives_up);
  turns.run();
  EXPECT_THAT(turns.woken, ElementsAre("waits"));
  turns->end(kBusy, gone);
  turns.run();
  EXPECT_FALSE(turns->free(kBusy)) << "the end of one that was never woken ends no other's turn";
  turns->end(kBusy, waits);
  turns.run();
  EXPECT_TRUE(turns->free(kBusy));
}

TEST(ProcessTurns, what_is_posted_may_be_called_after_its_end) {
  Turns turns;
  turns->used(kBusy, 1ms);
  static_cast<void>(turns.wait(kBusy, "nobody"));
  turns.turns.reset();
  turns.run();
  EXPECT_TRUE(turns.woken.empty());
}

}  // namespace
}  // namespace gradsync::net
