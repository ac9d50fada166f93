#pragma once
// Streams of the emulated device beside the default one, for collectives: each is a thread with a queue, in which the
// fake NCCL puts its operations (device/nccl/host_stream_queue.hpp), and events. Kernels run on the default stream.

#include "device/nccl/host_stream_queue.hpp"
#include "driver_types.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace simt {

class Stream final : public gradsync::device::HostStreamQueue {
 public:
  Stream();
  ~Stream() override;  ///< when everything that was enqueued has returned
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// The one with this handle; null: it is none of these.
  static std::shared_ptr<Stream> find(cudaStream_t handle);

  /// Makes one. CUDA's handle is that of the queue.
  static cudaStream_t create();
  static void destroy(cudaStream_t handle);

  /// Until nothing is left on any of them, as CUDA does before it frees memory, or closes that of another process.
  static void wait_for_all();

  void enqueue(void (*work)(void*), void* argument) override;
  void enqueue(std::function<void()> work);

  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  ///< the first one runs
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace simt
