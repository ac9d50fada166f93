#pragma once
// Where the memory of a lane is that of the CPU: what collectives get in place of a stream of CUDA, for a library with
// NCCL's interface that adds up memory of the CPU. NCCL itself does not.

#include "device/nccl/collective_device.hpp"
#include "device/nccl/host_stream_queue.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace gradsync::device {

/// A thread with a queue: `nccl:stream`.
class HostStream final : public CollectiveStream, public HostStreamQueue {
 public:
  HostStream();
  ~HostStream() override;  ///< when everything that was enqueued has returned
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  [[nodiscard]] NcclStream* handle() override;
  void mark() override;

  [[nodiscard]] std::uint64_t passed() override { return passed_.load(std::memory_order_acquire); }

  void enqueue(void (*work)(void*), void* argument) override;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void (*)(void*), void*>> work_;  ///< guarded by mutex_, as is `stop_`
  bool stop_ = false;
  std::atomic<std::uint64_t> passed_{0};
  std::thread thread_;
};

class HostCollectiveDevice : public CollectiveDevice {
 public:
  [[nodiscard]] std::unique_ptr<CollectiveStream> make_stream() override;
  [[nodiscard]] std::byte* allocate(std::size_t bytes) override;

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace gradsync::device
