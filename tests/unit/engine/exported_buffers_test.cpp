// Memory of GPUs, which ranks register: what the engine asks of a lane, and what it answers.

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
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What a registration was answered.
struct Registered {
  int calls = 0;
  std::uint64_t buffer = 0;
  Error error;
};

class ExportedBuffers : public ::testing::Test {
 protected:
  ExportedBuffers() { engine.advance(TimePoint{std::chrono::seconds(1000)}); }

  SessionId attach(std::int64_t rank = 0, std::int64_t world_size = 1, const std::string& client = "client") {
    return attach_to("job", rank, world_size, client);
  }

  SessionId attach_to(
      const std::string& job, std::int64_t rank = 0, std::int64_t world_size = 1, const std::string& client = "client"
  ) {
    AttachRequest request;
    request.job = job;
    request.uid = 1000;
    request.pid = 100 + rank;
    request.client_id = client + std::to_string(rank);
    request.rank = rank;
    request.world_size = world_size;
    request.meshes = {{"default", {{"dp", world_size}}, {}}};
    return engine.attach(request)->session;
  }

  static ExportedBuffer exported(std::uint64_t base = 0x7000, std::uint64_t generation = 1, std::uint64_t offset = 0) {
    return {fakes::RecordingGpus::kGpu, std::string(64, 'h'), base, 8192, offset, 4096, generation};
  }

  std::shared_ptr<Registered> ask(SessionId session, ExportedBuffer what) {
    auto registered = std::make_shared<Registered>();
    engine.register_buffer(session, std::move(what), [registered](const Result<RegisteredBuffer>& result) {
      ++registered->calls;
      if (result) {
        registered->buffer = result->buffer;
      } else {
        registered->error = result.error();
      }
    });
    return registered;
  }

  Error refused(SessionId session, const std::function<void(ExportedBuffer&)>& change) {
    ExportedBuffer what = exported();
    change(what);
    const auto answer = ask(session, std::move(what));
    EXPECT_EQ(answer->calls, 1) << "at once";
    EXPECT_TRUE(gpus.lanes.empty()) << "no worker was asked";
    return answer->error;
  }

  /// Registered, and mapped by its lane.
  std::uint64_t mapped(SessionId session, ExportedBuffer what) {
    const auto answer = ask(session, std::move(what));
    answer_all();
    EXPECT_EQ(answer->calls, 1);
    EXPECT_NE(answer->buffer, 0u) << answer->error.message;
    return answer->buffer;
  }

  void answer_all() {
    while (gpus.answer_next([this](device::LaneId id, device::LaneReport report) {
      engine.on_lane_report(id, std::move(report));
    })) {
    }
    host.answer_all([this](device::LaneReport report) { engine.on_lane_report(device::kHostLane, std::move(report)); });
  }

  device::MapBuffer last_map(device::LaneId lane = fakes::kFirstGpuLane) {
    auto command = std::get<device::MapBuffer>(std::move(gpus.lanes.at(lane)->commands.back()));
    gpus.lanes.at(lane)->commands.pop_back();
    engine.on_lane_report(lane, device::Mapped{command.buffer});
    return command;
  }

  std::uint64_t allocation_of(SessionId session, ExportedBuffer what) {
    (void)ask(session, std::move(what));
    return last_map().exported->allocation;
  }

  struct Declared {
    int calls = 0;
    Error error;
    StepKey key;
  };

