#include "device/nccl/abort_thread.hpp"

#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

namespace gradsync::device {

struct AbortThread::Shared {
  Shared(const NcclLibrary& of, std::function<void()> waking) : library(of), wake(std::move(waking)) {}

  const NcclLibrary& library;
  std::function<void()> wake;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::vector<Member>> groups;
  std::vector<std::vector<CommunicatorSlot>> done;
  bool busy = false;
  bool stop = false;
  std::thread thread;
};

namespace {

NcclResult abort_group(const NcclLibrary& library, const std::vector<AbortThread::Member>& group) {
  NcclResult first = library.group_start();
  const auto note = [&](NcclResult result) { first = first == NcclResult::Success ? result : first; };
  for (const AbortThread::Member& member : group) {
    if (member.communicator != nullptr) {
      note(library.abort(member.communicator));
    }
  }
  note(library.group_end());
  return first;
}

}  // namespace

AbortThread::AbortThread(const NcclLibrary& library, std::function<void()> begin, std::function<void()> wake)
    : shared_(std::make_shared<Shared>(library, std::move(wake))) {
  shared_->thread = std::thread([shared = shared_, begin = std::move(begin)] { run(shared, begin); });
}

AbortThread::~AbortThread() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  const bool hangs = shared_->busy || !shared_->groups.empty();
  shared_->wake = [] {};
  lock.unlock();
  shared_->changed.notify_one();
  if (hangs) {
    shared_->thread.detach();  // in a call of NCCL, which nothing can end but the end of the process
  } else {
    shared_->thread.join();
  }
}

void AbortThread::abort(std::vector<Member> group) {
  const std::lock_guard lock(shared_->mutex);
  shared_->groups.push_back(std::move(group));
  shared_->changed.notify_one();
}

std::vector<std::vector<CommunicatorSlot>> AbortThread::take_done() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->done, {});
}

void AbortThread::run(const std::shared_ptr<Shared>& shared, const std::function<void()>& begin) {
  name_this_thread("nccl:abort");
  try {
    begin();
  } catch (const std::exception& error) {
    // What is to be aborted stays until the deadline, which ends the process.
    spdlog::error("NCCL cannot be aborted on this device: {}", error.what());
    return;
  }
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stop || !shared->groups.empty(); });
    if (shared->groups.empty()) {
      return;
    }
    const std::vector<Member> group = std::move(shared->groups.front());
    shared->groups.pop_front();
    shared->busy = true;
    lock.unlock();
    const NcclResult result = abort_group(shared->library, group);
    lock.lock();
    shared->busy = false;
    if (result == NcclResult::Success) {
      std::vector<CommunicatorSlot>& slots = shared->done.emplace_back();
      std::ranges::transform(group, std::back_inserter(slots), &Member::slot);
    } else {
      // Nothing proves that they write no more: they stay until the deadline, which ends the process.
      spdlog::error("NCCL does not abort: {}", shared->library.words_for(result));
    }
    shared->wake();
  }
}

}  // namespace gradsync::device
