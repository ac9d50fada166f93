// A GPU's worker over memory that another process owns: this one. The memory is emulated; the worker, its protocol and
// the kernels are not.

#include "conformance/exported_memory.hpp"

#include "conformance/lane_kinds.hpp"
#include "device/gpu/kernel_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#ifndef __SANITIZE_THREAD__

namespace gradsync::device {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPage = 4096;

class ExportedMemoryTest : public testing::Test {
 protected:
  void start(ProcessLaneOptions options = worker_options("gpu_worker")) {
    auto lane = std::make_unique<ProcessLane>(std::move(options), run_.sink());
    lane_ = lane.get();
    run_.use(std::move(lane));
  }

  [[nodiscard]] int mappings() const { return mappings_of(lane_->worker_pid()); }

  void map(BufferId buffer, std::uint64_t bytes, ExportedMemory memory) {
    run_.lane().submit(MapBuffer{buffer, UniqueFd(), bytes, std::move(memory)});
  }

  /// The refusal; nothing is mapped by it.
  Failed refused(std::uint64_t bytes, ExportedMemory memory) {
    const int before = mappings();
    map(99, bytes, std::move(memory));
    const Failed failed = run_.expect<Failed>();
    EXPECT_EQ(mappings(), before);
    EXPECT_FALSE(failed.lane_lost);
    return failed;
  }

  LaneRun run_;
  ProcessLane* lane_ = nullptr;
};

/// The arenas of all ranks in one allocation, one behind the other.
TEST_F(ExportedMemoryTest, is_reduced_to_the_bits_of_arenas) {
  const ShardedJob job = mixed_job(3);
  LaneRun host(LaneKind::Host);
  host.load(job);
  start();
  const std::uint64_t each = (job.arenas[0].size() + kPage - 1) / kPage * kPage;
  const ExportedAllocation memory(each * 3);
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    std::memcpy(memory.data() + rank * each, job.arenas[rank].data(), job.arenas[rank].size());
    map(rank + 1, job.arenas[rank].size(), memory.exported(1, rank * each));
    run_.expect<Mapped>();
  }
  EXPECT_EQ(mappings(), 1) << "an allocation is mapped once";
  run_.lane().submit(LoadPlan{LaneRun::kPlan, job.layout});
  run_.expect<Loaded>();
  const auto step = [&](LaneRun& run) {
    for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
      run.lane().submit(ReduceBucket{LaneRun::kPlan, 1, bucket, {}, true, false});
      run.expect<Reduced>();
    }
    const std::vector<plan::ClipRule> rules(job.layout.clip_groups, strict_rule(0.5));
    run.lane().submit(finish_of(LaneRun::kPlan, 1, rules));
    return run.expect<Finished>();
  };
  const Finished of_host = step(host);
  const Finished of_gpu = step(run_);
  EXPECT_EQ(of_gpu.math.norm, of_host.math.norm);
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(std::memcmp(memory.data() + rank * each, host.arenas[rank].data(), job.arenas[rank].size()), 0)
        << "rank " << rank;
  }
  run_.lane().submit(UnloadPlan{LaneRun::kPlan});
  run_.expect<Unloaded>();
  for (BufferId buffer = 1; buffer <= 3; ++buffer) {
    EXPECT_EQ(mappings(), 1);
    run_.lane().submit(UnmapBuffer{buffer});
    run_.expect<Unmapped>();
  }
  EXPECT_EQ(mappings(), 0) << "it is closed with the last buffer in it";
}

TEST_F(ExportedMemoryTest, each_result_of_cuda_is_named_with_what_to_do) {
  start();
  const ExportedAllocation memory(kPage);
  for (const int code : {1, 2, 35, 46, 100, 201, 205, 208, 217, 400, 711, 801, 805, 809}) {
    const Failed failed = refused(kPage, memory.exported(1, 0, code));
    EXPECT_THAT(failed.message, HasSubstr("opening a memory handle: "));
    EXPECT_THAT(failed.message, HasSubstr("(CUDA error " + std::to_string(code) + ")"));
    EXPECT_EQ(failed.hint, hint_for_cuda_error(code));
    EXPECT_FALSE(failed.hint.empty()) << code;
  }
  EXPECT_EQ(refused(kPage, memory.exported(1, 0, 999)).hint, "") << "nothing is known of it";
}

