// What a job leaves behind for those who come back to another daemon, in the order in which it has to be there.

#include "engine/step/step_record.hpp"
#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What a rank has: a mapping for reading, by a descriptor that came from a token.
class Mapping {
 public:
  Mapping(UniqueFd given, std::uint64_t size_bytes) : fd(std::move(given)), size_bytes_(size_bytes) {
    void* memory = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    bytes = static_cast<const char*>(memory);
  }

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  ~Mapping() { ::munmap(const_cast<char*>(bytes), size_bytes_); }

  template <typename T>
  [[nodiscard]] T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, bytes + offset, sizeof value);
    return value;
  }

  [[nodiscard]] std::uint64_t begun() const { return at<std::uint64_t>(16); }

  [[nodiscard]] std::uint64_t done() const { return at<std::uint64_t>(24); }

  [[nodiscard]] std::string text(std::size_t rank) const {
    const std::size_t slot = 4096 + rank * at<std::uint32_t>(12);
    return {bytes + slot + 8, at<std::uint64_t>(slot)};
  }

  UniqueFd fd;
  const char* bytes;

 private:
  std::uint64_t size_bytes_;
};

/// Not JSON: the engine does not care.
std::string encode(const StepReport& report, std::size_t room) {
  std::string text = "step " + std::to_string(report.step) + " absent " + std::to_string(report.absent.size());
  text.resize(std::min(text.size(), room));
  return text;
}

EngineOptions with_record() {
  EngineOptions options;
  options.encode_report = encode;
  return options;
}

constexpr std::uint64_t word(std::uint64_t epoch, std::uint64_t attempt) { return (epoch << 32) + attempt + 1; }

plan::RankDeclaration two_tensors(plan::DataPath path = plan::DataPath::Arena) {
  plan::TensorDeclaration a = Harness::tensor("a");
  plan::TensorDeclaration b = Harness::tensor("b");
  if (path == plan::DataPath::Stats) {
    a.placements = b.placements = {{{"dp"}, plan::Replicate{}}};
  }
  plan::RankDeclaration all = Harness::declaration({a, b});
  all.options.data_path = path;
  return all;
}

class Record : public ::testing::Test {
 protected:
  Record() : h(with_record()) {}

  void start(const plan::RankDeclaration& declaration = two_tensors()) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      h.attach(rank, 2);
      answers.push_back(h.declare(rank, declaration));
    }
    h.pump();
    for (const auto& answer : answers) {
      ASSERT_TRUE(answer->result && answer->result->record);
    }
    record = std::make_unique<Mapping>(take(*answers[0]->result->record, 100), answers[0]->result->record->size_bytes);
  }

  UniqueFd take(const RecordGrant& grant, std::int64_t pid) {
    Result<TakenFd> taken = h.engine.exchange_fd(grant.token, 1000, pid, UniqueFd{});
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().message);
    EXPECT_EQ(taken->size_bytes, grant.size_bytes);
    return std::move(taken->fd);
  }

  std::shared_ptr<Outcome> clip(std::int64_t rank, std::int64_t step) {
    auto outcome = std::make_shared<Outcome>();
    ClipRequest request;
    request.key = h.keys.at(rank);
    request.step = step;
    h.engine.clip(h.sessions.at(rank), request, h.listener(rank, outcome));
    return outcome;
  }

  /// Answers the lane until it has one command left, or none.
  template <typename T>
  void pump_until() {
    while (!h.lane.commands.empty() && !std::holds_alternative<T>(h.lane.commands.front())) {
      h.engine.on_lane_report(device::kHostLane, h.lane.answer_next());
    }
  }

  Harness h;
  std::vector<std::shared_ptr<Harness::Declared>> answers;
  std::unique_ptr<Mapping> record;
};

TEST_F(Record, begins_empty_with_its_layout) {
  start();
  EXPECT_EQ(std::string(record->bytes, 8), "gsrecrd1");
  EXPECT_EQ(record->at<std::uint32_t>(8), 2u);
  EXPECT_EQ(record->at<std::uint32_t>(12), 4096u);
  EXPECT_EQ(answers[1]->result->record->size_bytes, 4096u + 2 * 4096u);
  EXPECT_EQ(record->begun(), 0u);
  EXPECT_EQ(record->done(), 0u);
  EXPECT_EQ(record->text(0) + record->text(1), "");
}

