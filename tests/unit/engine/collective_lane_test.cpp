// Arenas on the lane of a worker that has NCCL: mapped there once and beside the host's lane, and told of another one
// where the worker was lost.

#include "engine/buffer_table.hpp"
#include "fakes/recording_gpus.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <variant>

namespace gradsync::engine {
namespace {

constexpr SessionId kSession = 1;
constexpr std::uint64_t kBytes = 4096;

class CollectiveLane : public testing::Test {
 protected:
  CollectiveLane() : buffer(table.allocate(kSession, 1000, 7, kBytes, device::kHostLane, {})->buffer) {}

  template <typename Command>
  static std::size_t count(const fakes::RecordingLane& lane) {
    std::size_t found = 0;
    for (const device::LaneCommand& command : lane.commands) {
      found += std::holds_alternative<Command>(command) ? 1 : 0;
    }
    return found;
  }

  /// A plan uses the buffer on this lane.
  void use_on(device::LaneId lane) {
    table.use(buffer);
    table.map_on(buffer, lane);
  }

  fakes::RecordingLane host;
  fakes::RecordingGpus gpus;
  Lanes lanes{host, &gpus};
  EngineOptions options;
  BufferTable table{options, lanes};
  std::uint64_t buffer;
};

TEST_F(CollectiveLane, is_started_once_and_another_one_takes_the_place_of_one_that_was_lost) {
  const device::LaneId first = *lanes.of_cpu_collectives();
  EXPECT_EQ(*lanes.of_cpu_collectives(), first);
  EXPECT_TRUE(lanes.lose(first));
  EXPECT_TRUE(lanes.is_lost(first));
  const device::LaneId second = *lanes.of_cpu_collectives();
  EXPECT_NE(second, first);
  EXPECT_FALSE(lanes.is_lost(second));
  EXPECT_NE(*lanes.of_gpu(fakes::RecordingGpus::kGpu), second) << "it is no lane of a GPU";
}

TEST_F(CollectiveLane, ends_when_no_buffer_is_mapped_there_any_more) {
  const device::LaneId lane = *lanes.of_cpu_collectives();
  use_on(lane);
  lanes.end_unused([this](device::LaneId id) { return table.on_lane(id); }, {}, Milliseconds(0));
  EXPECT_TRUE(gpus.stopped.empty());
  table.unuse(buffer);
  EXPECT_TRUE(table.release(kSession, buffer));
  EXPECT_EQ(count<device::UnmapBuffer>(*gpus.lanes.at(lane)), 1U);
  EXPECT_EQ(count<device::UnmapBuffer>(host), 1U) << "it punches out the pages";
  lanes.end_unused([this](device::LaneId id) { return table.on_lane(id); }, {}, Milliseconds(0));
  EXPECT_EQ(gpus.stopped, std::vector{lane});
}

TEST_F(CollectiveLane, maps_an_arena_once_and_the_host_does_not) {
  const device::LaneId lane = *lanes.of_cpu_collectives();
  use_on(lane);
  table.unuse(buffer);
  use_on(lane);
  ASSERT_EQ(count<device::MapBuffer>(*gpus.lanes.at(lane)), 1U);
  EXPECT_TRUE(std::get<device::MapBuffer>(gpus.lanes.at(lane)->commands.front()).fd.valid());
  EXPECT_EQ(count<device::MapBuffer>(host), 0U);
  table.map_on(buffer, device::kHostLane);
  EXPECT_EQ(count<device::MapBuffer>(host), 1U) << "a plan of the host's lane may follow";
}

TEST_F(CollectiveLane, that_was_lost_keeps_its_arenas_until_the_plan_is_unloaded) {
  const device::LaneId lane = *lanes.of_cpu_collectives();
  use_on(lane);
  EXPECT_TRUE(lanes.lose(lane));
  table.lose_lane(lane);
  EXPECT_TRUE(table.on_lane(lane)) << "the plan still names it";
  table.unuse(buffer);
  EXPECT_FALSE(table.on_lane(lane));
  const device::LaneId other = *lanes.of_cpu_collectives();
  use_on(other);
  EXPECT_EQ(count<device::MapBuffer>(*gpus.lanes.at(other)), 1U);
}

TEST_F(CollectiveLane, that_was_lost_has_no_arena_that_no_plan_uses) {
  const device::LaneId lane = *lanes.of_cpu_collectives();
  use_on(lane);
  table.unuse(buffer);
  EXPECT_TRUE(lanes.lose(lane));
  table.lose_lane(lane);
  EXPECT_FALSE(table.on_lane(lane));
}

TEST_F(CollectiveLane, that_could_not_map_an_arena_is_asked_again_by_the_next_plan) {
  const device::LaneId lane = *lanes.of_cpu_collectives();
  use_on(lane);
  device::Failed failed;
  failed.buffer = buffer;
  table.on_map_failed(lane, failed);
  EXPECT_FALSE(table.on_lane(lane));
  table.unuse(buffer);
  use_on(lane);
  EXPECT_EQ(count<device::MapBuffer>(*gpus.lanes.at(lane)), 2U);
}

}  // namespace
}  // namespace gradsync::engine
