#include "net/text_queue.hpp"

#include "net/text_stock.hpp"

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

TEST(TextStock, gives_memory_out_again_without_what_it_said) {
  TextStock stock;
  EXPECT_EQ(stock.take().capacity(), std::string().capacity());
  std::string text(1000, 'x');
  const char* const memory = text.data();
  stock.give_back(std::move(text));
  const std::string again = stock.take();
  EXPECT_EQ(again, "");
  EXPECT_EQ(again.data(), memory);
}

TEST(TextStock, keeps_a_few_texts_of_a_reasonable_length) {
  TextStock stock;
  stock.give_back(std::string(2 * TextStock::kTextBytes, 'x'));
  EXPECT_LT(stock.take().capacity(), 100U);
  for (std::size_t i = 0; i < 2 * TextStock::kTexts; ++i) {
    stock.give_back(std::string(1000, 'x'));
  }
  std::size_t kept = 0;
  while (stock.take().capacity() >= 1000) {
    ++kept;
  }
  EXPECT_EQ(kept, TextStock::kTexts);
}

}  // namespace
}  // namespace gradsync::net
