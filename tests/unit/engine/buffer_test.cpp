#include "device/memory/arena.hpp"
#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gradsync::engine {
namespace {

TEST(Buffers, a_token_hands_out_the_descriptor_once) {
  Harness h;
  h.attach(0, 1);
  h.allocate(0, 4096);
  const Result<TakenFd> taken = h.engine.exchange_fd(h.tokens.at(0), 1000, 100, UniqueFd{});
  ASSERT_TRUE(taken);

  struct stat info {};

  ASSERT_EQ(::fstat(taken->fd.get(), &info), 0);
  EXPECT_EQ(info.st_size, 4096);
  EXPECT_EQ(h.engine.exchange_fd(h.tokens.at(0), 1000, 100, UniqueFd{}).error().code, ErrorCode::BadToken);
}

TEST(Buffers, a_token_is_good_for_its_own_process_only) {
  Harness h;
  h.attach(0, 1);
  h.allocate(0);
  EXPECT_EQ(h.engine.exchange_fd(h.tokens.at(0), 1001, 100, UniqueFd{}).error().code, ErrorCode::BadToken);
  EXPECT_EQ(h.engine.exchange_fd(h.tokens.at(0), 1000, 101, UniqueFd{}).error().code, ErrorCode::BadToken);
  EXPECT_TRUE(h.engine.exchange_fd(h.tokens.at(0), 1000, 0, UniqueFd{})) << "pid 0: another pid namespace";
}

TEST(Buffers, a_token_expires) {
  Harness h;
  h.attach(0, 1);
  h.allocate(0);
  h.pass(Milliseconds(10'000));
  EXPECT_EQ(h.engine.exchange_fd(h.tokens.at(0), 1000, 100, UniqueFd{}).error().code, ErrorCode::BadToken);
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
  const Result<BufferGrant> large = h.engine.allocate(h.sessions.at(0), 12288);
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, ::testing::HasSubstr("arena_bytes"));
  EXPECT_FALSE(h.engine.allocate(h.sessions.at(0), ~0ull));
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

class Adoption : public ::testing::Test {
 protected:
  Adoption() { h.attach(0, 2), h.attach(1, 2); }

  /// An arena as the daemon before this one made it.
  static UniqueFd arena(std::uint64_t size_bytes = 4096) { return std::move(*device::create_arena(size_bytes)); }

  static UniqueFd copy(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

  Result<BufferGrant> ask(std::int64_t rank, std::uint64_t size_bytes = 4096) {
    return h.engine.adopt(h.sessions.at(rank), size_bytes);
  }

  Result<TakenFd> give(const BufferGrant& grant, UniqueFd fd) {
    return h.engine.exchange_fd(grant.token, 1000, 0, std::move(fd));
  }

  Harness h;
};

TEST_F(Adoption, memory_that_comes_back_is_a_buffer_with_its_contents) {
  const UniqueFd mine = arena();
  ASSERT_EQ(::pwrite(mine.get(), "kept", 4, 100), 4);
  const auto grant = ask(0);
  ASSERT_TRUE(grant);
  const auto early = h.declare(0, Harness::declaration({Harness::tensor("a")}), grant->buffer);
  EXPECT_EQ(early->error->code, ErrorCode::UnknownBuffer) << "its descriptor has not come";
  const auto taken = give(*grant, copy(mine));
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->size_bytes, 4096u);
  EXPECT_FALSE(taken->fd.valid());
  EXPECT_EQ(give(*grant, copy(mine)).error().code, ErrorCode::BadToken) << "once";
  char text[4] = {};
  ASSERT_EQ(::pread(mine.get(), text, 4, 100), 4);
  EXPECT_EQ(std::string(text, 4), "kept");
  EXPECT_TRUE(h.engine.release(h.sessions.at(0), grant->buffer));
}

TEST_F(Adoption, what_is_no_arena_of_this_size_is_refused_and_leaves_nothing) {
  const auto refused = [&](UniqueFd fd, const char* text) {
    const auto grant = ask(0);
    ASSERT_TRUE(grant);
    const auto given = give(*grant, std::move(fd));
    ASSERT_FALSE(given);
    EXPECT_EQ(given.error().path, "fd");
    EXPECT_THAT(given.error().message, ::testing::HasSubstr(text));
    EXPECT_EQ(h.engine.release(h.sessions.at(0), grant->buffer).error().code, ErrorCode::UnknownBuffer);
  };
  refused(UniqueFd{}, "no descriptor came");
  refused(arena(8192), "has 8192 bytes, 4096 were said");
  refused(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), "no memfd");
  UniqueFd bare(::memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(bare.get(), 4096), 0);
  refused(copy(bare), "has the seals 0x0");
  ASSERT_EQ(::fcntl(bare.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  refused(copy(bare), "has the seals 0xf");
  if (::geteuid() == 0) {
    const UniqueFd strange = arena();
    ASSERT_EQ(::fchown(strange.get(), 4711, 4711), 0);
    refused(copy(strange), "belongs to uid 4711");
  }
}

TEST_F(Adoption, two_buffers_never_share_memory) {
  const UniqueFd mine = arena();
  const auto first = ask(0);
  const auto second = ask(1);
  ASSERT_TRUE(give(*first, copy(mine)));
  const auto again = give(*second, copy(mine));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, ::testing::HasSubstr("in use as another buffer"));
}

TEST_F(Adoption, what_comes_twice_because_an_answer_was_lost_is_taken_twice) {
  const UniqueFd mine = arena();
  ASSERT_EQ(::pwrite(mine.get(), "kept", 4, 0), 4);
  const auto first = ask(0);
  ASSERT_TRUE(give(*first, copy(mine)));
  const auto second = ask(0);
  ASSERT_TRUE(give(*second, copy(mine)));
  h.pump();
  char text[4] = {};
  ASSERT_EQ(::pread(mine.get(), text, 4, 0), 4);
  EXPECT_EQ(std::string(text, 4), "kept");
  EXPECT_EQ(h.engine.release(h.sessions.at(0), first->buffer).error().code, ErrorCode::UnknownBuffer);
  EXPECT_TRUE(h.engine.release(h.sessions.at(0), second->buffer));
}

/// A machine with so much memory, of which nothing else is used. Pages of arenas are charged to others.
class ScarceMemory : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRoom = 64 << 10;

  static EngineOptions options() {
    EngineOptions options;
    options.own_uid = 1000;  // of the harness: it may have all
    options.measure_memory = [](const device::ArenaBytes& arenas) {
      const std::uint64_t promised = arenas.mapped - std::min(arenas.mapped, charged ? arenas.populated : 0);
      const std::uint64_t free = kRoom - (charged ? std::min(kRoom, arenas.populated) : 0);
      return device::MemoryHeadroom{free - std::min(free, promised), promised - std::min(free, promised), kRoom};
    };
    return options;
  }

  ScarceMemory() { charged = false; }

  static inline bool charged = false;  ///< the daemon's cgroup pays for the pages that there are
  Harness h{options()};
};

void fill(int fd, std::uint64_t size_bytes) { ASSERT_EQ(::fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)), 0); }