TEST_F(Record, says_begun_before_the_lane_has_the_first_reduction) {
  start();
  h.ready(0, 0);
  EXPECT_EQ(record->begun(), 0u) << "rank 1 is not ready: nothing was touched";
  h.ready(1, 0);
  ASSERT_EQ(h.lane.count<device::ReduceBucket>(), 1u);
  EXPECT_EQ(record->begun(), word(1, 0));
  EXPECT_EQ(record->done(), 0u);
}

TEST_F(Record, says_done_with_every_text_before_anybody_is_answered) {
  start();
  std::vector<std::uint64_t> seen;
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    FinishRequest request = Harness::ready_all();
    request.key = h.keys.at(rank);
    request.step = 7;
    h.engine.finish(h.sessions.at(rank), request, [&](const Result<RankReport>& result) {
      ASSERT_TRUE(result);
      seen.push_back(record->done());
      texts.push_back(record->text(0) + "|" + record->text(1));
      EXPECT_EQ(*result->text, "step 7 absent 0");
    });
  }
  pump_until<device::FinishStep>();
  EXPECT_EQ(record->done(), 0u);
  h.pump();
  EXPECT_THAT(seen, ::testing::ElementsAre(word(1, 0), word(1, 0)));
  EXPECT_THAT(texts, ::testing::Each("step 7 absent 0|step 7 absent 0"));
  h.keys[0] = h.keys[1] = {1, 1};
  h.ready(0, 0);
  h.ready(1, 0);
  EXPECT_EQ(record->begun(), word(1, 1)) << "the next attempt";
  EXPECT_EQ(record->done(), word(1, 0));
}

TEST_F(Record, of_two_halves_is_begun_with_the_norm_and_done_with_the_clip) {
  start();
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  h.finish(0, 3, norm);
  const auto given = h.finish(1, 3, norm);
  h.pump();
  ASSERT_TRUE(given->report);
  EXPECT_EQ(record->begun(), word(1, 0));
  EXPECT_EQ(record->done(), 0u) << "a norm that was given out is not recorded";
  clip(0, 3);
  clip(1, 3);
  h.pump();
  EXPECT_EQ(record->done(), word(1, 0));
  EXPECT_THAT(record->text(1), StartsWith("step 3"));
}

TEST_F(Record, of_two_halves_is_done_in_a_drain_that_begins_between_them) {
  start();
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  h.finish(0, 3, norm);
  h.finish(1, 3, norm);
  h.pump();
  h.engine.drain();
  EXPECT_FALSE(h.engine.idle());
  clip(0, 3);
  const auto done = clip(1, 3);
  h.pump();
  ASSERT_TRUE(done->report);
  EXPECT_EQ(record->done(), word(1, 0));
  EXPECT_TRUE(h.engine.idle());
  EXPECT_EQ(h.finish(0, 4)->calls, 0) << "the next step is for the successor";
}

TEST_F(Record, of_an_attempt_that_fails_is_never_done) {
  start();
  h.lane.fail_reductions = true;
  h.finish(0, 0);
  const auto failed = h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(failed->error);
  EXPECT_EQ(record->begun(), word(1, 0));
  EXPECT_EQ(record->done(), 0u);
}

TEST_F(Record, on_data_path_stats_is_never_begun) {
  start(two_tensors(plan::DataPath::Stats));
  h.finish(0, 0);
  const auto done = h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(done->report);
  EXPECT_EQ(record->begun(), 0u);
  EXPECT_EQ(record->done(), word(1, 0));
}

TEST_F(Record, stays_the_same_through_epochs_of_one_plan) {
  start();
  h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.generation = 1;
  h.attach(1, 2);
  const auto joined = h.declare(1, two_tensors());
  h.pump();
  ASSERT_TRUE(joined->result && joined->result->record);
  const Mapping other(take(*joined->result->record, 101), joined->result->record->size_bytes);
  EXPECT_EQ(other.done(), word(1, 0)) << "the survivor's record is that of the newcomer";
  h.keys[0] = h.keys.at(1);
  h.finish(0, 1);
  h.finish(1, 1);
  h.pump();
  EXPECT_EQ(record->done(), word(2, 0));
  EXPECT_EQ(other.done(), word(2, 0));
}