TEST_F(ExportedMemoryTest, sizes_that_are_not_true_are_refused) {
  start();
  const ExportedAllocation memory(2 * kPage);
  const auto changed = [&](auto change) {
    ExportedMemory exported = memory.exported(1);
    change(exported);
    return exported;
  };
  const auto larger = changed([](ExportedMemory& exported) { exported.allocation_bytes = 3 * kPage; });
  EXPECT_THAT(refused(kPage, larger).message, HasSubstr("and 8.0 KiB of it can be mapped"));
  EXPECT_THAT(refused(kPage, memory.exported(1, 8)).message, HasSubstr("begins 8 bytes into its allocation"));
  EXPECT_THAT(refused(kPage, memory.exported(1, 2 * kPage)).message, HasSubstr("reach beyond the allocation"));
  EXPECT_THAT(refused(3 * kPage, memory.exported(1)).message, HasSubstr("reach beyond the allocation"));
  const std::uint64_t last = ~std::uint64_t{0};
  EXPECT_THAT(refused(last, memory.exported(1, 16)).message, HasSubstr("reach beyond")) << "no overflow";
  EXPECT_THAT(refused(kPage, memory.exported(1, last - 15)).message, HasSubstr("reach beyond"));
  const auto short_handle = changed([](ExportedMemory& exported) { exported.handle.pop_back(); });
  EXPECT_THAT(refused(kPage, short_handle).message, HasSubstr("a handle has 64 bytes, this one 63"));
  const auto garbage = changed([](ExportedMemory& exported) { exported.handle.assign(64, 'x'); });
  EXPECT_THAT(refused(kPage, garbage).message, HasSubstr("(CUDA error 1)"));
  map(1, kPage, memory.exported(1, kPage));
  run_.expect<Mapped>();
}

/// An owner that frees memory and allocates other memory may export it by the same bytes.
TEST_F(ExportedMemoryTest, equal_handles_of_other_allocations_are_other_memory) {
  start();
  ShardedJob job = pair_job(100);
  std::mt19937_64 random(5);
  job.fill(random);
  const ExportedAllocation first(kPage);
  const ExportedMemory before = first.exported(1);
  map(1, job.arenas[0].size(), before);
  run_.expect<Mapped>();
  const ExportedAllocation other(kPage);
  ASSERT_EQ(::dup3(other.descriptor(), first.descriptor(), O_CLOEXEC), first.descriptor());
  ExportedMemory after = before;
  after.allocation = 2;
  map(2, job.arenas[1].size(), after);
  run_.expect<Mapped>();
  EXPECT_EQ(mappings(), 2);
  std::memcpy(first.data(), job.arenas[0].data(), job.arenas[0].size());
  std::memcpy(other.data(), job.arenas[1].data(), job.arenas[1].size());
  run_.lane().submit(LoadPlan{LaneRun::kPlan, job.layout});
  run_.expect<Loaded>();
  run_.lane().submit(ReduceBucket{LaneRun::kPlan, 1, 0, {}, false, false});
  run_.expect<Reduced>();
  EXPECT_NE(std::memcmp(first.data(), job.arenas[0].data(), job.arenas[0].size()), 0) << "the sum is there";
  EXPECT_NE(std::memcmp(other.data(), job.arenas[1].data(), job.arenas[1].size()), 0) << "and there";
}

TEST_F(ExportedMemoryTest, is_mapped_again_after_it_was_closed) {
  start();
  const ExportedAllocation memory(kPage);
  for (int round = 0; round < 3; ++round) {
    map(1, kPage, memory.exported(1));
    run_.expect<Mapped>();
    EXPECT_EQ(mappings(), 1);
    run_.lane().submit(UnmapBuffer{1});
    run_.expect<Unmapped>();
    EXPECT_EQ(mappings(), 0);
  }
}

TEST_F(ExportedMemoryTest, a_worker_that_does_not_map_in_time_is_killed) {
  ProcessLaneOptions options = worker_options("gpu_worker");
  options.import_deadline = Milliseconds(200);
  start(options);
  EXPECT_THAT(std::get<Failed>(run_.ask(UnloadPlan{1})).message, HasSubstr("plan 1 is not loaded"));
  const pid_t worker = lane_->worker_pid();
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  const ExportedAllocation memory(kPage);
  map(1, kPage, memory.exported(1));
  const Failed failed = run_.expect<Failed>();
  EXPECT_THAT(failed.message, HasSubstr("did not answer the mapping of a buffer within 200 ms"));
  EXPECT_TRUE(failed.lane_lost);
  EXPECT_EQ(failed.buffer, 1U);
  EXPECT_EQ(::kill(worker, 0), -1);
}

/// The pattern that a trainer writes, and what has to be there when a probe has written its complement.
struct Pattern {
  static constexpr std::uint64_t kBytes = 64;

  explicit Pattern(std::byte* place) : place_(place) {
    for (std::uint64_t i = 0; i < kBytes; ++i) {
      before[i] = static_cast<char>(3 * i + 1);
      after[i] = static_cast<char>(~before[i]);
    }
    std::memcpy(place, before.data(), kBytes);
  }

  [[nodiscard]] std::string now() const { return {reinterpret_cast<const char*>(place_), kBytes}; }

  std::string before = std::string(kBytes, '\0');
  std::string after = before;

 private:
  std::byte* place_;
};

