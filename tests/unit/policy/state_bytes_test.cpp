#include "policy/state_bytes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::policy {
namespace {

using ::testing::HasSubstr;

std::string some_state() {
  std::string bytes = "of before";
  write_state({"percentile 95", {0, 1.5, 0x1.fffffffffffffp+1023}}, bytes);
  return bytes;
}

TEST(StateBytes, are_read_as_they_were_written) {
  const Result<State> state = read_state(some_state(), "percentile 95");
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->settings, "percentile 95");
  EXPECT_THAT(state->numbers, testing::ElementsAre(0, 1.5, 0x1.fffffffffffffp+1023));
}

TEST(StateBytes, are_refused_with_any_bit_flipped) {
  const std::string whole = some_state();
  for (std::size_t byte = 0; byte < whole.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
      const Result<State> state = read_state(bytes, "percentile 95");
      ASSERT_TRUE(state.has_error()) << byte << " " << bit;
      ASSERT_EQ(state.error().path, "state");
    }
  }
}

TEST(StateBytes, are_refused_when_cut_or_lengthened) {
  const std::string whole = some_state();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(read_state(std::string_view(whole).substr(0, size), "percentile 95").has_error()) << size;
  }
  EXPECT_TRUE(read_state(whole + std::string(8, '\0'), "percentile 95").has_error());
}

TEST(StateBytes, of_another_policy_are_refused_by_name) {
  const Result<State> state = read_state(some_state(), "percentile 90");
  ASSERT_TRUE(state.has_error());
  EXPECT_THAT(state.error().message, HasSubstr("percentile 95"));
  EXPECT_THAT(state.error().message, HasSubstr("percentile 90"));
}

TEST(StateBytes, of_another_version_are_refused_before_anything_else_is_read) {
  std::string bytes = some_state();
  bytes[16] = 2;
  const Result<State> state = read_state(bytes, "percentile 95");
  ASSERT_TRUE(state.has_error());
  EXPECT_THAT(state.error().message, HasSubstr("version 2"));
}

}  // namespace
}  // namespace gradsync::policy