TEST_F(ScarceMemory, an_arena_that_its_client_filled_and_punched_counts_as_before) {
  h.attach(0, 1);
  h.allocate(0, kRoom);
  const auto taken = h.engine.exchange_fd(h.tokens.at(0), 1000, 0, UniqueFd{});
  ASSERT_TRUE(taken);
  fill(taken->fd.get(), kRoom);
  const Result<BufferGrant> beside = h.engine.allocate(h.sessions.at(0), 4096);
  ASSERT_FALSE(beside) << "the client's pages may go at any time, and the daemon makes new ones";
  EXPECT_EQ(beside.error().code, ErrorCode::InsufficientMemory);
  EXPECT_THAT(beside.error().message, ::testing::HasSubstr("needs 4096 bytes, 0 are free"));
  device::punch_out(taken->fd.get(), kRoom);
  EXPECT_FALSE(h.engine.allocate(h.sessions.at(0), 4096));
  EXPECT_TRUE(h.engine.release(h.sessions.at(0), 1));
  EXPECT_TRUE(h.engine.allocate(h.sessions.at(0), kRoom));
}

TEST_F(ScarceMemory, one_uid_gets_three_quarters_without_a_setting) {
  AttachRequest request = h.request(0, 1);
  request.uid = 1001;
  const SessionId one = h.engine.attach(request)->session;
  EXPECT_TRUE(h.engine.allocate(one, kRoom / 2));
  EXPECT_EQ(
      h.engine.allocate(one, 20 << 10).error().message,
      "an arena of 20.0 KiB does not fit: uid 1001 holds 32.0 KiB of 48.0 KiB (limit arena_bytes 64.0 KiB)"
  );
  EXPECT_TRUE(h.engine.allocate(one, 16 << 10));
  request.uid = 1002;
  request.job = "other";
  const SessionId other = h.engine.attach(request)->session;
  EXPECT_EQ(h.engine.allocate(other, 20 << 10).error().code, ErrorCode::InsufficientMemory);
  EXPECT_TRUE(h.engine.allocate(other, 16 << 10));
}

