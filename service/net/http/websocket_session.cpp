#include "net/http/websocket_session.hpp"

#include "base/text/text.hpp"
#include "base/version.hpp"
#include "net/http/close_cause.hpp"
#include "net/limits/read_pace.hpp"
#include "net/limits/session_timer.hpp"
#include "net/socket/closing.hpp"
#include "net/socket/handler_registration.hpp"
#include "net/socket/immediate_teardown_socket.hpp"
#include "net/socket/paced_socket.hpp"
#include "net/socket/text_queue.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace gradsync::net {

namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace websocket = boost::beast::websocket;

using WebSocketSocket = ImmediateTeardown<PacedSocket>;

/// The function that Beast calls at the end.
template <typename Handler>
void async_teardown(beast::role_type, WebSocketSocket& socket, Handler&& handler) {
  socket.tear_down(std::forward<Handler>(handler));
}

namespace {

using Request = http::request<http::string_body>;

constexpr std::size_t kReasonBytes = 123;            // of a close frame
constexpr std::size_t kReadBytes = 16 * 1024;        // in one turn of the thread, of a large message
constexpr std::size_t kKeptBytes = 64 * 1024;        // of a buffer
constexpr std::size_t kSmallPartBytes = 1024;        // of a message
constexpr std::size_t kFreeUnreadBytes = 16 * 1024;  // what a reader leaves that is only slow
constexpr std::size_t kLingerBytes = 64u << 20;
constexpr Milliseconds kLinger{1'000};
constexpr std::chrono::microseconds kConnection{200};  // to take one, and to end it

class WebSocketSession final : public Session,
                               public WebSocketPort,
                               public std::enable_shared_from_this<WebSocketSession> {
 public:
  WebSocketSession(const ContextPtr& context, Upgrade upgrade)
      : context_(context),
        id_(upgrade.id),
        peer_(upgrade.peer),
        process_(std::move(upgrade.process)),
        request_(std::move(upgrade.request)),
        pace_(context, peer_, id_, context->options.message_timeout),
        stream_(std::move(upgrade.socket), pace_),
        initialize_(context->io.get_executor()),
        message_end_(context->io.get_executor()),
        linger_(context->io.get_executor()),
        written_(context->io.get_executor(), Timer::time_point::max()),
        turn_(context->io.get_executor(), Timer::time_point::max()),
        tokens_(peer_.token == TokenRole::None ? 0 : context->tokens.generation()) {
    websocket::stream_base::timeout timeout{};
    timeout.handshake_timeout = context->options.handshake_timeout;
    timeout.idle_timeout = context->options.idle_timeout;
    timeout.keep_alive_pings = true;
    stream_.set_option(timeout);
    stream_.set_option(websocket::stream_base::decorator([](websocket::response_type& response) {
      response.set(http::field::server, fmt::format("gradsyncd/{}", kVersion));
      response.set(http::field::sec_websocket_protocol, kSubprotocol);
    }));
    stream_.read_message_max(0);   // Beast would close without a word; `read_messages` names the limit
    stream_.auto_fragment(false);  // one message, one frame, one write
    stream_.text(true);
    stream_.control_callback([this](websocket::frame_type, beast::string_view) {
      pace_.charge_frame(ReadPace::kControlFrame);
    });
  }

  ~WebSocketSession() override {
    waiting_bytes_ = 0;
    note_unread(0);
  }

  WebSocketSession(const WebSocketSession&) = delete;
  WebSocketSession& operator=(const WebSocketSession&) = delete;

  // ---- Session

  void go_away() override { start_close(shutting_down()); }

  void abort() override {
    dead_ = true;
    waiting_bytes_ = 0;
    note_unread(0);  // nothing of it is written any more
    pace_.stop();
    stream_.next_layer().end();
    written_.cancel();
  }

  [[nodiscard]] bool expendable() const override { return false; }

  // ---- WebSocketPort

  void send(std::string text) override {
    if (closing_ || dead_) {
      return;
    }
    const bool writing = !queue_.empty();
    if (writing && queue_.bytes() + text.size() > context_->options.write_queue_bytes) {
      context_->metrics.slow_readers.Increment();
      log(LimitedLog::Kind::SlowReader,
          spdlog::level::warn,
          fmt::format("closing a connection that does not read queued_bytes={}", queue_.bytes()));
      closing_ = true;  // messages that it sent behind this count no more, even if they are read already
      abort();
      return;
    }
    queue_.push(std::move(text));
    if (!writing) {
      write_front();
    }
    note_unread(queue_.bytes());
  }

  [[nodiscard]] bool drained() const override { return queue_.empty() && !closing_ && !dead_; }

  void note_waiting(std::size_t bytes) override {
    if (!dead_) {
      waiting_bytes_ = bytes;
      note_unread(queue_.bytes());
    }
  }

  void close(std::string_view reason) override { start_close(close_asked(reason)); }

  void drop_unread_answers(const HeldBytes::Excess& excess) override {
    context_->metrics.slow_readers.Increment();
    log(LimitedLog::Kind::SlowReader,
        spdlog::level::warn,
        fmt::format(
            "closing a connection that does not read: limit_exceeded: {} bytes of answers to {} are unread, the limit "
            "is {}",
            excess.bytes,
            excess.whose,
            excess.most
        ));
    closing_ = true;
    abort();
  }

  void drop_partial_message(const HeldBytes::Excess& excess) override { drop(too_much_half_sent(excess)); }

  // ---- the coroutine

  Task<void> run() {
    auto [accept_error] = co_await stream_.async_accept(std::any_cast<const Request&>(request_), use_task);
    if (accept_error) {
      spdlog::debug("upgrade failed connection={}: {}", id_, accept_error.message());
      co_return;
    }
    request_.reset();
    if (co_await read_messages()) {
      const std::string_view reason{close_reason_.reason.data(), close_reason_.reason.size()};
      const bool said = co_await say_close(stream_.next_layer(), WebSocketEnd::Server, close_reason_.code, reason);
      if (!said) {
        abort();
      }
    }
    buffer_ = {};
    if (!dead_) {
      co_await linger();
    }
  }

 private:
  /// Messages are read; ends however reading ends.
  class Reading {
   public:
    explicit Reading(WebSocketSession& session) : session_(session) {
      session_.open_ = true;
      session_.expect_initialize();
    }

    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

    ~Reading() {
      session_.open_ = false;
      stop(session_.initialize_);
      session_.hold_partial(0);
    }

   private:
    WebSocketSession& session_;
  };

  /// True: the close frame is still to be written.
  Task<bool> read_messages() {
    const HandlerRegistration registration{context_, id_, peer_, std::move(process_), shared_from_this()};
    const Reading reading{*this};
    while (!closing_) {
      auto [error, bytes] = co_await stream_.async_read_some(buffer_, kReadBytes, use_task);
      if (error) {
        co_return on_read_error(error);
      }
      context_->metrics.received_bytes.Increment(static_cast<double>(bytes));
      check_part();
      if (!stream_.is_message_done() && !closing_) {
        hold_partial(buffer_.size());
        if (bytes < kSmallPartBytes) {
          pace_.charge_frame(ReadPace::kSmallPart);
        }
        continue;
      }
      if (may_execute()) {
        hold_partial(0);
        handle_message();
      } else {
        co_await execute_in_turn(&WebSocketSession::handle_message);
        hold_partial(0);
      }
      while (!closing_ && context_->messages.has_more(id_)) {
        co_await asio::post(context_->io, use_task);  // behind what others sent meanwhile
        if (may_execute()) {
          go_on();
        } else {
          co_await execute_in_turn(&WebSocketSession::go_on);
        }
      }
      buffer_.consume(buffer_.size());
      if (buffer_.capacity() > kKeptBytes) {
        buffer_.shrink_to_fit();  // a declaration of a megabyte is rare
      }
    }
    co_return co_await write_last_texts();
  }

  /// True: the close frame is still to be written.
  bool on_read_error(boost::system::error_code error) {
    spdlog::debug("connection ends connection={} pid={}: {}", id_, peer_.pid, error.message());
    if (error.category() == websocket::make_error_code(websocket::error::closed).category() &&
        error != websocket::error::closed) {
      charge_violation();
    }
    if (error == asio::error::eof && queue_.empty()) {
      abort();  // nothing to read off: the reactor tells of an end once, so `linger` would wait its time out
    }
    if (error == kWaitedTooLong) {
      return give_up();
    }
    if (error == kSentDescriptors) {
      log(LimitedLog::Kind::Descriptors, spdlog::level::warn, "closing a connection that sent descriptors");
      abort();
    }
    return error == asio::error::operation_aborted && closing_ && !dead_;
  }

  /// Closes the connection where the part of a message that came is binary, or makes the message too large.
  void check_part() {
    if (!stream_.got_text() && !closing_) {
      charge_violation();
      start_close(binary_message());
    }
    if (buffer_.size() > context_->options.message_bytes && !closing_) {
      charge_violation();
      drop(message_too_large(context_->options.message_bytes));
    }
  }

  /// While the last texts are written, what the peer sends is read off: as long as its own writing is blocked it reads
  /// nothing of them. True: the close frame is still to be written.
  Task<bool> write_last_texts() {
    const auto writes = [this] { return !queue_.empty() && !dead_; };
    const Duration cost = co_await read_off(stream_.next_layer(), kLingerBytes, writes);
    pace_.charge(FairShare::Worth::Refused, cost);
    while (writes()) {
      auto [cut_short] = co_await written_.async_wait(use_task);
      static_cast<void>(cut_short);
    }
    co_return !dead_;
  }

  [[nodiscard]] FairShare::Process process() const { return FairShare::process_of(peer_, id_); }

  [[nodiscard]] bool may_execute() const { return !closing_ && context_->turns->free(process()); }

  /// Lets the next message of the process have its turn, however this one ends.
  struct EndOfTurn {
    ServerContext& context;
    FairShare::Process process;
    ProcessTurns::Ticket ticket;

    ~EndOfTurn() { context.turns->end(process, ticket); }
  };

  /// A connection that dies meanwhile waits on: what it has sent counts, as where it is executed at once. The wait ends
  /// after at most one message of each other connection of the process, because each has one in the queue.
  Task<void> execute_in_turn(void (WebSocketSession::*execute)()) {
    if (closing_) {
      co_return;
    }
    stop(message_end_);
    const ProcessTurns::Ticket ticket = context_->turns->wait(process(), [weak = weak_from_this()] {
      const auto self = weak.lock();
      return self && self->turn_.cancel() > 0;
    });
    const EndOfTurn end{*context_, process(), ticket};
    auto [cut_short] = co_await turn_.async_wait(use_task);
    static_cast<void>(cut_short);
    if (!closing_) {
      (this->*execute)();
    }
  }

  void handle_message() {
    const auto data = buffer_.data();
    const std::string_view text{static_cast<const char*>(data.data()), data.size()};
    if (ends_within_character(text)) {  // the one fault of a text that Beast misses, where its last frame is empty
      charge_violation();
      start_close(cut_within_character());
      return;
    }
    if (peer_.token != TokenRole::None && tokens_ != context_->tokens.generation_now()) {
      start_close(token_replaced());
      return;
    }
    const IoWatch::Turn turn{context_->metrics.io_watch, "a message", text};
    const auto worth = context_->messages.on_text(id_, text) ? FairShare::Worth::Understood : FairShare::Worth::Refused;
    const Duration computed = turn.computed();
    context_->turns->used(process(), computed);
    pace_.charge(worth, computed + text.size() * ReadPace::kByte);
  }

  void go_on() {
    const IoWatch::Turn turn{context_->metrics.io_watch, "the rest of a batch"};
    context_->messages.go_on(id_);
    const Duration computed = turn.computed();
    context_->turns->used(process(), computed);
    pace_.charge(FairShare::Worth::Understood, computed);
  }

  /// A violation that ends this connection is charged to its process, so that the next upgrade waits.
  void charge_violation() { pace_.charge(FairShare::Worth::Refused, kConnection + buffer_.size() * ReadPace::kByte); }

  /// True: the close frame is still to be written.
  bool give_up() {
    start_close(share_used_up(pace_.longest()));
    return queue_.empty() && !dead_;
  }

  /// Notes what this connection holds of a message that has not ended; 0: it has.
  void hold_partial(std::size_t bytes) {
    if (bytes == partial_bytes_) {
      return;
    }
    if (bytes == 0) {
      stop(message_end_);
    } else if (partial_bytes_ == 0) {
      expect_end_of_message();
    }
    partial_bytes_ = bytes;
    if (const auto excess = context_->half_sent.note(id_, peer_, bytes)) {
      context_->websockets.at(excess->connection)->drop_partial_message(*excess);
    }
  }

  /// Notes what the peer has not read, and what waits for it behind that. Small queues cost nothing.
  void note_unread(std::size_t queued_bytes) {
    const std::size_t bytes = queued_bytes + waiting_bytes_;
    const bool small = bytes <= kFreeUnreadBytes;
    if (small && !unread_noted_) {
      return;
    }
    unread_noted_ = !small;
    if (const auto excess = context_->unread_answers.note(id_, peer_, small ? 0 : bytes)) {
      const auto found = context_->websockets.find(excess->connection);
      if (found != context_->websockets.end()) {
        found->second->drop_unread_answers(*excess);
      }
    }
  }

  void expect_end_of_message() {
    after(message_end_, context_->options.message_timeout, weak_from_this(), [](WebSocketSession& session) {
      session.drop(message_not_ended(session.context_->options.message_timeout));
    });
  }

  /// Closes it in the middle of a message, of which nothing is kept for a peer that does not answer the close.
  void drop(const CloseCause& cause) {
    start_close(cause);
    hold_partial(0);
    after(message_end_, kLinger, weak_from_this(), [](WebSocketSession& session) { session.abort(); });
  }

  void expect_initialize() {
    if (!peer_.local) {  // by TCP there is nothing to initialize
      return;
    }
    after(initialize_, context_->options.initialize_timeout, weak_from_this(), [](WebSocketSession& session) {
      if (session.open_ && !session.context_->messages.initialized(session.id_)) {
        session.start_close(not_initialized(session.context_->options.initialize_timeout));
      }
    });
  }

  /// Peers can cause these lines as often as they like.
  void log(LimitedLog::Kind kind, spdlog::level::level_enum level, std::string_view what) const {
    context_->log->write(kind, level, fmt::format("{} connection={} pid={} uid={}", what, id_, peer_.pid, peer_.uid));
  }

  Task<void> linger() {
    after(linger_, kLinger, weak_from_this(), [](WebSocketSession& session) { session.abort(); });
    const Duration cost = co_await read_off(stream_.next_layer(), kLingerBytes);
    pace_.charge(FairShare::Worth::Refused, cost);
    stop(linger_);
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
      abort();  // the reader ends the connection
      return;
    }
    context_->metrics.sent_bytes.Increment(static_cast<double>(bytes));
    queue_.pop();
    note_unread(queue_.bytes());
    if (!queue_.empty()) {
      write_front();
    } else if (closing_) {
      stop_reading();
    } else {
      context_->messages.on_drained(id_);
    }
  }

  void start_close(const CloseCause& cause) {
    if (!cause.logged.empty()) {
      log(cause.kind, cause.level, cause.logged);
    }
    const bool already = std::exchange(closing_, true);
    if (already || dead_) {
      return;
    }
    const beast::string_view told(cause.told.data(), std::min(cause.told.size(), kReasonBytes));
    close_reason_ = websocket::close_reason(static_cast<websocket::close_code>(cause.code), told);
    after(linger_, kLinger, weak_from_this(), [](WebSocketSession& session) { session.abort(); });
    if (open_ && queue_.empty()) {
      stop_reading();
    }
  }

  /// Beast must not read while it closes: at a wrong frame that comes meanwhile both wait for each other for ever, and
  /// the session stays. So reading ends first, and the close frame goes out without Beast. Nor does it begin to read
  /// while the last texts are written: it would answer faults by itself and end the connection before they are out.
  void stop_reading() {
    pace_.stop();
    written_.cancel();
    boost::system::error_code ignored;
    stream_.next_layer().cancel(ignored);
  }

  ContextPtr context_;
  ConnectionId id_;
  PeerIdentity peer_;
  UniqueFd process_;
  std::any request_;
  ReadPace pace_;
  websocket::stream<WebSocketSocket, false> stream_;  // false: permessage-deflate is not compiled in
  beast::flat_buffer buffer_;
  std::size_t partial_bytes_ = 0;  ///< the size that context_->half_sent knows for this connection
  Timer initialize_;
  Timer message_end_;  ///< for the end of a message; once that is given up, for the end of the connection
  Timer linger_;
  Timer written_;                  ///< a wait for it ends when all is written, or the connection is dead
  Timer turn_;                     ///< a wait for it ends when the turn of a message has come
  TextQueue queue_;                ///< the front is being written
  std::size_t waiting_bytes_ = 0;  ///< that the handler keeps until the queue is empty
  bool unread_noted_ = false;
  std::uint64_t tokens_;  ///< the generation of tokens that the peer's token is of
  websocket::close_reason close_reason_;
  bool open_ = false;
  bool closing_ = false;
  bool dead_ = false;
};

/// Operations that an exception left pending end with the socket.
struct AbortAtEnd {
  WebSocketSession& session;

  ~AbortAtEnd() { session.abort(); }
};

}  // namespace

Task<void> serve_websocket(ContextPtr context, Upgrade upgrade) {
  const ConnectionId id = upgrade.id;
  const auto session = std::make_shared<WebSocketSession>(context, std::move(upgrade));
  context->sessions[id] = session;
  const AbortAtEnd abort_at_end{*session};
  co_await session->run();
}

}  // namespace gradsync::net