  /// A tensor of each dtype, which has a bucket of its own.
  std::shared_ptr<Declared> declare(
      SessionId session, std::uint64_t buffer, const std::vector<plan::DType>& dtypes = {plan::DType::Float32}
  ) {
    DeclareRequest request;
    request.declaration.options.clip = {{"all", {1.0, plan::ZeroRule::Refuse}}};
    for (const plan::DType dtype : dtypes) {
      plan::TensorDeclaration& tensor = request.declaration.tensors.own().emplace_back();
      tensor.name = "weight" + std::to_string(request.declaration.tensors.size());
      tensor.shape = tensor.local_shape = {8};
      tensor.dtype = dtype;
      tensor.mesh = "default";
      tensor.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Mean, std::nullopt}}};
    }
    request.buffer = buffer;
    auto declared = std::make_shared<Declared>();
    engine.declare(session, std::move(request), [declared](const Result<DeclareResult>& result) {
      ++declared->calls;
      if (result) {
        declared->key = {result->epoch, result->attempt};
      } else {
        declared->error = result.error();
      }
    });
    while (!planner.requests.empty()) {
      engine.on_plan(planner.plan_next());
    }
    return declared;
  }

  static device::Failed lost(device::BufferId buffer = 0, device::PlanId plan = 0, device::Tag tag = 0) {
    device::Failed failed;
    failed.buffer = buffer;
    failed.plan = plan;
    failed.tag = tag;
    failed.message = "the worker of the lane (pid 7) ended by signal 9";
    failed.lane_lost = true;
    return failed;
  }

  fakes::RecordingLane host;
  fakes::RecordingGpus gpus;
  fakes::InlinePlanner planner;
  prometheus::Registry registry;
  EngineMetrics metrics{registry};
  Engine engine{EngineOptions{}, Lanes(host, &gpus), planner, [](const Event&) {}, metrics};
};

TEST_F(ExportedBuffers, are_answered_when_they_are_mapped_and_then_used_by_a_plan) {
  const SessionId session = attach();
  const auto answer = ask(session, exported(0x7000, 3, 64));
  EXPECT_EQ(answer->calls, 0);
  const auto& map = std::get<device::MapBuffer>(gpus.lanes.at(fakes::kFirstGpuLane)->commands.front());
  EXPECT_FALSE(map.fd.valid());
  EXPECT_EQ(map.size_bytes, 4096u);
  EXPECT_EQ(map.exported->handle, std::string(64, 'h'));
  EXPECT_EQ(map.exported->allocation_bytes, 8192u);
  EXPECT_EQ(map.exported->offset, 64u);
  answer_all();
  ASSERT_EQ(answer->calls, 1);
  const auto declared = declare(session, answer->buffer);
  EXPECT_EQ(gpus.lanes.at(fakes::kFirstGpuLane)->count<device::MapBuffer>(), 0u) << "it is mapped";
  EXPECT_EQ(gpus.lanes.at(fakes::kFirstGpuLane)->count<device::LoadPlan>(), 1u);
  EXPECT_EQ(host.count<device::LoadPlan>(), 0u);
  answer_all();
  EXPECT_EQ(declared->calls, 1);
  EXPECT_EQ(declared->error.message, "");
  EXPECT_TRUE(engine.release(session, answer->buffer));
  EXPECT_EQ(gpus.lanes.at(fakes::kFirstGpuLane)->count<device::UnmapBuffer>(), 0u) << "a plan uses it";
  EXPECT_TRUE(engine.detach(session));
  EXPECT_EQ(gpus.lanes.at(fakes::kFirstGpuLane)->count<device::UnmapBuffer>(), 1u);
}

TEST_F(ExportedBuffers, of_an_unknown_gpu_are_refused) {
  const SessionId session = attach();
  const Error error = refused(session, [](ExportedBuffer& what) { what.gpu = "GPU-other"; });
  EXPECT_EQ(error.code, ErrorCode::NoGpu);
  EXPECT_THAT(error.message, HasSubstr("GPU-other"));
}

TEST(ExportedBuffersWithoutGpus, are_refused) {
  fakes::RecordingLane lane;
  Lanes lanes(lane);
  const auto none = lanes.of_gpu("GPU-1");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::NoGpu);
}