TEST_F(ScarceMemory, pages_that_are_charged_already_do_not_count_twice) {
  charged = true;
  h.attach(0, 1);
  h.allocate(0, kRoom / 2);
  const auto taken = h.engine.exchange_fd(h.tokens.at(0), 1000, 0, UniqueFd{});
  fill(taken->fd.get(), kRoom / 2);
  EXPECT_TRUE(h.engine.allocate(h.sessions.at(0), kRoom / 2));
  EXPECT_FALSE(h.engine.allocate(h.sessions.at(0), 4096));
}

TEST_F(ScarceMemory, what_is_adopted_has_to_fit_as_what_is_allocated) {
  h.attach(0, 1);
  h.allocate(0, kRoom / 2);
  const auto adopt = [&](std::uint64_t size_bytes) {
    const Result<BufferGrant> grant = h.engine.adopt(h.sessions.at(0), size_bytes);
    UniqueFd released = std::move(*device::create_arena(size_bytes));  // a daemon before this one let go of its pages
    return h.engine.exchange_fd(grant->token, 1000, 0, std::move(released));
  };
  const auto refused = adopt(kRoom);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::InsufficientMemory);
  EXPECT_TRUE(adopt(kRoom / 2));
}

TEST_F(ScarceMemory, what_is_adopted_with_pages_that_are_charged_already_takes_no_more) {
  charged = true;
  h.attach(0, 1);
  const Result<BufferGrant> grant = h.engine.adopt(h.sessions.at(0), kRoom);
  UniqueFd arena = std::move(*device::create_arena(kRoom));
  fill(arena.get(), kRoom);
  EXPECT_TRUE(h.engine.exchange_fd(grant->token, 1000, 0, std::move(arena)));
}

TEST(AdoptedBuffer, that_a_plan_used_is_not_taken_twice) {
  Harness h;
  h.attach(0, 1);
  const UniqueFd mine = std::move(*device::create_arena(4096));
  const auto give = [&](const BufferGrant& grant) {
    return h.engine.exchange_fd(grant.token, 1000, 0, UniqueFd(::fcntl(mine.get(), F_DUPFD_CLOEXEC, 0)));
  };
  const auto grant = h.engine.adopt(h.sessions.at(0), 4096);
  ASSERT_TRUE(give(*grant));
  const auto declared = h.declare(0, Harness::declaration({Harness::tensor("a")}), grant->buffer);
  h.pump();
  ASSERT_TRUE(declared->result) << "the lane has mapped it";
  const auto again = h.engine.adopt(h.sessions.at(0), 4096);
  ASSERT_TRUE(again);
  const auto refused = give(*again);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("in use as another buffer"));
}

TEST_F(Adoption, nobody_else_completes_it_and_it_expires) {
  const auto grant = ask(0);
  EXPECT_EQ(h.engine.exchange_fd(grant->token, 1001, 100, arena()).error().code, ErrorCode::BadToken);
  EXPECT_EQ(h.engine.exchange_fd(grant->token, 1000, 101, arena()).error().code, ErrorCode::BadToken);
  h.pass(Milliseconds(10'000));
  EXPECT_EQ(give(*grant, arena()).error().code, ErrorCode::BadToken);
  EXPECT_EQ(h.engine.release(h.sessions.at(0), grant->buffer).error().code, ErrorCode::UnknownBuffer);
  EXPECT_EQ(ask(0, 0).error().path, "bytes");
}

}  // namespace
}  // namespace gradsync::engine
