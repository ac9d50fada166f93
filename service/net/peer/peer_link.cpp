#include "net/peer/peer_link.hpp"

#include "base/text/text.hpp"
#include "base/version.hpp"
#include "net/limits/io_watch.hpp"
#include "net/limits/session_timer.hpp"
#include "net/peer/link_pulse.hpp"
#include "net/peer/link_words.hpp"
#include "net/socket/closing.hpp"
#include "net/socket/immediate_teardown_socket.hpp"
#include "net/socket/peer.hpp"
#include "net/socket/text_queue.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace gradsync::net {

namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace websocket = boost::beast::websocket;

using LinkSocket = ImmediateTeardown<PeerSocket>;

/// The function that Beast calls at the end.
template <typename Handler>
void async_teardown(beast::role_type, LinkSocket& socket, Handler&& handler) {
  socket.tear_down(std::forward<Handler>(handler));
}

namespace {

constexpr std::size_t kLinkReadBytes = 64 * 1024;    // in one turn of the thread, of a large message
constexpr std::size_t kLinkKeptBytes = 1024 * 1024;  // of a buffer
constexpr std::size_t kMaskedBytes = 64 * 1024;      // in one write, of the side that has to mask
constexpr std::size_t kLinkLingerBytes = 64u << 20;
constexpr Milliseconds kLinkLinger{1'000};

class OpenLink final : public PeerLink, public std::enable_shared_from_this<OpenLink> {
 public:
  OpenLink(const LinkContextPtr& context, LinkStart start)
      : context_(context),
        id_(start.id),
        accepted_(start.accepted),
        on_joined_(std::move(start.on_joined)),
        stream_(std::move(start.socket)),
        pulse_(context->options.beat, context->options.dead),
        beat_(context->io.get_executor()),
        silence_(context->io.get_executor()),
        deadline_(context->io.get_executor()),
        written_(context->io.get_executor(), Timer::time_point::max()) {
    set_tcp_options(stream_.next_layer().native_handle(), context->options.dead);
    stream_.read_message_max(context->options.link_message_bytes);
    stream_.auto_fragment(false);  // one message, one frame
    stream_.write_buffer_bytes(kMaskedBytes);
    stream_.text(true);
    stream_.control_callback([this](websocket::frame_type, beast::string_view) { heard(); });
  }

  // ---- Session

  void go_away() override { finish(websocket::close_code::going_away, "this daemon is shutting down"); }

  void abort() override { drop("this daemon ended it"); }

  [[nodiscard]] bool expendable() const override { return false; }

  // ---- PeerLink

  Task<std::string> accept(std::any request) override {
    stream_.set_option(websocket::stream_base::decorator([](websocket::response_type& response) {
      response.set(http::field::server, fmt::format("gradsyncd/{}", kVersion));
      response.set(http::field::sec_websocket_protocol, kPeerSubprotocol);
    }));
    expect_handshake();
    auto [error] =
        co_await stream_.async_accept(std::any_cast<const http::request<http::string_body>&>(request), use_task);
    stop(deadline_);
    co_return error ? error.message() : std::string();
  }

  Task<std::string> ask(std::string host) override {
    const std::string bearer = "Bearer " + context_->token;
    stream_.set_option(websocket::stream_base::decorator([bearer](websocket::request_type& request) {
      request.set(http::field::user_agent, fmt::format("gradsyncd/{}", kVersion));
      request.set(http::field::authorization, bearer);
      request.set(http::field::sec_websocket_protocol, kPeerSubprotocol);
    }));
    expect_handshake();
    websocket::response_type answer;
    auto [error] = co_await stream_.async_handshake(answer, host, "/peer", use_task);
    stop(deadline_);
    if (late_) {
      co_return no_answer_within(context_->options.connect);
    }
    if (error == websocket::error::upgrade_declined) {
      co_return declined(answer.result_int());
    }
    if (!error && answer[http::field::sec_websocket_protocol] != kPeerSubprotocol) {
      co_return std::string("what answers there is no listener for links of this release");
    }
    co_return error ? fmt::format("the handshake failed: {}", error.message()) : std::string();
  }

  Task<void> run() override {
    const EndAtExit at_exit{*this};
    if (!ended_) {
      begin();
    }
    co_await read_texts();
    if (closing_) {
      co_await write_last_texts();
      co_await say_why();
    }
    buffer_ = {};
    if (!dead_) {
      after(deadline_, kLinkLinger, weak_from_this(), [](OpenLink& link) { link.break_off(); });
      static_cast<void>(co_await read_off(stream_.next_layer(), kLinkLingerBytes));
    }
  }

  void send(std::string text) override {
    const PeerOptions& options = context_->options;
    if (ended_) {
      return;
    }
    if (text.size() > options.link_message_bytes) {
      finish(websocket::close_code::internal_error, too_large_to_send(text.size(), options.link_message_bytes));
      return;
    }
    if (queue_.bytes() + text.size() > options.link_unread_bytes) {
      context_->metrics.slow_readers.Increment();
      drop(too_much_unread(queue_.bytes() + text.size(), options.link_unread_bytes));
      return;
    }
    pulse_.sent();
    push(std::move(text));
  }

  void joined() override {
    if (ended_ || std::exchange(joined_, true)) {
      return;
    }
    stop(deadline_);
    hold_partial(0);
    if (on_joined_) {
      on_joined_();
    }
  }

  void close() override { finish(websocket::close_code::normal, "this daemon closed it"); }

  void drop(std::string why) override {
    end(std::move(why));
    break_off();
  }

 private:
  /// Operations that an exception left pending end with the socket, and the sink hears of the end.
  struct EndAtExit {
    OpenLink& link;

    ~EndAtExit() { link.drop("it failed, by a defect of this daemon"); }
  };

  void expect_handshake() {
    after(deadline_, context_->options.connect, weak_from_this(), [](OpenLink& link) {
      link.late_ = true;
      link.break_off();
    });
  }

  void begin() {
    open_ = true;
    const SocketEnds ends = socket_ends(stream_.next_layer().native_handle());
    context_->links.emplace(id_, shared_from_this());
    heard();
    expect_beat();
    watch_silence(context_->options.dead);
    if (accepted_) {
      expect_join();
    }
    spdlog::info("link to another daemon link={} accepted={} other={}", id_, accepted_, ends.other);
    context_->sink.on_link(id_, {accepted_, ends.own, ends.other});
  }

  // ---- reading

  Task<void> read_texts() {
    while (!ended_) {
      auto [error, bytes] = co_await stream_.async_read_some(buffer_, kLinkReadBytes, use_task);
      if (ended_) {
        break;
      }
      if (error) {
        on_read_error(error);
        break;
      }
      heard();
      context_->metrics.received_bytes.Increment(static_cast<double>(bytes));
      if (!stream_.got_text()) {
        finish(websocket::close_code::unknown_data, "the other daemon sent a message that is no text");
      } else if (stream_.is_message_done()) {
        hand_over();
      } else {
        hold_partial(buffer_.size());
      }
    }
  }

  void on_read_error(boost::system::error_code error) {
    std::string why = ended_by(error, stream_.reason().code, context_->options.link_message_bytes);
    const bool answered = error.category() == websocket::make_error_code(websocket::error::closed).category();
    if (answered) {
      end(std::move(why));  // the other end reads the close frame that Beast has written
    } else {
      drop(std::move(why));
    }
  }

  void hand_over() {
    const auto data = buffer_.data();
    const std::string_view text{static_cast<const char*>(data.data()), data.size()};
    if (ends_within_character(text)) {  // the one fault of a text that Beast misses, where its last frame is empty
      finish(websocket::close_code::bad_payload, "the other daemon sent a text that ends within a character");
      return;
    }
    hold_partial(0);
    {
      const IoWatch::Turn turn{context_->metrics.io_watch, "a text of another daemon", text};
      context_->sink.on_text(id_, text);
    }
    buffer_.consume(buffer_.size());
    if (buffer_.capacity() > kLinkKeptBytes) {
      buffer_.shrink_to_fit();
    }
  }

  /// Notes what this link holds of a message that has not ended; those that have joined are not bounded together.
  void hold_partial(std::size_t bytes) {
    if ((joined_ && bytes > 0) || !accepted_) {
      return;
    }
    context_->hold_joining(id_, bytes);
  }

  // ---- writing

  void push(std::string text) {
    const bool writing = !queue_.empty();
    queue_.push(std::move(text));
    if (!writing) {
      write_front();
    }
  }

  void write_front() {
    // Asio tries the system call at once; with room in the socket the text is gone before this returns.
    stream_.async_write(
        asio::buffer(queue_.front()),
        [self = shared_from_this()](boost::system::error_code error, std::size_t bytes) {
          self->on_written(error, bytes);
        }
    );
  }

  void on_written(boost::system::error_code error, std::size_t bytes) {
    if (error || dead_) {
      drop(broken_by(error));
      return;
    }
    context_->metrics.sent_bytes.Increment(static_cast<double>(bytes));
    queue_.pop();
    if (!queue_.empty()) {
      write_front();
    } else if (closing_) {
      stop_reading();
    }
  }

  /// While the last texts are written, what the other end sends is dropped: as long as its own writing is blocked it
  /// reads nothing of them.
  Task<void> write_last_texts() {
    const auto writes = [this] { return !queue_.empty() && !dead_; };
    static_cast<void>(co_await read_off(stream_.next_layer(), kLinkLingerBytes, writes));
    while (writes()) {
      auto [cut_short] = co_await written_.async_wait(use_task);
      static_cast<void>(cut_short);
    }
  }

  Task<void> say_why() {
    if (dead_) {
      co_return;
    }
    const WebSocketEnd end = accepted_ ? WebSocketEnd::Server : WebSocketEnd::Client;
    const bool said = co_await say_close(stream_.next_layer(), end, code_, {});
    if (!said) {
      break_off();
    }
  }

  // ---- deadlines

  void heard() { pulse_.heard(std::chrono::steady_clock::now()); }

  void expect_beat() {
    after(beat_, context_->options.beat, weak_from_this(), [](OpenLink& link) {
      if (link.pulse_.beat_due() && link.queue_.empty()) {
        link.push(link.context_->options.beat_text);
      }
      link.expect_beat();
    });
  }

  void watch_silence(Milliseconds wait) {
    after(silence_, wait, weak_from_this(), [](OpenLink& link) {
      boost::system::error_code ignored;
      const bool unread = link.stream_.next_layer().available(ignored) > 0;
      if (const auto next = link.pulse_.look(std::chrono::steady_clock::now(), unread)) {
        link.watch_silence(*next);
      } else {
        link.drop(silent_for(link.context_->options.dead));
      }
    });
  }

  void expect_join() {
    after(deadline_, context_->options.join, weak_from_this(), [](OpenLink& link) {
      link.finish(websocket::close_code::policy_error, not_joined_within(link.context_->options.join));
    });
  }

  // ---- the end

  /// Final, for the sink; the socket may go on for a second.
  void end(std::string why) {
    if (std::exchange(ended_, true)) {
      return;
    }
    for (Timer* timer : {&beat_, &silence_, &deadline_}) {
      stop(*timer);
    }
    hold_partial(0);
    on_joined_ = nullptr;
    if (open_) {
      context_->end(id_, std::move(why));
    }
  }

  /// The texts that wait are written, then a close frame; the other end has a second to read them.
  void finish(websocket::close_code code, std::string why) {
    if (ended_) {
      return;
    }
    end(std::move(why));
    if (!open_) {
      break_off();
      return;
    }
    closing_ = true;
    code_ = code;
    after(deadline_, kLinkLinger, weak_from_this(), [](OpenLink& link) { link.break_off(); });
    if (queue_.empty()) {
      stop_reading();
    }
  }

  /// Beast must not read while a link closes: at a wrong frame that comes meanwhile both wait for each other for ever.
  void stop_reading() {
    written_.cancel();
    boost::system::error_code ignored;
    stream_.next_layer().cancel(ignored);
  }

  void break_off() {
    dead_ = true;
    stop(deadline_);
    stream_.next_layer().end();
    written_.cancel();
  }

  LinkContextPtr context_;
  const LinkId id_;
  const bool accepted_;
  std::function<void()> on_joined_;
  websocket::stream<LinkSocket, false> stream_;  // false: permessage-deflate is not compiled in
  beast::flat_buffer buffer_;
  TextQueue queue_;  ///< the front is being written
  LinkPulse pulse_;
  Timer beat_;
  Timer silence_;
  Timer deadline_;  ///< of the handshake, then of the join, then of the end
  Timer written_;   ///< a wait for it ends when all is written, or the link is dead
  websocket::close_code code_ = websocket::close_code::normal;
  bool joined_ = false;
  bool open_ = false;     ///< the sink knows it
  bool late_ = false;     ///< the handshake
  bool ended_ = false;    ///< nothing is handed over any more
  bool closing_ = false;  ///< a close frame is to be written
  bool dead_ = false;     ///< the socket is closed
};

}  // namespace

std::shared_ptr<PeerLink> make_link(const LinkContextPtr& context, LinkStart start) {
  return std::make_shared<OpenLink>(context, std::move(start));
}

}  // namespace gradsync::net
