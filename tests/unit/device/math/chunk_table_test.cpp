// How parts are cut into chunks, and chunks grouped into tasks.

#include "device/math/chunk_table.hpp"

#include "device/math/chunk_math.hpp"
#include "unit/device/sharded_job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

using testing::ElementsAre;

ChunkTable table_of(const std::vector<ShardedTensor>& tensors, std::size_t threads = 2) {
  ShardedJob job(4);
  job.add_bucket(plan::DType::Float32, 1);
  for (const ShardedTensor& tensor : tensors) {
    job.add(tensor);
  }
  return make_chunk_table(job.layout, threads);
}

/// Where it begins in the input, runs, and elements of each.
std::vector<std::uint64_t> of(const Chunk& chunk) { return {chunk.source, chunk.runs, chunk.run}; }

TEST(ChunkTable, whole_tensors_are_cut_at_fixed_places) {
  const ChunkTable table = table_of({replicated({40'000}, {{0, 1}}), replicated({3}, {{0, 1}})});
  ASSERT_EQ(table.chunks.size(), 4U);
  EXPECT_THAT(of(table.chunks[1]), ElementsAre(16'384, 1, 16'384));
  EXPECT_THAT(of(table.chunks[2]), ElementsAre(32'768, 1, 7'232));
  EXPECT_EQ(table.chunks[2].first, 32'768U);
  EXPECT_THAT(of(table.chunks[3]), ElementsAre(0, 1, 3));
  EXPECT_THAT(table.work, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(table.tasks.size(), 2U);  // of 128 KiB
  EXPECT_EQ(table.of_tensor[0].end, 3U);
}

TEST(ChunkTable, a_bucket_is_some_tasks_for_each_thread_none_short_and_none_long) {
  const ShardedTensor tensor = replicated({1'000, 4'096}, {{0, 1}});  // 16 MB, a chunk is 64 KiB
  const auto tasks_for = [&](std::size_t threads) { return table_of({tensor}, threads).tasks.size(); };
  EXPECT_EQ(tasks_for(1), 32U);     // of 512 KiB
  EXPECT_EQ(tasks_for(12), 42U);    // of a quarter of a thread's share, in whole chunks
  EXPECT_EQ(tasks_for(64), 63U);    // of 256 KiB
  EXPECT_EQ(tasks_for(100), 84U);   // of a thread's share, in whole chunks
  EXPECT_EQ(tasks_for(200), 125U);  // of 128 KiB
  const std::vector<Chunk> few = table_of({tensor}, 1).chunks;
  const std::vector<Chunk> many = table_of({tensor}, 64).chunks;
  ASSERT_EQ(few.size(), many.size());
  for (std::size_t at = 0; at < few.size(); ++at) {
    EXPECT_EQ(of(few[at]), of(many[at]));
  }
}

TEST(ChunkTable, runs_are_taken_several_at_a_time_and_not_across_the_innermost_stride) {
  ShardedTensor tensor;
  tensor.shape = {2, 30, 2'000};
  tensor.parts.push_back({{{0, 0, 1'000}, {2, 20, 2'000}}, {sum_to({0, 1}, {0})}});
  const ChunkTable table = table_of({tensor});
  ASSERT_EQ(table.chunks.size(), 4U);
  EXPECT_THAT(of(table.chunks[0]), ElementsAre(1'000, 16, 1'000));
  EXPECT_THAT(of(table.chunks[1]), ElementsAre(33'000, 4, 1'000));
  EXPECT_THAT(of(table.chunks[2]), ElementsAre(61'000, 16, 1'000));
  EXPECT_THAT(of(table.chunks[3]), ElementsAre(93'000, 4, 1'000));
  EXPECT_EQ(table.chunks[3].first, 36'000U);
}

TEST(ChunkTable, a_run_longer_than_a_chunk_is_cut) {
  const ChunkTable table = table_of({scattered({2, 40'000}, 1, {20'000, 20'000}, {0, 1})});
  ASSERT_EQ(table.chunks.size(), 8U);
  EXPECT_THAT(of(table.chunks[4]), ElementsAre(20'000, 1, 16'384));
  EXPECT_THAT(of(table.chunks[5]), ElementsAre(36'384, 1, 3'616));
  EXPECT_THAT(of(table.chunks[6]), ElementsAre(60'000, 1, 16'384));
  EXPECT_EQ(table.chunks[6].first, 20'000U);
}

TEST(ChunkTable, parts_that_share_rows_are_worked_on_together) {
  const ChunkTable table = table_of({scattered({40'000, 7}, 1, {2, 2, 2, 1}, {0, 1, 2, 3})});
  ASSERT_EQ(table.chunks.size(), 20U);  // five stretches of 8192 rows
  EXPECT_THAT(of(table.chunks[1]), ElementsAre(8'192 * 7, 8'192, 2));
  EXPECT_THAT(of(table.chunks[16]), ElementsAre(8'192 * 7 + 6, 8'192, 1));
  for (std::uint32_t at = 0; at < 20; ++at) {
    EXPECT_EQ(table.work[at], at % 4 * 5 + at / 4);
  }
  ASSERT_EQ(table.tasks.size(), 3U);  // of two stretches, 229 kB each
  for (const ChunkRange& task : table.tasks) {
    EXPECT_EQ((task.end - task.begin) % 4, 0U);
  }
}

TEST(ChunkTable, every_element_is_in_one_chunk_and_every_chunk_in_one_task) {
  const ChunkTable table = table_of(
      {scattered({300, 70, 11}, 2, {4, 4, 3, 0}, {0, 1, 2, 3}),
       scattered({0, 5}, 0, {0}, {0}),
       scattered({90'001}, 0, {30'001, 30'000, 30'000}, {0, 1, 2}),
       replicated({50'000}, {{0, 1}, {2, 3}})}
  );
  std::vector<std::uint64_t> covered;
  for (const Chunk& chunk : table.chunks) {
    covered.resize(std::max<std::size_t>(covered.size(), chunk.part + 1));
    EXPECT_EQ(chunk.first, covered[chunk.part]);
    EXPECT_LE(chunk.count(), kChunkElements);
    covered[chunk.part] += chunk.count();
  }
  EXPECT_THAT(covered, ElementsAre(84'000, 84'000, 63'000, 0, 30'001, 30'000, 30'000, 50'000));
  std::vector<std::uint32_t> work = table.work;
  std::sort(work.begin(), work.end());
  std::uint32_t next = 0;
  for (const ChunkRange& task : table.tasks) {
    EXPECT_EQ(task.begin, next);
    next = task.end;
  }
  EXPECT_EQ(next, table.chunks.size());
  for (std::uint32_t i = 0; i < work.size(); ++i) {
    EXPECT_EQ(work[i], i);
  }
}

}  // namespace
}  // namespace gradsync::device