TEST_F(ExportedBuffers, are_checked_before_a_worker_is_asked) {
  const SessionId session = attach();
  const auto path_of = [&](const std::function<void(ExportedBuffer&)>& change) {
    const Error error = refused(session, change);
    EXPECT_EQ(error.code, ErrorCode::InvalidParams) << error.message;
    return error.path;
  };
  constexpr std::uint64_t kLast = ~std::uint64_t{0};
  EXPECT_EQ(path_of([](ExportedBuffer& what) { what.size_bytes = 0; }), "bytes");
  EXPECT_EQ(path_of([](ExportedBuffer& what) { what.handle.pop_back(); }), "handle");
  EXPECT_EQ(path_of([](ExportedBuffer& what) { what.offset = 8; }), "offset");
  EXPECT_EQ(path_of([](ExportedBuffer& what) { what.offset = 4112; }), "bytes");
  EXPECT_EQ(path_of([](ExportedBuffer& what) { what.size_bytes = kLast; }), "bytes");
  EXPECT_EQ(path_of([](ExportedBuffer& what) { what.offset = kLast - 15; }), "bytes");
  EXPECT_EQ(
      path_of([](ExportedBuffer& what) {
        what.offset = 16;
        what.size_bytes = kLast - 15;
      }),
      "bytes"
  ) << "the sum is 0";
}

TEST_F(ExportedBuffers, of_one_allocation_share_a_mapping) {
  const SessionId session = attach();
  const SessionId other = attach(0, 1, "another job's");  // the same rank, anew: another session
  ASSERT_NE(session, other);
  const std::uint64_t first = allocation_of(other, exported(0x7000, 1));
  EXPECT_EQ(allocation_of(other, exported(0x7000, 1, 4096)), first);
  EXPECT_NE(allocation_of(other, exported(0x8000, 1)), first) << "another address";
  const std::uint64_t later = allocation_of(other, exported(0x7000, 2));
  EXPECT_NE(later, first) << "another generation, whose handle has the same bytes";
  EXPECT_EQ(allocation_of(other, exported(0x7000, 2, 4096)), later);
}

TEST_F(ExportedBuffers, of_an_allocation_that_was_closed_are_mapped_anew) {
  const SessionId session = attach();
  (void)ask(session, exported());
  const device::MapBuffer first = last_map();
  ASSERT_TRUE(engine.release(session, first.buffer));
  answer_all();
  EXPECT_NE(allocation_of(session, exported()), first.exported->allocation);
}

TEST_F(ExportedBuffers, of_an_older_generation_or_with_another_handle_are_refused) {
  const SessionId session = attach();
  const std::uint64_t buffer = mapped(session, exported(0x7000, 5));
  const auto error_of = [&](const ExportedBuffer& what) { return ask(session, what)->error; };
  EXPECT_EQ(error_of(exported(0x7000, 4)).path, "generation");
  ExportedBuffer changed = exported(0x7000, 5);
  changed.handle[3] = 'x';
  EXPECT_EQ(error_of(changed).path, "handle");
  changed = exported(0x7000, 5);
  changed.allocation_bytes = 16384;
  EXPECT_EQ(error_of(changed).path, "handle");
  ASSERT_TRUE(engine.release(session, buffer));
  EXPECT_EQ(error_of(exported(0x7000, 4)).path, "generation") << "it is remembered without a buffer";
}

TEST_F(ExportedBuffers, keep_their_generation_where_a_client_resumes) {
  const SessionId session = attach();
  const std::uint64_t buffer = mapped(session, exported(0x7000, 5));
  engine.connection_lost(session);
  const SessionId resumed = attach();
  ASSERT_NE(resumed, session);
  EXPECT_EQ(ask(resumed, exported(0x7000, 4))->error.path, "generation");
  EXPECT_TRUE(engine.release(resumed, buffer));
}

TEST_F(ExportedBuffers, count_for_the_limit_of_buffers) {
  const SessionId session = attach();
  for (int i = 0; i < 64; ++i) {
    (void)mapped(session, exported());
  }
  EXPECT_EQ(ask(session, exported())->error.code, ErrorCode::LimitExceeded);
}