TEST_F(Record, of_another_plan_is_another) {
  start();
  h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("c")}));
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("c")}));
  h.pump();
  ASSERT_TRUE(a->result && b->result && b->result->record);
  const Mapping next(take(*b->result->record, 101), b->result->record->size_bytes);
  EXPECT_EQ(next.done(), 0u);
  h.finish(0, 1);
  h.finish(1, 1);
  h.pump();
  EXPECT_EQ(next.done(), word(2, 0));
  EXPECT_EQ(record->done(), word(1, 0));
}

TEST_F(Record, goes_with_its_job_and_its_tokens_with_it) {
  start();
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  EXPECT_TRUE(h.engine.detach(h.sessions.at(1)));
  h.pump();
  const auto late = h.engine.exchange_fd(answers[1]->result->record->token, 1000, 101, UniqueFd{});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::BadToken);
}

TEST_F(Record, is_fetched_once_by_its_own_process_however_late) {
  start();
  const std::string used = answers[0]->result->record->token;
  const std::string token = answers[1]->result->record->token;
  EXPECT_EQ(h.engine.exchange_fd(used, 1000, 100, UniqueFd{}).error().code, ErrorCode::BadToken);
  EXPECT_EQ(h.engine.exchange_fd(token, 1001, 101, UniqueFd{}).error().code, ErrorCode::BadToken);
  EXPECT_EQ(h.engine.exchange_fd(token, 1000, 100, UniqueFd{}).error().code, ErrorCode::BadToken);
  h.pass(Milliseconds(100'000));  // the rank was stopped
  EXPECT_TRUE(h.engine.exchange_fd(token, 1000, 101, UniqueFd{}));
  EXPECT_EQ(h.engine.exchange_fd(token, 1000, 101, UniqueFd{}).error().code, ErrorCode::BadToken);
}

TEST_F(Record, of_a_declaration_that_comes_again_has_a_fresh_token) {
  start();
  h.engine.connection_lost(h.sessions.at(0));
  h.attach(0, 2);
  const auto again = h.declare(0, two_tensors(), 1);
  ASSERT_TRUE(again->result && again->result->record) << "answered at once";
  EXPECT_NE(again->result->record->token, answers[0]->result->record->token);
  const Mapping same(take(*again->result->record, 100), again->result->record->size_bytes);
  h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  EXPECT_EQ(same.done(), word(1, 0));
}

TEST_F(Record, can_be_written_by_nobody_else) {
  start();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, record->fd.get(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::mprotect(const_cast<char*>(record->bytes), 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(::pwrite(record->fd.get(), "x", 1, 24), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(record->fd.get(), 0), -1);
  EXPECT_EQ(::ftruncate(record->fd.get(), 1 << 20), -1);
  EXPECT_EQ(::fallocate(record->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(record->fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_NE(::fcntl(record->fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(std::string(record->bytes, 8), "gsrecrd1");
}

TEST_F(Record, drops_a_text_that_does_not_fit) {
  const auto made = StepRecord::create("digest", LocalRanks::all(1), 5000);
  ASSERT_TRUE(made);
  const Mapping mapping((*made)->descriptor(), (*made)->size_bytes());
  EXPECT_EQ((*made)->room(), 8192u - 8);
  (*made)->keep(0, std::string((*made)->room(), 'a'));
  EXPECT_EQ(mapping.text(0).size(), (*made)->room());
  (*made)->keep(0, std::string((*made)->room() + 1, 'b'));
  EXPECT_EQ(mapping.text(0), "");
}

/// What the memory behind a descriptor takes.
std::uint64_t allocated(int fd) {
  struct stat found {};

  EXPECT_EQ(::fstat(fd, &found), 0);
  return static_cast<std::uint64_t>(found.st_blocks) * 512;
}

TEST_F(Record, has_pages_for_the_ranks_that_are_here_and_offsets_for_all) {
  const auto made = StepRecord::create("digest", LocalRanks::of(512, {3, 4, 5, 200}), 8192 - 8);
  ASSERT_TRUE(made);
  const UniqueFd fd = (*made)->descriptor();
  EXPECT_EQ((*made)->size_bytes(), 4096u + 512 * 8192);
  EXPECT_EQ(allocated(fd.get()), 4096u + 4 * 8192);
  for (const std::size_t rank : {3, 4, 5, 200}) {
    (*made)->keep(rank, "text of " + std::to_string(rank));
  }
  EXPECT_EQ(allocated(fd.get()), 4096u + 4 * 8192) << "no store needs a page";
  const Mapping mapping((*made)->descriptor(), (*made)->size_bytes());
  EXPECT_EQ(mapping.text(200), "text of 200");
  EXPECT_EQ(mapping.text(3), "text of 3");
  ASSERT_TRUE((*made)->make_room(LocalRanks::of(512, {3, 4, 5, 201})));
  EXPECT_EQ(allocated(fd.get()), 4096u + 5 * 8192) << "another rank took the seat of rank 200";
}

TEST_F(Record, too_large_for_the_machine_is_insufficient_memory) {
  const auto made = StepRecord::create("digest", LocalRanks::all(1 << 22), 1 << 20);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::InsufficientMemory);
  EXPECT_THAT(made.error().message, HasSubstr("4194304 ranks needs 4415226384384 bytes"));
}

TEST_F(Record, says_nothing_after_the_end_not_even_of_a_step_that_the_lane_still_finishes) {
  start();
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  pump_until<device::FinishStep>();
  const device::LaneReport finished = h.lane.answer_next();
  h.engine.halt();
  EXPECT_FALSE(h.engine.at_rest());
  EXPECT_EQ(h.lane.count<device::Abort>(), 1u);
  h.engine.on_lane_report(device::kHostLane, finished);
  h.pump();
  EXPECT_TRUE(h.engine.at_rest());
  EXPECT_EQ(record->begun(), word(1, 0));
  EXPECT_EQ(record->done(), 0u);
  EXPECT_EQ(a->calls + b->calls, 0) << "they go on with the successor";
}

TEST_F(Record, is_not_begun_by_calls_that_come_after_the_end) {
  start();
  const auto waiting = h.finish(0, 0);
  h.engine.halt();
  EXPECT_TRUE(h.engine.at_rest());
  const auto late = h.finish(1, 0);
  const auto repeated = h.finish(0, 0);
  h.ready(0, 0);
  h.ready(1, 0);
  const auto declared = h.declare(0, two_tensors(), 1);
  h.engine.process_exited(h.sessions.at(1));
  h.pump();
  EXPECT_EQ(record->begun(), 0u);
  EXPECT_EQ(waiting->calls + late->calls + repeated->calls + declared->calls, 0);
}

TEST_F(Record, is_closed_beside_a_lane_that_hangs) {
  start();
  h.finish(0, 0);
  h.finish(1, 0);
  h.engine.halt();
  h.pass(Milliseconds(2999));
  EXPECT_FALSE(h.engine.at_rest());
  h.pass(Milliseconds(1));
  EXPECT_TRUE(h.engine.at_rest()) << "it is waited for no longer than EngineDeadlines::lane";
  h.pump();
  EXPECT_EQ(record->done(), 0u);
}

TEST(NoRecord, without_an_encoder_none_is_made) {
  Harness h;
  h.attach(0, 1);
  const auto declared = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  ASSERT_TRUE(declared->result);
  EXPECT_FALSE(declared->result->record);
}

TEST(FirstEpoch, is_that_of_the_daemon) {
  EngineOptions options = with_record();
  options.first_epoch = 0x3fffffff;
  Harness h(options);
  h.start(2);
  EXPECT_EQ(h.keys.at(0).epoch, 0x3fffffffu);
  h.finish(0, 0);
  const auto done = h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(done->report);
  EXPECT_EQ(done->report->epoch, 0x3fffffffu);
  EXPECT_EQ(h.lane.finished.back().stamp, word(0x3fffffff, 0));
  h.engine.process_exited(h.sessions.at(1));
  EXPECT_EQ(h.attach(1, 2).epoch, 0x40000000u);
}

}  // namespace
}  // namespace gradsync::engine
