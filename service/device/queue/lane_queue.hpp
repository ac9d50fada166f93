#pragma once
// The commands of one lane, and the thread that executes them in order. The mutex guards the queue, and which attempts
// are aborted; nothing else is shared. An attempt once aborted stays aborted until its plan is unloaded, also for
// commands submitted later.
//
// `submit` puts the command into the queue and wakes the lane's thread. It executes nothing.
//
// A reduction of a plan over nodes is under way from its command until its report. Meanwhile the thread executes other
// commands, and goes on with it when a wire says that messages came. What comes behind it in its plan is parked until
// it is done, but for further reductions; so is the release of memory that it works on. Commands and plans that can go
// on take turns, and so do these plans among themselves.
//
// Collectives of NCCL wake nobody: while some are under way the thread looks at them between its commands, and at least
// every 50 µs. So are plans that are being connected by them, or aborted, until NCCL has done that.

#include "device/queue/lane_device.hpp"
#include "device/wire/wire.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace gradsync::device {

/// The device of a lane; its passes stop at the next chunk when `cancel` is raised.
using MakeDevice = std::function<std::unique_ptr<LaneDevice>(const std::atomic<bool>& cancel)>;

/// What executes the commands. `Caller`: whatever thread calls `work`, for simulations, where time is a number.
enum class LaneThread : std::uint8_t { Own, Caller };

class LaneQueue {
 public:
  /// Makes the device on the calling thread. The sink is called on the lane's thread.
  LaneQueue(const MakeDevice& make_device, LaneSink sink, MakeWire make_wire = {}, LaneThread thread = LaneThread::Own);
  ~LaneQueue();  ///< finishes what is queued, and waits for no other node; without a thread, it drops what is queued
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;

  void submit(LaneCommand command);

  /// Returns when everything is reported that does not wait for another node. For tests in one thread.
  void wait_until_idle();

  // LaneThread::Caller alone
  [[nodiscard]] bool has_work() const;         ///< something can be done before another command, or a message, comes
  void work();                                 ///< executes one command, or goes on with one plan; where there is work
  [[nodiscard]] bool has_collectives() const;  ///< which have to be looked at, soon or at a deadline
  void poll();                                 ///< looks how far collectives are; where there are some

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace gradsync::device
