#include "harness.hpp"

#include <gmock/gmock.h>

#include <sys/stat.h>

namespace gradsync::engine {
namespace {

TEST(Buffers, a_token_hands_out_the_descriptor_once) {
  Harness h;
  h.attach(0, 1);
  h.allocate(0, 4096);
  const Result<Engine::TakenFd> taken = h.engine.take_fd(h.tokens.at(0), 1000, 100);
  ASSERT_TRUE(taken);

  struct stat info {};

  ASSERT_EQ(::fstat(taken->fd.get(), &info), 0);
  EXPECT_EQ(info.st_size, 4096);
  EXPECT_EQ(h.engine.take_fd(h.tokens.at(0), 1000, 100).error().code, ErrorCode::BadToken);
}

TEST(Buffers, a_token_is_good_for_its_own_process_only) {
  Harness h;
  h.attach(0, 1);
  h.allocate(0);
  EXPECT_EQ(h.engine.take_fd(h.tokens.at(0), 1001, 100).error().code, ErrorCode::BadToken);
  EXPECT_EQ(h.engine.take_fd(h.tokens.at(0), 1000, 101).error().code, ErrorCode::BadToken);
  EXPECT_TRUE(h.engine.take_fd(h.tokens.at(0), 1000, 0)) << "pid 0: another pid namespace";
}

TEST(Buffers, a_token_expires) {
  Harness h;
  h.attach(0, 1);
  h.allocate(0);
  h.pass(Milliseconds(10'000));
  EXPECT_EQ(h.engine.take_fd(h.tokens.at(0), 1000, 100).error().code, ErrorCode::BadToken);
}

TEST(Buffers, release_waits_while_a_plan_uses_the_buffer) {
  Harness h;
  h.start(1);
  EXPECT_TRUE(h.engine.release(h.sessions.at(0), 1));
  h.pump();
  EXPECT_TRUE(h.lane.unmapped.empty());
  EXPECT_EQ(h.engine.release(h.sessions.at(0), 1).error().code, ErrorCode::UnknownBuffer);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  h.pump();
  EXPECT_THAT(h.lane.unmapped, ::testing::ElementsAre(1));
}

TEST(Buffers, limits_are_named) {
  EngineOptions options;
  options.limits.buffers_per_session = 1;
  options.limits.arena_bytes = 8192;
  Harness h(options);
  h.attach(0, 1);
  h.allocate(0, 4096);
  const Result<BufferGrant> more = h.engine.allocate(h.sessions.at(0), 4096);
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message, ::testing::HasSubstr("buffers_per_session"));
  EXPECT_TRUE(h.engine.release(h.sessions.at(0), 1));
  const Result<BufferGrant> huge = h.engine.allocate(h.sessions.at(0), ~0ull);
  ASSERT_FALSE(huge);
  EXPECT_THAT(huge.error().message, ::testing::HasSubstr("arena_bytes"));
  EXPECT_EQ(h.engine.allocate(h.sessions.at(0), 0).error().path, "bytes");
}

TEST(Buffers, another_session_cannot_release_or_declare_a_buffer) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const std::uint64_t buffer = h.allocate(0);
  EXPECT_EQ(h.engine.release(h.sessions.at(1), buffer).error().code, ErrorCode::UnknownBuffer);
  const auto declared = h.declare(1, Harness::declaration({Harness::tensor("a")}), buffer);
  ASSERT_TRUE(declared->error);
  EXPECT_EQ(declared->error->code, ErrorCode::UnknownBuffer);
}

}  // namespace
}  // namespace gradsync::engine
