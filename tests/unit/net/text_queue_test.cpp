#include "net/socket/text_queue.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace gradsync::net {
namespace {

TEST(TextQueue, gives_texts_out_in_order_whatever_comes_meanwhile) {
  std::mt19937 random(1);
  TextQueue queue;
  std::deque<std::string> model;
  std::size_t bytes = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 || model.empty()) {
      const std::string text(random() % 20, static_cast<char>('a' + i % 26));
      bytes += text.size();
      model.push_back(text);
      queue.push(text);
    } else {
      bytes -= model.front().size();
      EXPECT_EQ(queue.pop(), model.front());
      model.pop_front();
    }
    ASSERT_EQ(queue.empty(), model.empty());
    ASSERT_EQ(queue.bytes(), bytes);
    if (!model.empty()) {
      ASSERT_EQ(queue.front(), model.front());
    }
  }
}

TEST(TextQueue, the_front_stays_where_it_is_while_others_come) {
  TextQueue queue;
  queue.push("short");
  const char* const written = queue.front().data();
  for (int i = 0; i < 1000; ++i) {
    queue.push("another");
  }
  EXPECT_EQ(queue.front().data(), written);
  EXPECT_EQ(queue.pop(), "short");
  EXPECT_EQ(queue.front(), "another");
}

}  // namespace
}  // namespace gradsync::net
