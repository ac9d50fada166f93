#include "net/peer/dialler.hpp"

#include "base/descriptors.hpp"
#include "net/limits/io_watch.hpp"
#include "net/limits/session_timer.hpp"
#include "net/peer/link_words.hpp"
#include "net/socket/peer.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <sys/socket.h>
#include <system_error>

#include <cerrno>
#include <utility>

namespace gradsync::net {

Dialler::Dialler(const LinkContextPtr& context, LinkId id, std::string address)
    : context_(context),
      id_(id),
      address_(std::move(address)),
      target_(parse_host_port(address_)),
      wait_(context->io.get_executor()) {}

void Dialler::start() {
  if (!target_ || target_->port == std::uint16_t{0}) {
    stop(fmt::format("'{}' is not an address like node0 or node0:{}", target_ ? address_ : "…", kPeerPort));
    return;
  }
  asio::co_spawn(
      context_->io.get_executor(),
      [self = shared_from_this()] { return self->run(); },
      [self = shared_from_this()](std::exception_ptr failure) {
        if (failure) {
          try {
            std::rethrow_exception(failure);
          } catch (const std::exception& problem) {
            spdlog::error("a connection to another daemon failed link={}: {}", self->id_, problem.what());
          }
        }
        self->stop("it failed, by a defect of this daemon");
      }
  );
}

void Dialler::stop(std::string why) {
  stopped_ = true;
  if (query_) {
    context_->resolver.forget(*query_);
    query_.reset();
  }
  wait_.cancel();
  if (socket_) {
    socket_->end();
  }
  abort();
  tell_end(std::move(why));
}

Task<void> Dialler::run() {
  co_await asio::post(context_->io, use_task);  // the owner is not told anything from within its own call
  if (stopped_) {
    co_return;
  }
  std::string why = co_await try_addresses();
  if (!through_ && !stopped_) {
    stop(std::move(why));
  }
}

Task<std::string> Dialler::try_addresses() {
  std::optional<Resolved> resolved = co_await resolve();
  if (stopped_) {
    co_return std::string();
  }
  if (!resolved) {
    co_return fmt::format("'{}' is not resolved within {} ms", target_->host, context_->options.resolve.count());
  }
  std::string why = std::move(resolved->why);
  for (const NumericAddress& address : resolved->addresses) {
    why = co_await try_address(address);
    if (through_ || stopped_) {
      break;
    }
  }
  co_return why;
}

Task<std::optional<Resolved>> Dialler::resolve() {
  const std::uint16_t port = target_->port.value_or(kPeerPort);
  if (const auto numeric = numeric_address(target_->host, port)) {
    Resolved known;
    known.addresses.push_back(*numeric);
    co_return known;
  }
  query_ = context_->resolver.resolve(target_->host, port, [weak = weak_from_this()](Resolved resolved) {
    if (const auto self = weak.lock()) {
      self->query_.reset();
      self->resolved_ = std::move(resolved);
      self->wait_.cancel();
    }
  });
  wait_.expires_after(context_->options.resolve);
  auto [cut_short] = co_await wait_.async_wait(use_task);
  static_cast<void>(cut_short);
  co_return std::exchange(resolved_, std::nullopt);
}

Task<std::string> Dialler::try_address(NumericAddress address) {
  std::string why = co_await connect(address);
  if (why.empty() && !stopped_) {
    PeerSocket connected = std::move(*socket_);
    why = co_await serve(std::move(connected), join_host_port(target_->host, target_->port.value_or(kPeerPort)));
  }
  socket_.reset();
  if (through_) {
    co_return std::string();
  }
  co_return fmt::format("{}: {}", address_text(address.storage), why);
}

Task<std::string> Dialler::connect(NumericAddress address) {
  UniqueFd fd{::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!fd.valid()) {
    co_return std::generic_category().message(errno);
  }
  if (is_kept_back(fd.get())) {
    co_return std::string("this daemon has no file descriptors left but those kept back for probes");
  }
  socket_.emplace(context_->io.get_executor());
  socket_->take(std::move(fd), address.storage.ss_family, 0, nullptr);
  late_ = false;
  after(wait_, context_->options.connect, weak_from_this(), [](Dialler& dialler) {
    dialler.late_ = true;
    if (dialler.socket_) {
      dialler.socket_->end();
    }
  });
  const asio::generic::stream_protocol::endpoint endpoint{&address.storage, address.size};
  auto [error] = co_await socket_->async_connect(endpoint, use_task);
  net::stop(wait_);
  if (late_) {
    co_return no_answer_within(context_->options.connect);
  }
  co_return error ? error.message() : std::string();
}

}  // namespace gradsync::net
