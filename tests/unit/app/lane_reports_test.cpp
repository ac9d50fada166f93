#include "app/lane_reports.hpp"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gradsync::app {
namespace {

using Numbers = std::vector<device::BufferId>;

class LaneReportsTest : public testing::Test {
 protected:
  void report(device::BufferId number) { reports_.take(device::Mapped{number}); }

  void report_elsewhere(device::BufferId number) {
    std::thread([&] { report(number); }).join();
  }

  /// Runs the loop, with `turn` as a message's.
  void handle(const std::function<bool()>& turn) {
    boost::asio::post(io_, [&] {
      result_ = reports_.after(turn);
      after_turn_ = delivered_;
    });
    io_.restart();
    io_.run();
  }

  boost::asio::io_context io_{1};
  prometheus::Registry registry_;
  net::IoWatch watch_{registry_};
  Numbers delivered_;
  Numbers after_turn_;  ///< delivered when the turn was over, without the loop
  std::function<void(device::BufferId)> on_delivery_ = [](device::BufferId) {};
  bool result_ = false;
  LaneReports reports_{io_, watch_, [this](device::LaneReport report) {
                         delivered_.push_back(std::get<device::Mapped>(report).buffer);
                         on_delivery_(delivered_.back());
                       }};
};

TEST_F(LaneReportsTest, what_is_reported_in_a_turn_is_delivered_when_it_is_over) {
  handle([&] {
    report(1);
    report(2);
    EXPECT_TRUE(delivered_.empty());
    return true;
  });
  EXPECT_EQ(after_turn_, (Numbers{1, 2}));
  EXPECT_EQ(delivered_, after_turn_);
  EXPECT_TRUE(result_);
}

TEST_F(LaneReportsTest, so_is_what_is_reported_meanwhile) {
  on_delivery_ = [&](device::BufferId number) {
    if (number < 4) {
      report(number + 2);
    }
  };
  handle([&] {
    report(1);
    report(2);
    return false;
  });
  EXPECT_EQ(after_turn_, (Numbers{1, 2, 3, 4, 5}));
  EXPECT_FALSE(result_);
  on_delivery_ = [](device::BufferId) {};
  handle([&] {
    report(6);
    return true;
  });
  EXPECT_EQ(after_turn_.back(), 6U);
}

TEST_F(LaneReportsTest, reports_of_the_lanes_thread_keep_their_place) {
  handle([&] {
    report(1);
    report_elsewhere(2);
    report(3);
    return true;
  });
  EXPECT_EQ(after_turn_, (Numbers{1}));
  EXPECT_EQ(delivered_, (Numbers{1, 2, 3}));
}

TEST_F(LaneReportsTest, outside_of_a_turn_they_come_through_the_loop) {
  boost::asio::post(io_, [&] {
    report(1);
    EXPECT_TRUE(delivered_.empty());
  });
  io_.run();
  report(2);
  EXPECT_EQ(delivered_, (Numbers{1}));
  io_.restart();
  io_.run();
  EXPECT_EQ(delivered_, (Numbers{1, 2}));
}

TEST_F(LaneReportsTest, nothing_is_lost_where_a_turn_throws) {
  const auto fails = [&]() -> bool {
    report(1);
    report(2);
    throw std::runtime_error("a turn");
  };
  boost::asio::post(io_, [&] { EXPECT_THROW(static_cast<void>(reports_.after(fails)), std::runtime_error); });
  io_.run();
  EXPECT_EQ(delivered_, (Numbers{1, 2}));
}

TEST_F(LaneReportsTest, nor_where_a_delivery_throws) {
  on_delivery_ = [](device::BufferId number) {
    if (number == 1) {
      throw std::runtime_error("a delivery");
    }
  };
  boost::asio::post(io_, [&] {
    const auto turn = [&] {
      report(1);
      report(2);
      return true;
    };
    EXPECT_THROW(static_cast<void>(reports_.after(turn)), std::runtime_error);
    EXPECT_EQ(delivered_, (Numbers{1}));
  });
  io_.run();
  EXPECT_EQ(delivered_, (Numbers{1, 2}));
}

TEST_F(LaneReportsTest, delivering_is_nobodys_cost) {
  on_delivery_ = [](device::BufferId) {
    const auto end = std::chrono::steady_clock::now() + Milliseconds{30};
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  boost::asio::post(io_, [&] {
    const net::IoWatch::Turn turn{watch_, "a message"};
    static_cast<void>(reports_.after([&] {
      report(1);
      return true;
    }));
    EXPECT_LT(turn.computed(), Milliseconds{20});
  });
  io_.run();
}

}  // namespace
}  // namespace gradsync::app