TEST_F(ExportedBuffers, that_cannot_be_mapped_are_refused_with_the_reason_and_leave_nothing) {
  const SessionId session = attach();
  const auto answer = ask(session, exported());
  const device::BufferId buffer =
      std::get<device::MapBuffer>(gpus.lanes.at(fakes::kFirstGpuLane)->commands.front()).buffer;
  gpus.lanes.at(fakes::kFirstGpuLane)->commands.clear();
  device::Failed failed;
  failed.buffer = buffer;
  failed.message = "opening a memory handle: invalid device context (CUDA error 201)";
  failed.hint = "share the PID namespace";
  engine.on_lane_report(fakes::kFirstGpuLane, failed);
  ASSERT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->error.code, ErrorCode::ImportRefused);
  EXPECT_EQ(answer->error.message, failed.message);
  EXPECT_EQ(answer->error.hint, failed.hint);
  EXPECT_EQ(engine.release(session, buffer).error().code, ErrorCode::UnknownBuffer);
  EXPECT_TRUE(gpus.lanes.at(fakes::kFirstGpuLane)->commands.empty()) << "there is nothing to unmap";
}

TEST_F(ExportedBuffers, that_are_released_while_they_are_mapped_are_answered_once) {
  const SessionId session = attach();
  const auto answer = ask(session, exported());
  const device::BufferId buffer =
      std::get<device::MapBuffer>(gpus.lanes.at(fakes::kFirstGpuLane)->commands.front()).buffer;
  EXPECT_FALSE(declare(session, buffer)->error.message.empty()) << "it is not there yet";
  ASSERT_TRUE(engine.release(session, buffer));
  EXPECT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->error.code, ErrorCode::UnknownBuffer);
  EXPECT_EQ(gpus.lanes.at(fakes::kFirstGpuLane)->count<device::UnmapBuffer>(), 1u);
  answer_all();
  EXPECT_EQ(answer->calls, 1);
}

TEST_F(ExportedBuffers, of_a_rank_that_died_are_unmapped_and_answered_once) {
  const SessionId session = attach();
  (void)mapped(session, exported());
  const auto answer = ask(session, exported(0x8000));
  engine.process_exited(session);
  EXPECT_EQ(answer->calls, 1);
  EXPECT_EQ(gpus.lanes.at(fakes::kFirstGpuLane)->count<device::UnmapBuffer>(), 2u);
  answer_all();
  EXPECT_EQ(answer->calls, 1);
}

TEST_F(ExportedBuffers, are_not_answered_after_a_halt) {
  const SessionId session = attach();
  const auto answer = ask(session, exported());
  engine.halt();
  answer_all();
  EXPECT_EQ(answer->calls, 0);
}

TEST_F(ExportedBuffers, are_lost_with_their_worker_and_another_takes_its_place) {
  const SessionId session = attach();
  const std::uint64_t buffer = mapped(session, exported());
  const auto declared = declare(session, buffer);
  answer_all();
  ASSERT_EQ(declared->calls, 1);
  std::vector<Error> errors;
  FinishRequest finish;
  finish.key = declared->key;
  finish.ready_all = true;
  engine.finish(session, std::move(finish), [&errors](const Result<RankReport>& result) {
    errors.push_back(result ? Error{} : result.error());
  });
  const auto waiting = ask(session, exported(0x8000));
  auto commands = std::exchange(gpus.lanes.at(fakes::kFirstGpuLane)->commands, {});
  for (device::LaneCommand& command : commands) {
    if (const auto* reduce = std::get_if<device::ReduceBucket>(&command)) {
      engine.on_lane_report(fakes::kFirstGpuLane, lost(0, reduce->plan, reduce->tag));
    } else if (const auto* last = std::get_if<device::FinishStep>(&command)) {
      engine.on_lane_report(fakes::kFirstGpuLane, lost(0, last->plan, last->tag));
    } else if (const auto* map = std::get_if<device::MapBuffer>(&command)) {
      engine.on_lane_report(fakes::kFirstGpuLane, lost(map->buffer));
    }
  }
  answer_all();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code, ErrorCode::StepFailed);
  EXPECT_THAT(errors[0].message, HasSubstr("ended by signal 9"));
  EXPECT_THAT(errors[0].hint, HasSubstr("register the buffers again, with a higher generation"));
  ASSERT_EQ(waiting->calls, 1);
  EXPECT_EQ(waiting->error.code, ErrorCode::ImportRefused);
  EXPECT_THAT(declare(session, buffer)->error.message, HasSubstr("was lost with the worker of GPU-5a4d2c1e"));

  EXPECT_TRUE(gpus.stopped.empty()) << "the plan is still there";
  const std::uint64_t again = mapped(session, exported(0x7000, 2));
  EXPECT_EQ(gpus.lanes.size(), 2u);
  const auto anew = declare(session, again);
  answer_all();
  EXPECT_EQ(anew->calls, 1);
  EXPECT_EQ(anew->error.message, "");
  ASSERT_TRUE(engine.release(session, buffer));
  answer_all();
  EXPECT_THAT(gpus.stopped, ElementsAre(fakes::kFirstGpuLane));
  engine.on_lane_report(fakes::kFirstGpuLane, lost(buffer));  // its last report came late
}

