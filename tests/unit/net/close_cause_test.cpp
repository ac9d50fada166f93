#include "net/http/close_cause.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace gradsync::net {
namespace {

constexpr std::size_t kMostReasonBytes = 123;  // RFC 6455, section 5.5

TEST(CloseCauses, fit_into_a_close_frame_whatever_the_numbers) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  constexpr Milliseconds kLongest = Milliseconds::max();
  for (const CloseCause& cause :
       {shutting_down(),
        binary_message(),
        message_too_large(kMost),
        cut_within_character(),
        too_much_half_sent({1, "all processes", kMost, kMost}),
        share_used_up(kLongest),
        message_not_ended(kLongest),
        not_initialized(kLongest)}) {
    EXPECT_LE(cause.told.size(), kMostReasonBytes) << cause.told;
  }
}

TEST(CloseCauses, of_half_sent_messages_name_what_is_held_and_the_limit) {
  const CloseCause cause = too_much_half_sent({1, "uid 1000", 201'326'600, 201'326'592});
  EXPECT_EQ(
      cause.told, "limit_exceeded: 201326600 bytes of messages of uid 1000 are half sent, the limit is 201326592"
  );
  EXPECT_NE(
      cause.logged.find("201326600 bytes of messages of uid 1000 are half sent, the limit is 201326592"),
      std::string::npos
  ) << cause.logged;
}

}  // namespace
}  // namespace gradsync::net
