#pragma once

// What a library with NCCL's interface that adds up memory of the CPU gets in place of a stream of CUDA: the handle of
// a HostStream points to one. Nothing but the interface is here, so that whatever emulates streams can be one as well.

namespace gradsync::device {

class HostStreamQueue {
 public:
  virtual ~HostStreamQueue() = default;

  /// `work(argument)` runs behind everything that was enqueued before it. Any thread.
  virtual void enqueue(void (*work)(void*), void* argument) = 0;
};

}  // namespace gradsync::device
