#include "device/nccl/host_stream.hpp"

#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"

namespace gradsync::device {

HostStream::HostStream() : thread_([this] { run(); }) {}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

/// As the queue: who has the handle does not know the class of the stream.
NcclStream* HostStream::handle() { return reinterpret_cast<NcclStream*>(static_cast<HostStreamQueue*>(this)); }

void HostStream::mark() {
  enqueue(
      [](void* passed) { static_cast<std::atomic<std::uint64_t>*>(passed)->fetch_add(1, std::memory_order_release); },
      &passed_
  );
}

void HostStream::enqueue(void (*work)(void*), void* argument) {
  {
    const std::lock_guard lock(mutex_);
    work_.emplace_back(work, argument);
  }
  changed_.notify_one();
}

void HostStream::run() {
  name_this_thread("nccl:stream");
  std::unique_lock lock(mutex_);
  while (true) {
    while (work_.empty()) {
      if (stop_) {
        return;
      }
      changed_.wait(lock);
    }
    const auto [work, argument] = work_.front();
    work_.pop_front();
    lock.unlock();
    work(argument);
    lock.lock();
  }
}

std::unique_ptr<CollectiveStream> HostCollectiveDevice::make_stream() { return std::make_unique<HostStream>(); }

std::byte* HostCollectiveDevice::allocate(std::size_t bytes) {
  return memory_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
}

}  // namespace gradsync::device
