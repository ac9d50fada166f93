#include "unit/device/wire/wire_fixture.hpp"

#include <gmock/gmock.h>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

WireFrame some_frame() { return {plan::Payload::Result, 0x0102030405060708, 9, 0x0a0b0c0d, 4096}; }

std::string problem_of(const FrameBytes& bytes) {
  const auto read = read_frame(bytes);
  const auto* problem = std::get_if<std::string>(&read);
  return problem == nullptr ? "none" : *problem;
}

TEST(WireFrame, lies_in_forty_little_endian_bytes) {
  const unsigned char expected[kFrameBytes] = {'G', 'S', 'D', '1', 1, 0, 0, 0,    8,    7,    6,    5, 4,
                                               3,   2,   1,   9,   0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 0, 0x10};
  const FrameBytes bytes = write_frame(some_frame());
  EXPECT_EQ(std::memcmp(bytes.data(), expected, kFrameBytes), 0);
}

TEST(WireFrame, is_read_as_it_was_written) {
  for (const plan::Payload payload : {plan::Payload::Partial, plan::Payload::Result}) {
    for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
      const auto word = static_cast<std::uint32_t>(number);
      const WireFrame frame{payload, number, word, word, number};
      const auto read = read_frame(write_frame(frame));
      ASSERT_TRUE(std::holds_alternative<WireFrame>(read));
      EXPECT_EQ(std::get<WireFrame>(read), frame);
    }
  }
}

TEST(WireFrame, names_a_message_and_its_size) {
  EXPECT_EQ(words_of({plan::Payload::Partial, 7, 2, 3, 64}), "partial sum 3 of bucket 2 of attempt 7 (64 bytes)");
  EXPECT_EQ(words_of({plan::Payload::Result, 1, 0, 0, 0}), "result 0 of bucket 0 of attempt 1 (0 bytes)");
}

TEST(WireFrame, tells_the_first_bytes_of_a_stranger) {
  FrameBytes http{};
  std::memcpy(http.data(), "GET / HTTP/1.1\r\nHost: node0:9478\r\n\r\nabc", kFrameBytes);
  EXPECT_THAT(problem_of(http), HasSubstr("\"GET \" came where a message begins with \"GSD1\""));
  FrameBytes tls{};
  std::memcpy(tls.data(), "\x16\x03\x01\x02", 4);
  EXPECT_THAT(problem_of(tls), HasSubstr("16 03 01 02 came where a message begins with \"GSD1\""));
}

TEST(WireFrame, has_one_of_two_payloads_or_signals) {
  FrameBytes bytes = write_frame(some_frame());
  bytes[4] = std::byte{4};
  EXPECT_THAT(problem_of(bytes), HasSubstr("its payload is 4"));
}

TEST(WireSignals, are_forty_bytes_too_and_have_nothing_behind_their_number) {
  for (const WireSignal signal : {WireSignal::AreYouThere, WireSignal::Here}) {
    FrameBytes bytes = write_signal(signal);
    const auto read = read_frame(bytes);
    ASSERT_TRUE(std::holds_alternative<WireSignal>(read));
    EXPECT_EQ(std::get<WireSignal>(read), signal);
    EXPECT_EQ(bytes[4], static_cast<std::byte>(signal));
    for (const std::size_t place : {5U, 8U, 16U, 20U, 24U, 39U}) {
      FrameBytes other = bytes;
      other[place] = std::byte{1};
      EXPECT_THAT(problem_of(other), HasSubstr("a sign of life")) << place;
    }
  }
}

TEST(WireFrame, has_zeros_where_nothing_is_said) {
  for (const std::size_t place : {5U, 6U, 7U, 32U, 36U, 39U}) {
    FrameBytes bytes = write_frame(some_frame());
    bytes[place] = std::byte{1};
    EXPECT_THAT(problem_of(bytes), HasSubstr("not zero")) << place;
    EXPECT_THAT(problem_of(bytes), HasSubstr("of bucket 9")) << place;
  }
}

}  // namespace
}  // namespace gradsync::device
