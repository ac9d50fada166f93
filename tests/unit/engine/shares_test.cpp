// What one process, one uid and all together get of the places that jobs share (base/fair_budget.hpp).

#include "unit/engine/harness.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

/// Sessions of process `pid` of a user, with a job of their own each.
SessionId attached(Harness& h, std::uint32_t uid, std::int64_t pid, const std::string& job) {
  AttachRequest request = h.request(0, 1);
  request.uid = uid;
  request.pid = pid;
  request.job = job;
  const Result<AttachResult> result = h.engine.attach(request);
  return result ? result->session : 0;
}

TEST(Shares, one_process_gets_half_of_the_seats_and_one_uid_three_quarters) {
  EngineOptions options;
  options.limits.sessions = 8;
  Harness h(options);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(attached(h, 1000, 1, fmt::format("a{}", i)), 0U);
  }
  AttachRequest request = h.request(0, 1);
  request.uid = 1000;
  request.pid = 1;
  request.job = "more";
  EXPECT_EQ(
      h.engine.attach(request).error().message,
      "4 ranks of process 1 are attached, its limit is 4 (the limit sessions is 8)"
  );
  EXPECT_NE(attached(h, 1000, 2, "b0"), 0U);
  EXPECT_NE(attached(h, 1000, 2, "b1"), 0U);
  request.pid = 2;
  EXPECT_EQ(
      h.engine.attach(request).error().message,
      "6 ranks of uid 1000 are attached, its limit is 6 (the limit sessions is 8)"
  );
  EXPECT_NE(attached(h, 1001, 3, "c"), 0U);
  EXPECT_NE(attached(h, 0, 4, "d"), 0U);
  request.uid = 1002;
  EXPECT_EQ(
      h.engine.attach(request).error().message,
      "8 ranks of the daemon are attached, its limit is 8 (the limit sessions is 8)"
  );
}

TEST(Shares, a_seat_that_is_left_is_free_again) {
  EngineOptions options;
  options.limits.sessions = 2;
  Harness h(options);
  for (int i = 0; i < 8; ++i) {
    const SessionId session = attached(h, 1000, 1, "a");
    ASSERT_NE(session, 0U);
    EXPECT_EQ(attached(h, 1000, 1, "b"), 0U);
    if (i % 2 == 0) {
      EXPECT_TRUE(h.engine.detach(session));
    } else {
      h.engine.process_exited(session);
    }
  }
}

/// 16 KiB for all arenas: 12 for those of one uid, 8 for those of one process.
class ArenaShares : public ::testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.limits.arena_bytes = 16 << 10;
    return options;
  }

  /// Why the session gets no arena of the size; empty: it has one now.
  std::string refusal(SessionId session, std::uint64_t size_bytes) {
    const Result<BufferGrant> granted = h.engine.allocate(session, size_bytes);
    return granted ? "" : granted.error().message;
  }

  Harness h{options()};
};

TEST_F(ArenaShares, of_one_process_are_half_of_the_bytes) {
  const SessionId one = attached(h, 1000, 1, "a");
  EXPECT_EQ(refusal(one, 6 << 10), "");
  EXPECT_EQ(
      refusal(one, 3 << 10),
      "an arena of 3.0 KiB does not fit: process 1 holds 6.0 KiB of 8.0 KiB (limit arena_bytes 16.0 KiB)"
  );
  EXPECT_EQ(refusal(one, 2 << 10), "");
}

TEST_F(ArenaShares, of_one_uid_are_three_quarters_of_the_bytes) {
  const SessionId one = attached(h, 1000, 1, "a");
  const SessionId two = attached(h, 1000, 2, "b");
  EXPECT_EQ(refusal(one, 8 << 10), "");
  EXPECT_EQ(refusal(two, 3 << 10), "");
  const std::string full =
      "an arena of 2.0 KiB does not fit: uid 1000 holds 11.0 KiB of 12.0 KiB (limit arena_bytes 16.0 KiB)";
  EXPECT_EQ(refusal(two, 2 << 10), full);
  EXPECT_EQ(h.engine.adopt(two, 2 << 10).error().message, full);
  EXPECT_EQ(refusal(two, 1 << 10), "");
}

TEST_F(ArenaShares, of_all_are_bounded_and_what_one_uid_leaves_is_for_the_others) {
  const SessionId one = attached(h, 1001, 1, "a");
  const SessionId two = attached(h, 1001, 2, "b");
  const SessionId other = attached(h, 1002, 3, "c");
  EXPECT_EQ(refusal(one, 8 << 10), "");
  EXPECT_EQ(refusal(two, 4 << 10), "");
  EXPECT_EQ(
      refusal(other, 5 << 10),
      "an arena of 5.0 KiB does not fit: the daemon holds 12.0 KiB of 16.0 KiB (limit arena_bytes 16.0 KiB)"
  );
  EXPECT_EQ(refusal(other, 4 << 10), "");
  EXPECT_TRUE(h.engine.detach(one));
  EXPECT_EQ(refusal(other, 4 << 10), "") << "the bytes of who left are free again";
}

TEST(Shares, of_tokens_are_half_for_a_process_three_quarters_for_a_uid_and_all_for_the_daemon) {
  EngineOptions options;
  options.limits.tokens = 8;
  Harness h(options);
  const auto refusal = [&](SessionId session) {
    const Result<BufferGrant> granted = h.engine.allocate(session, 64);
    return granted ? "" : granted.error().message;
  };
  const auto take = [&](SessionId session, int tokens) {
    for (int i = 0; i < tokens; ++i) {
      EXPECT_EQ(refusal(session), "");
    }
  };
  const SessionId one = attached(h, 1000, 1, "a");
  const SessionId two = attached(h, 1000, 2, "b");
  const SessionId other = attached(h, 1001, 3, "c");
  take(one, 4);
  EXPECT_EQ(refusal(one), "process 1 has 4 tokens that were not used, its limit is 4");
  take(two, 2);
  EXPECT_EQ(refusal(two), "uid 1000 has 6 tokens that were not used, its limit is 6");
  take(other, 2);
  EXPECT_EQ(refusal(other), "the daemon has 8 tokens that were not used, its limit is 8");
  EXPECT_EQ(h.engine.adopt(other, 64).error().message, "the daemon has 8 tokens that were not used, its limit is 8");
}

TEST(Shares, tokens_that_are_not_used_have_a_limit_and_end) {
  EngineOptions options;
  options.limits.tokens = 8;
  Harness h(options);
  const SessionId session = attached(h, 1000, 1, "a");
  std::vector<std::string> tokens;
  for (int i = 0; i < 4; ++i) {
    tokens.push_back(h.engine.allocate(session, 4096)->token);
  }
  EXPECT_EQ(
      h.engine.allocate(session, 4096).error().message, "process 1 has 4 tokens that were not used, its limit is 4"
  );
  EXPECT_FALSE(h.engine.adopt(session, 4096));
  EXPECT_TRUE(h.engine.exchange_fd(tokens[0], 1000, 1, UniqueFd{}));
  EXPECT_TRUE(h.engine.allocate(session, 4096)) << "one was used";
  EXPECT_TRUE(h.engine.release(session, 2));
  EXPECT_TRUE(h.engine.adopt(session, 4096)) << "one went with its buffer";
  EXPECT_FALSE(h.engine.allocate(session, 4096));
  h.pass(Milliseconds(10'000));
  EXPECT_TRUE(h.engine.allocate(session, 4096)) << "they ended";
}

}  // namespace
}  // namespace gradsync::engine