TEST_F(ExportedBuffers, keep_their_worker_for_a_while_after_the_last_one_has_gone) {
  TimePoint now{std::chrono::seconds(1000)};
  const SessionId session = attach();
  const std::uint64_t first = mapped(session, exported());
  EXPECT_FALSE(engine.next_deadline()) << "it is used";
  ASSERT_TRUE(engine.release(session, first));
  ASSERT_TRUE(engine.next_deadline());
  engine.advance(now += std::chrono::seconds(20));
  const std::uint64_t second = mapped(session, exported());
  EXPECT_EQ(gpus.lanes.size(), 1u) << "the same";
  EXPECT_FALSE(engine.next_deadline());
  engine.advance(now += std::chrono::seconds(100));
  ASSERT_TRUE(engine.release(session, second));
  answer_all();
  engine.advance(now += std::chrono::seconds(29));
  EXPECT_TRUE(gpus.stopped.empty());
  engine.advance(now += std::chrono::seconds(1));
  EXPECT_THAT(gpus.stopped, ElementsAre(fakes::kFirstGpuLane));
  EXPECT_FALSE(engine.next_deadline());
  EXPECT_NE(mapped(session, exported()), 0u) << "by another one";
  EXPECT_EQ(gpus.lanes.begin()->first, fakes::kFirstGpuLane + 1);
}

TEST_F(ExportedBuffers, a_lane_is_wide_while_its_job_waits_also_after_an_older_lane_has_ended) {
  const SessionId first = attach();
  const std::uint64_t unused = mapped(first, exported());
  const SessionId session = attach_to("other");
  ExportedBuffer what = exported();
  what.gpu = fakes::RecordingGpus::kOther;
  const auto declared = declare(session, mapped(session, what));
  answer_all();
  ASSERT_EQ(declared->calls, 1);
  ASSERT_TRUE(engine.release(first, unused));
  answer_all();
  engine.advance(TimePoint{std::chrono::seconds(1000)});
  engine.advance(TimePoint{std::chrono::seconds(1031)});
  ASSERT_THAT(gpus.stopped, ElementsAre(fakes::kFirstGpuLane));
  const fakes::RecordingLane& lane = *gpus.lanes.at(fakes::kFirstGpuLane + 1);
  EXPECT_FALSE(lane.wide) << "its job computes";
  FinishRequest finish;
  finish.key = declared->key;
  finish.ready_all = true;
  engine.finish(session, std::move(finish), [](const Result<RankReport>&) {});
  EXPECT_TRUE(lane.wide) << "its job waits";
}

/// Two ranks on a GPU each, with two buckets.
class OnTwoGpus : public ExportedBuffers {
 protected:
  OnTwoGpus() : sessions{attach(0, 2), attach(1, 2)} {}

  void register_both() {
    ExportedBuffer other = exported();
    other.gpu = fakes::RecordingGpus::kOther;
    buffers = {mapped(sessions[0], exported()), mapped(sessions[1], other)};
  }