TEST_F(ExportedMemoryTest, a_probe_reads_what_its_owner_wrote_and_writes_what_its_owner_reads) {
  start();
  const ExportedAllocation memory(2 * kPage);
  const Pattern pattern(memory.data() + kPage);
  run_.lane().submit(ProbeMemory{7, Pattern::kBytes, memory.exported(1, kPage)});
  const Probed probed = run_.expect<Probed>();
  EXPECT_EQ(probed.buffer, 7U);
  EXPECT_EQ(probed.probe.read, pattern.before);
  EXPECT_EQ(pattern.now(), pattern.after);
  EXPECT_EQ(probed.probe.mapped_bytes, 2 * kPage);
  EXPECT_GT(probed.probe.open_s, 0);
  EXPECT_GT(probed.probe.copy_s, 0);
  EXPECT_GT(probed.probe.close_s, 0);
  EXPECT_EQ(memory.data()[kPage + Pattern::kBytes], std::byte{0}) << "nothing beside it is written";
  EXPECT_EQ(memory.data()[kPage - 1], std::byte{0});
  EXPECT_EQ(mappings(), 0) << "it is closed";
}

TEST_F(ExportedMemoryTest, a_probe_of_what_is_mapped_leaves_that_mapped) {
  start();
  const ExportedAllocation memory(kPage);
  map(1, kPage, memory.exported(1));
  run_.expect<Mapped>();
  const Pattern pattern(memory.data());
  run_.lane().submit(ProbeMemory{7, Pattern::kBytes, memory.exported(2)});
  EXPECT_EQ(run_.expect<Probed>().probe.read, pattern.before);
  EXPECT_EQ(mappings(), 1);
  run_.lane().submit(UnmapBuffer{1});
  run_.expect<Unmapped>();
  EXPECT_EQ(mappings(), 0);
}

TEST_F(ExportedMemoryTest, a_probe_that_is_refused_says_why_writes_nothing_and_leaves_nothing_open) {
  start();
  const ExportedAllocation memory(kPage);
  const Pattern pattern(memory.data());
  const auto refusal = [&](ExportedMemory exported, std::uint64_t bytes = Pattern::kBytes) {
    run_.lane().submit(ProbeMemory{7, bytes, std::move(exported)});
    Failed failed = run_.expect<Failed>();
    EXPECT_EQ(failed.buffer, 7U);
    EXPECT_FALSE(failed.lane_lost);
    EXPECT_FALSE(failed.hint.empty());
    EXPECT_EQ(mappings(), 0);
    EXPECT_EQ(pattern.now(), pattern.before);
    return failed.message;
  };
  for (const int code : {1, 46, 201, 400}) {
    EXPECT_THAT(refusal(memory.exported(1, 0, code)), HasSubstr("(CUDA error " + std::to_string(code) + ")"));
  }
  ExportedMemory larger = memory.exported(1);
  larger.allocation_bytes = 2 * kPage;
  EXPECT_THAT(refusal(larger), HasSubstr("the allocation has 8.0 KiB, and 4.0 KiB of it can be mapped"));
  EXPECT_THAT(refusal(memory.exported(1, kPage)), HasSubstr("reach beyond the allocation"));
  EXPECT_THAT(refusal(memory.exported(1, 8)), HasSubstr("not at a multiple of 16"));
}

TEST_F(ExportedMemoryTest, a_worker_that_does_not_answer_a_probe_in_time_is_killed) {
  ProcessLaneOptions options = worker_options("gpu_worker");
  options.import_deadline = Milliseconds(200);
  start(options);
  EXPECT_THAT(std::get<Failed>(run_.ask(UnloadPlan{1})).message, HasSubstr("plan 1 is not loaded"));
  ASSERT_EQ(::kill(lane_->worker_pid(), SIGSTOP), 0);
  const ExportedAllocation memory(kPage);
  run_.lane().submit(ProbeMemory{7, Pattern::kBytes, memory.exported(1)});
  const Failed failed = run_.expect<Failed>();
  EXPECT_THAT(failed.message, HasSubstr("did not answer the probe of another process's memory within 200 ms"));
  EXPECT_TRUE(failed.lane_lost);
  EXPECT_EQ(failed.buffer, 7U);
}

TEST_F(ExportedMemoryTest, holds_no_table_of_statistics) {
  start();
  const ExportedAllocation memory(kPage);
  map(1, kPage, memory.exported(1));
  run_.expect<Mapped>();
  StatsPlan layout;
  layout.rank_buffers = {1};
  run_.lane().submit(LoadStats{3, layout});
  const Failed failed = run_.expect<Failed>();
  EXPECT_THAT(failed.message, HasSubstr("buffer 1 of rank 0 lies on a GPU"));
  EXPECT_THAT(failed.hint, HasSubstr("buffers.allocate"));
}

TEST(ExportedMemoryOnTheHostLane, is_refused) {
  LaneRun run(LaneKind::Host);
  const ExportedAllocation memory(kPage);
  run.lane().submit(MapBuffer{1, UniqueFd(), kPage, memory.exported(1)});
  EXPECT_THAT(run.expect<Failed>().message, HasSubstr("maps no memory of a GPU"));
  run.lane().submit(ProbeMemory{2, 16, memory.exported(1)});
  const Failed failed = run.expect<Failed>();
  EXPECT_EQ(failed.buffer, 2U);
  EXPECT_THAT(failed.message, HasSubstr("maps no memory of a GPU"));
}

}  // namespace
}  // namespace gradsync::device

#endif
