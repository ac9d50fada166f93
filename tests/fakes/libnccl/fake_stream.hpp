#pragma once

// What the fake NCCL gets where NCCL gets a cudaStream_t: a queue of a test, or of the emulated CUDA.

namespace gradsync::fakes {

class FakeStream {
 public:
  virtual ~FakeStream() = default;

  /// `work(argument)` runs behind everything that was enqueued before it. Any thread.
  virtual void enqueue(void (*work)(void*), void* argument) = 0;
};

}  // namespace gradsync::fakes
