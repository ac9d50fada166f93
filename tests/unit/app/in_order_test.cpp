#include "app/in_order.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace gradsync::app {
namespace {

TEST(InOrder, keeps_what_came_early_until_its_turn) {
  InOrder<std::unique_ptr<int>> order;
  std::vector<int> delivered;
  const auto deliver = [&](std::unique_ptr<int> value) { delivered.push_back(*value); };
  order.arrive(1, std::make_unique<int>(11), deliver);
  order.arrive(3, std::make_unique<int>(13), deliver);
  EXPECT_TRUE(delivered.empty());
  order.arrive(0, std::make_unique<int>(10), deliver);
  EXPECT_EQ(delivered, (std::vector{10, 11}));
  order.arrive(2, std::make_unique<int>(12), deliver);
  order.arrive(4, std::make_unique<int>(14), deliver);
  EXPECT_EQ(delivered, (std::vector{10, 11, 12, 13, 14}));
}

TEST(InOrder, a_post_from_another_thread_does_not_overtake_one_from_inside_the_loop) {
  boost::asio::io_context io{1};
  InOrder<int> order;
  std::vector<int> delivered;
  const auto post = [&](std::uint64_t number) {
    boost::asio::post(io, [&, number] {
      order.arrive(number, static_cast<int>(number), [&](int value) { delivered.push_back(value); });
    });
  };
  boost::asio::post(io, [&] {
    post(0);
    std::thread([&] { post(1); }).join();
  });
  io.run();
  EXPECT_EQ(delivered, (std::vector{0, 1}));
}

}  // namespace
}  // namespace gradsync::app
