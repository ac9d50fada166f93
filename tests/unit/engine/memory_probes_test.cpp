// Trials of memory of GPUs: what the engine asks of a lane, and what it answers.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_gpus.hpp"
#include "fakes/recording_lane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

struct ProbeAnswer {
  int calls = 0;
  device::Probe probe;
  Error error;
};

class MemoryProbesTest : public ::testing::Test {
 protected:
  MemoryProbesTest() { engine.advance(kBegin); }

  static ExportedBuffer exported(const std::string& gpu = fakes::RecordingGpus::kGpu) {
    return {gpu, std::string(64, 'h'), 0, 8192, 4096, 3, 0};
  }

  std::shared_ptr<ProbeAnswer> ask(ExportedBuffer what = exported(), const Holder& holder = {1000, 100}) {
    auto answer = std::make_shared<ProbeAnswer>();
    engine.probe_memory(holder, std::move(what), [answer](const Result<device::Probe>& result) {
      ++answer->calls;
      if (result) {
        answer->probe = *result;
      } else {
        answer->error = result.error();
      }
    });
    return answer;
  }

  Error refused(const std::function<void(ExportedBuffer&)>& change) {
    ExportedBuffer what = exported();
    change(what);
    const auto answer = ask(std::move(what));
    EXPECT_EQ(answer->calls, 1) << "at once";
    EXPECT_TRUE(gpus.lanes.empty()) << "no worker was asked";
    return answer->error;
  }

  void answer_all() {
    while (gpus.answer_next([this](device::LaneId id, device::LaneReport report) {
      engine.on_lane_report(id, std::move(report));
    })) {
    }
  }

  static constexpr TimePoint kBegin{std::chrono::seconds(1000)};

  fakes::RecordingLane host;
  fakes::RecordingGpus gpus;
  fakes::InlinePlanner planner;
  prometheus::Registry registry;
  EngineMetrics metrics{registry};
  Engine engine{EngineOptions{}, Lanes(host, &gpus), planner, [](const Event&) {}, metrics};
};

TEST_F(MemoryProbesTest, need_no_rank_and_are_answered_with_what_the_worker_found) {
  const auto answer = ask();
  EXPECT_EQ(answer->calls, 0);
  const auto& command = std::get<device::ProbeMemory>(gpus.lanes.at(fakes::kFirstGpuLane)->commands.front());
  EXPECT_EQ(command.size_bytes, 3u);
  EXPECT_EQ(command.exported.handle, std::string(64, 'h'));
  EXPECT_EQ(command.exported.allocation_bytes, 8192u);
  EXPECT_EQ(command.exported.offset, 4096u);
  answer_all();
  ASSERT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->probe.read, std::string("\0\1\2", 3));
  EXPECT_EQ(answer->probe.mapped_bytes, 8192u);
  EXPECT_TRUE(gpus.lanes.at(fakes::kFirstGpuLane)->commands.empty()) << "nothing is kept that had to be closed";
}

TEST_F(MemoryProbesTest, are_checked_before_a_worker_is_asked) {
  EXPECT_EQ(refused([](ExportedBuffer& what) { what.handle.pop_back(); }).path, "handle");
  EXPECT_EQ(refused([](ExportedBuffer& what) { what.offset = 8; }).path, "offset");
  EXPECT_EQ(refused([](ExportedBuffer& what) { what.offset = 8192; }).path, "bytes");
  EXPECT_EQ(refused([](ExportedBuffer& what) { what.gpu = "GPU-other"; }).code, ErrorCode::NoGpu);
}

TEST_F(MemoryProbesTest, each_have_a_number_that_no_buffer_has) {
  (void)ask();
  (void)ask();
  auto& commands = gpus.lanes.at(fakes::kFirstGpuLane)->commands;
  const auto& first = std::get<device::ProbeMemory>(commands[0]);
  const auto& second = std::get<device::ProbeMemory>(commands[1]);
  EXPECT_NE(first.buffer, second.buffer);
  EXPECT_NE(first.exported.allocation, second.exported.allocation);
}

TEST_F(MemoryProbesTest, that_a_worker_refuses_have_its_reason_and_hint) {
  const auto answer = ask();
  gpus.lanes.at(fakes::kFirstGpuLane)->refuse_maps = true;
  answer_all();
  ASSERT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->error.code, ErrorCode::ImportRefused);
  EXPECT_EQ(answer->error.message, "scripted refusal");
  EXPECT_EQ(answer->error.hint, "scripted hint");
}

TEST_F(MemoryProbesTest, that_are_lost_with_their_worker_are_answered_and_the_next_gets_another) {
  const auto first = ask();
  const auto second = ask();
  gpus.lanes.at(fakes::kFirstGpuLane)->lost = true;
  answer_all();
  for (const auto& answer : {first, second}) {
    ASSERT_EQ(answer->calls, 1);
    EXPECT_EQ(answer->error.code, ErrorCode::ImportRefused);
    EXPECT_THAT(answer->error.message, HasSubstr("ended by signal 9"));
    EXPECT_THAT(answer->error.hint, HasSubstr("another worker"));
  }
  EXPECT_EQ(gpus.stopped, std::vector<device::LaneId>{fakes::kFirstGpuLane});
  const auto third = ask();
  answer_all();
  EXPECT_EQ(third->calls, 1);
  EXPECT_EQ(third->error.message, "");
}

TEST_F(MemoryProbesTest, keep_their_worker_until_they_are_answered_and_30_s_more) {
  const auto answer = ask();
  engine.advance(kBegin + std::chrono::seconds(100));
  EXPECT_TRUE(gpus.stopped.empty());
  answer_all();
  engine.advance(kBegin + std::chrono::seconds(129));
  EXPECT_TRUE(gpus.stopped.empty()) << "a registration may follow";
  engine.advance(kBegin + std::chrono::seconds(131));
  EXPECT_EQ(gpus.stopped.size(), 1u);
}

TEST_F(MemoryProbesTest, of_one_process_and_of_one_uid_are_bounded_while_they_wait) {
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(ask()->calls, 0);
  }
  EXPECT_EQ(ask()->error.code, ErrorCode::LimitExceeded);
  EXPECT_THAT(ask()->error.message, HasSubstr("16 probes of process 100 wait"));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(ask(exported(), {1000, 101})->calls, 0);
  }
  EXPECT_THAT(ask(exported(), {1000, 102})->error.message, HasSubstr("of uid 1000"));
  EXPECT_EQ(ask(exported(), {1001, 103})->calls, 0) << "another user is served";
  answer_all();
  EXPECT_EQ(ask()->calls, 0) << "those that were answered count no more";
}

TEST_F(MemoryProbesTest, are_refused_while_the_daemon_drains_and_not_answered_after_a_halt) {
  const auto before = ask();
  engine.drain();
  EXPECT_EQ(ask()->error.code, ErrorCode::Draining);
  engine.halt();
  answer_all();
  EXPECT_EQ(before->calls, 0);
  EXPECT_EQ(ask()->calls, 0);
}

}  // namespace
}  // namespace gradsync::engine
