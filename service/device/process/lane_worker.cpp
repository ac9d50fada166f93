#include "device/process/lane_worker.hpp"

#include "device/device_error.hpp"
#include "device/lane_codec.hpp"
#include "device/process/packet_socket.hpp"

#include <sys/prctl.h>

#include <csignal>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace gradsync::device {

namespace {

/// Sends reports from the thread of the lane. A socket that is full holds the lane up: the supervisor always reads.
class ReportSender {
 public:
  explicit ReportSender(PacketSocket& socket) : socket_(socket) {}

  /// After a report that cannot be sent nothing more is, and the worker ends: the supervisor would wait for it for
  /// ever.
  void operator()(const LaneReport& report) {
    try {
      // A supervisor that is gone needs no report; its end of the socket ends the worker.
      (void)socket_.send(pack(encode(report)));
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      problem_ = error.what();
      socket_.shut_down();
    }
  }

  [[nodiscard]] std::optional<std::string> problem() {
    const std::lock_guard lock(mutex_);
    return problem_;
  }

 private:
  PacketSocket& socket_;
  std::mutex mutex_;
  std::optional<std::string> problem_;
};

}  // namespace

void serve_lane(UniqueFd fd, const MakeLane& make_lane) {
  // If the supervisor died before this call, the socket has ended.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  PacketSocket socket(std::move(fd));
  ReportSender sender(socket);
  {
    const std::unique_ptr<Lane> lane = make_lane([&](const LaneReport& report) { sender(report); });
    while (std::optional<Packet> packet = socket.receive()) {
      LaneMessage message = unpack(std::move(*packet));
      Result<LaneCommand> command = decode_command(message.bytes, std::move(message.fds));
      if (command.has_error()) {
        throw DeviceError(command.error().message);
      }
      lane->submit(std::move(*command));
    }
  }
  if (const std::optional<std::string> problem = sender.problem()) {
    throw DeviceError(*problem);
  }
}

}  // namespace gradsync::device
