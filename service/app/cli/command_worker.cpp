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
#include <utility>

namespace gradsync::app {

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
    device::serve_lane(UniqueFd(command.fd), [&](device::LaneSink sink) -> std::unique_ptr<device::Lane> {
      if (command.kernels.empty()) {
        return std::make_unique<device::HostLane>(device::HostLaneOptions{command.threads}, std::move(sink));
      }
      return std::make_unique<device::GpuLane>(device::GpuDeviceOptions{command.kernels, command.gpu}, std::move(sink));
    });
  } catch (const std::exception& error) {
    complain(error.what(), "the daemon that started this worker reports its work as failed");
    return kExitInternal;
  }
  return kExitOk;
}

}  // namespace gradsync::app
