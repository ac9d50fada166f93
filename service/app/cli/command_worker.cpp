#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/config/settings.hpp"
#include "app/doctor/lender.hpp"
#include "device/gpu/gpu_lane.hpp"
#include "device/host/host_lane.hpp"
#include "device/process/lane_worker.hpp"

#include <sys/socket.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace gradsync::app {

namespace {

std::optional<device::NcclOptions> nccl_options_of(const NcclSection& nccl) {
  if (nccl.library.empty()) {
    return std::nullopt;
  }
  device::NcclOptions options{nccl.library, {}};
  options.settings.max_ctas = static_cast<int>(nccl.max_ctas);
  options.settings.cga_cluster = static_cast<int>(nccl.cga_cluster);
  if (nccl.traffic_class >= 0) {
    options.settings.traffic_class = static_cast<int>(nccl.traffic_class);
  }
  options.settings.deadlines = {Milliseconds(nccl.init_ms), Milliseconds(nccl.abort_ms)};
  return options;
}

std::unique_ptr<device::Lane> make_lane(const WorkerCommand& command, device::LaneSink sink) {
  if (command.kernels.empty()) {
    device::HostLaneOptions options;
    options.threads = command.threads;
    options.nccl = nccl_options_of(command.nccl);
    return std::make_unique<device::HostLane>(std::move(options), std::move(sink));
  }
  // Without a library the lane still takes plans of which nothing travels.
  device::NcclOptions nccl = nccl_options_of(command.nccl).value_or(device::NcclOptions());
  return std::make_unique<device::GpuLane>(
      device::GpuDeviceOptions{command.kernels, command.gpu, std::move(nccl)}, std::move(sink)
  );
}

}  // namespace

int execute(const WorkerCommand& command) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(command.fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    complain("`worker` is started by gradsyncd itself, with a socket", "gradsyncd --help lists what people start");
    return kExitUsage;
  }
  try {
    if (command.lend) {
      lend_memory(UniqueFd(command.fd), command.kernels, command.gpu);
      return kExitOk;
    }
    device::serve_lane(UniqueFd(command.fd), [&](device::LaneSink sink) {
      return make_lane(command, std::move(sink));
    });
  } catch (const std::exception& error) {
    complain(error.what(), "the daemon that started this worker reports its work as failed");
    return kExitInternal;
  }
  return kExitOk;
}

}  // namespace gradsync::app