  void declare_both() {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      declared.push_back(declare(sessions[rank], buffers[rank], {plan::DType::Float32, plan::DType::Float64}));
    }
  }

  fakes::RecordingLane& lane(device::LaneId id) { return *gpus.lanes.at(id); }

  void finish_all() {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      FinishRequest finish;
      finish.key = declared[rank]->key;
      finish.ready_all = true;
      engine.finish(sessions[rank], std::move(finish), [this](const Result<RankReport>& result) {
        (result ? norms : failures).push_back(result ? result->report->norm : 0);
      });
    }
  }

  std::vector<SessionId> sessions;
  std::vector<std::uint64_t> buffers;
  std::vector<std::shared_ptr<Declared>> declared;
  std::vector<double> norms;
  std::vector<double> failures;
};

TEST_F(OnTwoGpus, each_lane_maps_all_and_loads_the_plan_before_it_is_answered) {
  register_both();
  declare_both();
  for (const device::LaneId id : {1u, 2u}) {
    EXPECT_EQ(lane(id).count<device::MapBuffer>(), 1u) << "that of the other rank";
    EXPECT_EQ(lane(id).count<device::LoadPlan>(), 1u);
  }
  while (!lane(1).commands.empty()) {
    engine.on_lane_report(1, lane(1).answer_next());
  }
  EXPECT_EQ(declared[0]->calls, 0) << "the other lane has not loaded it";
  answer_all();
  EXPECT_EQ(declared[0]->calls, 1);
  EXPECT_EQ(declared[1]->calls, 1);
  ASSERT_TRUE(engine.detach(sessions[0]));
  ASSERT_TRUE(engine.detach(sessions[1]));
  EXPECT_EQ(lane(1).count<device::UnmapBuffer>(), 2u);
  EXPECT_EQ(lane(2).count<device::UnmapBuffer>(), 2u);
}

TEST_F(OnTwoGpus, one_norm_is_taken_over_both) {
  register_both();
  declare_both();
  answer_all();
  const device::TensorCell first{0, {{9, 0}, 1, 3, 0, 0}, 8};
  const device::TensorCell second{1, {{16, 0}, 1, 4, 0, 0}, 8};
  lane(1).cells = lane(2).cells = {first, second};
  lane(1).bucket_of = lane(2).bucket_of = [this](std::uint32_t tensor) {
    return (*engine.plan_of(std::nullopt, "job"))->tensors[tensor].bucket;
  };
  finish_all();
  answer_all();
  EXPECT_THAT(norms, ElementsAre(5.0, 5.0));
  EXPECT_EQ(lane(1).reduced.size(), 1u);
  EXPECT_EQ(lane(2).reduced.size(), 1u);
  ASSERT_EQ(lane(1).scaled.size(), 1u) << "the norm is above 1";
  ASSERT_EQ(lane(2).scaled.size(), 1u);
  EXPECT_EQ(lane(1).scaled[0].outcomes[0].multiplier, lane(2).scaled[0].outcomes[0].multiplier);
  EXPECT_NE(lane(1).scaled[0].buckets, lane(2).scaled[0].buckets);
  EXPECT_TRUE(engine.idle());
}

TEST_F(OnTwoGpus, memory_that_the_other_gpu_does_not_reach_is_refused) {
  register_both();
  lane(2).refuse_maps = true;
  declare_both();
  answer_all();
  for (const auto& answer : declared) {
    ASSERT_EQ(answer->calls, 1);
    EXPECT_EQ(answer->error.code, ErrorCode::ImportRefused);
    EXPECT_THAT(answer->error.message, HasSubstr("scripted refusal"));
    EXPECT_EQ(answer->error.hint, "scripted hint");
  }
  ASSERT_TRUE(engine.detach(sessions[0]));
  ASSERT_TRUE(engine.detach(sessions[1]));
  EXPECT_EQ(lane(1).count<device::UnmapBuffer>(), 2u);
  EXPECT_EQ(lane(2).count<device::UnmapBuffer>(), 1u) << "the other one it never had";
}

TEST_F(OnTwoGpus, a_worker_that_dies_fails_the_step_on_both) {
  register_both();
  declare_both();
  answer_all();
  finish_all();
  lane(2).lost = true;
  answer_all();
  EXPECT_THAT(norms, IsEmpty());
  EXPECT_EQ(failures.size(), 2u);
  EXPECT_TRUE(engine.idle());
}

}  // namespace
}  // namespace gradsync::engine
