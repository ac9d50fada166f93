#include "app/blackbox/dump_writer.hpp"

#include "app/blackbox/dump_folder.hpp"
#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"

#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace gradsync::app {

struct DumpWriter::State : std::enable_shared_from_this<State> {
  State(boost::asio::io_context& io_context, std::string path, std::size_t kept_files, OnWritten hook)
      : io(io_context), folder_path(path), folder(std::move(path), kept_files), on_written(std::move(hook)) {}

  void run() {
    name_this_thread("blackbox");
    std::unique_lock lock{mutex};
    while (!stopping || !queue.empty()) {
      if (queue.empty()) {
        changed.wait(lock);
        continue;
      }
      const DumpWork work = std::move(queue.front());
      queue.pop_front();
      writing = true;
      lock.unlock();
      Result<void> written = keep(work);
      lock.lock();
      writing = false;
      if (!stopping) {  // with the lock, so that `io` is there
        boost::asio::post(io, [weak = weak_from_this(), name = work.name, written = std::move(written)] {
          if (const auto self = weak.lock()) {
            self->on_written(name, written);
          }
        });
      }
    }
    ended = true;
    changed.notify_all();
  }

  Result<void> keep(const DumpWork& work) {
    Result<void> written;
    try {
      written = folder.write(work.name, rpc::dump_text(rpc::dump_file(work.dump, work.origin)));
    } catch (const std::exception& problem) {
      written = make_error(ErrorCode::InternalError, problem.what());
    }
    if (!written) {
      spdlog::log(
          std::exchange(complained, true) ? spdlog::level::debug : spdlog::level::warn,
          "a dump of the flight recorder is lost, and so may be later ones job={} file={}: {} ({})",
          work.dump.job,
          work.name,
          written.error().message,
          written.error().hint
      );
      return written;
    }
    complained = false;
    spdlog::log(
        work.origin.why == rpc::DumpReason::Failure ? spdlog::level::warn : spdlog::level::info,
        "flight recorder dumped job={} file={}/{}",
        work.dump.job,
        folder_path,
        work.name
    );
    return written;
  }

  boost::asio::io_context& io;
  const std::string folder_path;
  // The thread alone has these.
  DumpFolder folder;
  bool complained = false;
  // These need the lock.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<DumpWork> queue;
  bool writing = false;
  bool stopping = false;
  bool ended = false;
  // The io thread alone has these.
  OnWritten on_written;
  std::thread thread;
};

DumpWriter::DumpWriter(boost::asio::io_context& io, std::string folder, std::size_t kept_files, OnWritten on_written)
    : state_(std::make_shared<State>(io, std::move(folder), kept_files, std::move(on_written))) {
  if (!state_->folder_path.empty()) {
    (void)start();
  }
}

DumpWriter::~DumpWriter() { stop(); }

bool DumpWriter::start() {
  try {
    state_->thread = std::thread([self = state_] { self->run(); });
    return true;
  } catch (const std::exception& problem) {
    spdlog::warn("no thread can be had for dumps of the flight recorder: {}", problem.what());
    return false;
  }
}

bool DumpWriter::write(DumpWork work) {
  State& state = *state_;
  {
    const std::scoped_lock lock{state.mutex};
    if (state.stopping || state.queue.size() >= kMostWaiting) {
      return false;
    }
  }
  if (!state.thread.joinable() && !start()) {
    return false;
  }
  const std::scoped_lock lock{state.mutex};
  state.queue.push_back(std::move(work));
  state.changed.notify_all();
  return true;
}

bool DumpWriter::idle() const {
  const std::scoped_lock lock{state_->mutex};
  return state_->queue.empty() && !state_->writing;
}

void DumpWriter::stop() {
  State& state = *state_;
  bool ended = false;
  {
    std::unique_lock lock{state.mutex};
    state.stopping = true;
    state.changed.notify_all();
    ended = !state.thread.joinable() || state.changed.wait_for(lock, kPatience, [&state] { return state.ended; });
  }
  if (!state.thread.joinable()) {
    return;
  }
  if (ended) {
    state.thread.join();
  } else {
    state.thread.detach();  // it hangs in the system
  }
}

}  // namespace gradsync::app
