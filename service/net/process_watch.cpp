#include "net/process_watch.hpp"

#include <spdlog/spdlog.h>

namespace gradsync::net {

ProcessWatch::ProcessWatch(const ContextPtr& context, ConnectionId id, UniqueFd process)
    : context_(context),
      id_(id),
      process_(context->io.get_executor(), process.release()),
      afterwards_(context->io.get_executor()) {}

void ProcessWatch::start(const ContextPtr& context, ConnectionId id, UniqueFd process) {
  if (!process.valid() || context->closing_all) {
    return;
  }
  auto watch = std::make_shared<ProcessWatch>(context, id, std::move(process));
  context->watches.emplace(id, watch);
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
