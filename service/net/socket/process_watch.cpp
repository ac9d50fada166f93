#include "net/socket/process_watch.hpp"

#include <spdlog/spdlog.h>

namespace gradsync::net {

ProcessWatch::ProcessWatch(const ContextPtr& context, ConnectionId id, UniqueFd process)
    : context_(context), id_(id), process_(context->io.get_executor()), afterwards_(context->io.get_executor()) {
  process_.assign(process.get());
  static_cast<void>(process.release());  // the descriptor's now
}

void ProcessWatch::start(const ContextPtr& context, ConnectionId id, UniqueFd process) {
  if (!process.valid() || context->closing_all) {
    return;
  }
  std::shared_ptr<ProcessWatch> watch;
  try {
    watch = std::make_shared<ProcessWatch>(context, id, std::move(process));
    context->watches.emplace(id, watch);
  } catch (const std::exception& problem) {  // no room in epoll; the end of its connection is seen all the same
    spdlog::warn("the end of a process will not be seen connection={}: {}", id, problem.what());
    return;
  }
  watch->process_.async_wait(Descriptor::wait_read, [watch](boost::system::error_code error) {
    if (!error) {
      watch->finish(true);
    }
  });
}

void ProcessWatch::on_connection_closed(Milliseconds still) {
  afterwards_.expires_after(still);
  afterwards_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error) {
      self->finish(false);
    }
  });
}

void ProcessWatch::stop() {
  done_ = true;
  boost::system::error_code ignored;
  process_.close(ignored);
  afterwards_.cancel();
}

void ProcessWatch::finish(bool exited) {
  if (done_) {
    return;
  }
  const auto self = shared_from_this();  // erased below
  stop();
  if (const auto context = context_.lock()) {
    context->watches.erase(id_);
    if (exited) {
      spdlog::debug("peer process exited connection={}", id_);
      context->messages.on_process_exit(id_);
    }
  }
}

}  // namespace gradsync::net
