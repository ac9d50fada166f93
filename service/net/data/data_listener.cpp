#include "net/data/data_listener.hpp"

#include "base/version.hpp"
#include "net/data/data_request.hpp"
#include "net/limits/io_watch.hpp"
#include "net/limits/session_timer.hpp"
#include "net/peer/link_context.hpp"

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/write.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>

#include <memory>
#include <utility>

namespace gradsync::net {

namespace {

namespace http = boost::beast::http;

class DataHandshake final : public Session, public std::enable_shared_from_this<DataHandshake> {
 public:
  DataHandshake(const ContextPtr& context, PeerSocket socket)
      : context_(context), socket_(std::move(socket)), deadline_(context->io.get_executor()) {}

  void go_away() override { abort(); }

  void abort() override {
    socket_.end();
    stop(deadline_);
  }

  [[nodiscard]] bool expendable() const override { return false; }

  /// Answers, and takes the socket out of Asio; none where the other end is gone, or sent bytes before it had the
  /// answer.
  Task<UniqueFd> run() {
    after(deadline_, context_->options.handshake_timeout, weak_from_this(), [](DataHandshake& handshake) {
      handshake.abort();
    });
    http::response<http::empty_body> answer{http::status::switching_protocols, 11};
    answer.set(http::field::server, fmt::format("gradsyncd/{}", kVersion));
    answer.set(http::field::connection, "Upgrade");
    answer.set(http::field::upgrade, kDataProtocol);
    auto [error, bytes] = co_await http::async_write(socket_, answer, use_task);
    stop(deadline_);
    if (error || !socket_.is_open()) {
      co_return UniqueFd{};
    }
    boost::system::error_code ignored;
    if (socket_.available(ignored) > 0) {
      spdlog::warn("a data connection is closed: bytes came over it before both ends were asked for any");
      socket_.end();
      co_return UniqueFd{};
    }
    UniqueFd socket{socket_.release(ignored)};
    ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
    co_return socket;
  }

 private:
  ContextPtr context_;
  PeerSocket socket_;
  Timer deadline_;
};

}  // namespace

Task<void> serve_data_link(ContextPtr context, Upgrade upgrade, DataLinkHello hello, std::string other_address) {
  const auto handshake = std::make_shared<DataHandshake>(context, std::move(upgrade.socket));
  context->sessions[upgrade.id] = handshake;
  UniqueFd socket = co_await handshake->run();
  if (!socket.valid()) {
    spdlog::debug("a data connection was not opened connection={}", upgrade.id);
    co_return;
  }
  const IoWatch::Turn turn{context->metrics.io_watch, "a data connection"};
  context->peers->sink.on_data_link({std::move(hello), std::move(other_address), std::move(socket)});
}

}  // namespace gradsync::net
