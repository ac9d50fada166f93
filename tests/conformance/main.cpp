// The tests, and the processes that they start from this same binary, chosen by the first argument:
//   worker       what `gradsyncd worker` does
//   gpu_worker   the same, on the kernels of a GPU
//   nccl_worker  what `gradsyncd worker --nccl` does with the fake NCCL; patience with an abort is short
//   gpu_nccl_worker  the same, on the kernels of a GPU
//   unasked      a worker that reports what nobody asked for
//   supervisor   owns a lane, writes the pid of its worker to stdout, and waits to be killed

#include "conformance/lane_kinds.hpp"
#include "device/process/lane_worker.hpp"
#include "device/process/packet_socket.hpp"
#include "unit/device/vector_target.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <string_view>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr int kSocket = 3;

/// Communicators are warmed up with little, so that many of them on few cores are quick.
void serve_nccl(bool gpu) {
  device::NcclOptions nccl{GRADSYNC_FAKE_NCCL_LIBRARY, {}};
  nccl.settings.warm_up = {16, 10'000};
  nccl.settings.deadlines.abort = Milliseconds(500);
  device::serve_lane(UniqueFd(kSocket), [&](device::LaneSink sink) -> std::unique_ptr<device::Lane> {
    if (gpu) {
      device::GpuDeviceOptions on_gpu = device::gpu_options();
      on_gpu.nccl = nccl;
      return std::make_unique<device::GpuLane>(std::move(on_gpu), std::move(sink));
    }
    device::HostLaneOptions options;
    options.threads = 1;
    options.nccl = nccl;
    return std::make_unique<device::HostLane>(std::move(options), std::move(sink));
  });
}

int report_unasked() {
  device::PacketSocket socket{UniqueFd(kSocket)};
  (void)socket.send(device::pack(device::encode(device::Aborted{1, 2})));
  (void)socket.receive();  // the command
  (void)socket.receive();  // the end
  return 0;
}

int supervise() {
  device::LaneRun run;
  auto lane = std::make_unique<device::ProcessLane>(device::worker_options(), run.sink());
  lane->submit(device::UnloadPlan{1});
  (void)run.next();
  const pid_t worker = lane->worker_pid();
  (void)!::write(STDOUT_FILENO, &worker, sizeof(worker));
  ::pause();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  device::use_wanted_vector_target();
  const std::string_view role = argc > 1 ? argv[1] : "";
  if (role == "worker") {
    device::serve_lane(UniqueFd(kSocket), [](device::LaneSink sink) {
      return make_lane(device::LaneKind::Host, std::move(sink));
    });
    return 0;
  }
  if (role == "gpu_worker") {
    device::serve_lane(UniqueFd(kSocket), [](device::LaneSink sink) {
      return make_lane(device::LaneKind::Gpu, std::move(sink));
    });
    return 0;
  }
  if (role == "nccl_worker" || role == "gpu_nccl_worker") {
    serve_nccl(role == "gpu_nccl_worker");
    return 0;
  }
  if (role == "unasked") {
    return report_unasked();
  }
  if (role == "supervisor") {
    return supervise();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
