#include "streams.hpp"

#include <map>
#include <utility>
#include <vector>

namespace simt {

namespace {

struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Stream>> all;
};

/// It is never destroyed: a thread that hangs in an operation may still use it while the process ends.
Streams& streams() {
  static auto* const one = new Streams;
  return *one;
}

}  // namespace

Stream::Stream() : thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Stream> Stream::find(cudaStream_t handle) {
  const std::scoped_lock lock(streams().mutex);
  const auto found = streams().all.find(handle);
  return found == streams().all.end() ? nullptr : found->second;
}

cudaStream_t Stream::create() {
  auto made = std::make_shared<Stream>();
  auto* const handle = reinterpret_cast<cudaStream_t>(static_cast<gradsync::device::HostStreamQueue*>(made.get()));
  const std::scoped_lock lock(streams().mutex);
  streams().all.emplace(handle, std::move(made));
  return handle;
}

void Stream::destroy(cudaStream_t handle) {
  std::shared_ptr<Stream> ended;
  const std::scoped_lock lock(streams().mutex);
  if (const auto found = streams().all.find(handle); found != streams().all.end()) {
    ended = std::move(found->second);
    streams().all.erase(found);
  }
}

void Stream::wait_for_all() {
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::scoped_lock lock(streams().mutex);
    for (const auto& [handle, stream] : streams().all) {
      all.push_back(stream);
    }
  }
  for (const std::shared_ptr<Stream>& each : all) {
    each->wait();
  }
}

void Stream::enqueue(void (*work)(void*), void* argument) {
  enqueue([work, argument] { work(argument); });
}

void Stream::enqueue(std::function<void()> work) {
  {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty(); });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
    if (work_.empty()) {
      return;
    }
    const std::function<void()> work = work_.front();
    lock.unlock();
    work();
    lock.lock();
    work_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace simt
