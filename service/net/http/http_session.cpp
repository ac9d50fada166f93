#include "net/http/http_session.hpp"

#include "base/version.hpp"
#include "net/data/data_listener.hpp"
#include "net/data/data_request.hpp"
#include "net/http/http_rules.hpp"
#include "net/http/refusals.hpp"
#include "net/http/request_access.hpp"
#include "net/http/websocket_session.hpp"
#include "net/limits/read_pace.hpp"
#include "net/limits/session_timer.hpp"
#include "net/peer/link_context.hpp"
#include "net/peer/peer_listener.hpp"
#include "net/socket/closing.hpp"
#include "net/socket/peer_socket.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace gradsync::net {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr std::size_t kLingerBytes = 64u << 20;

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

bool reads(const Request& request) {
  return request.method() == http::verb::get || request.method() == http::verb::head;
}

/// The request outlives it.
PageRequest page_request(const Request& request, bool trusted) {
  const Target target = split_target(view(request.target()));
  return {target.path, target.query, view(request[http::field::accept]), trusted};
}

Response text_response(http::status status, std::string body) {
  Response response{status, 11};
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = std::move(body) + "\n";
  return response;
}

Response page_response(const HttpReply& page) {
  Response response{static_cast<http::status>(page.status), 11};
  response.set(http::field::content_type, page.content_type);
  response.set(http::field::cache_control, "no-store");
  if (!page.content_policy.empty()) {
    response.set("Content-Security-Policy", page.content_policy);
    response.set("X-Content-Type-Options", "nosniff");
    response.set("Referrer-Policy", "no-referrer");
  }
  response.body() = page.body;
  return response;
}

Response refused_response(Refusal refusal) {
  Response response = text_response(static_cast<http::status>(refusal.status), std::move(refusal.text));
  if (!refusal.field.empty()) {
    response.set(refusal.field, refusal.value);
  }
  return response;
}

void set_length(Response& answer, http::verb method) {
  if (method == http::verb::head) {
    answer.content_length(answer.body().size());
    answer.body().clear();
  } else {
    answer.prepare_payload();
  }
}

/// The request outlives it.
DataRequest data_request_of(const Request& request, std::size_t bytes_behind) {
  DataRequest data;
  data.is_get = request.method() == http::verb::get;
  data.upgrades = http::token_list{request[http::field::connection]}.exists("upgrade");
  data.protocol = request.count(http::field::upgrade) == 1 ? view(request[http::field::upgrade]) : std::string_view{};
  data.bytes_behind = bytes_behind;
  data.header = [&request](std::string_view name) -> std::optional<std::string_view> {
    const beast::string_view wanted{name.data(), name.size()};
    return request.count(wanted) == 1 ? std::optional(view(request[wanted])) : std::nullopt;
  };
  return data;
}

/// The request outlives it.
Asking asking_of(const Request& request) {
  const auto value_of = [&request](http::field field) {
    const auto found = request.find(field);
    return found == request.end() ? std::nullopt : std::optional(view(found->value()));
  };
  return {
      .host = view(request[http::field::host]),
      .origin = value_of(http::field::origin),
      .authorization = value_of(http::field::authorization),
      // A WebSocket begins with a GET of "/", too, and is no page.
      .page = reads(request) && request.count(http::field::upgrade) == 0 ? std::optional(page_request(request, false))
                                                                         : std::nullopt,
  };
}

constexpr UpgradePlace kRpcPlace{"/rpc", kSubprotocol, true};
constexpr UpgradePlace kPeerPlace{"/peer", kPeerSubprotocol};

class HttpSession final : public Session, public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(const ContextPtr& context, Incoming incoming)
      : context_(context),
        id_(incoming.id),
        entrance_(incoming.entrance),
        peer_(incoming.peer),
        process_(std::move(incoming.process)),
        pace_(context, peer_, id_, context->options.handshake_timeout),
        socket_(context->io.get_executor()),
        deadline_(context->io.get_executor()) {
    peer_.address = std::move(incoming.address);
    socket_.take(std::move(incoming.socket), incoming.family, peer_.uid, std::move(incoming.closer));
  }

  void go_away() override {
    leaving_ = true;
    pace_.stop();
    if (!busy_) {
      abort();
    }
  }

  void abort() override {
    socket_.end();
    deadline_.cancel();
    pace_.stop();
  }

  Task<void> run() {
    bool keep_alive = true;
    while (keep_alive && !leaving_) {
      arm_deadline();
      http::request_parser<http::string_body> parser;
      parser.header_limit(kHeaderBytes);
      parser.body_limit(body_bytes());
      if (const boost::system::error_code error = co_await read_request(parser)) {
        co_await refuse_unreadable(error);
        break;
      }
      Request request = parser.release();
      const bool in_time = co_await take_turn();
      if (leaving_ || !socket_.is_open()) {
        break;
      }
      if (!in_time) {
        Response answer = waited_too_long();
        answer.keep_alive(false);
        co_await write(std::move(answer));
        break;
      }
      std::optional<Response> answer;
      if (std::optional<Refusal> refusal = refuse_access(*context_, entrance_, peer_, asking_of(request))) {
        answer = refused_response(std::move(*refusal));
      }
      if (!answer && entrance_ == Entrance::Peer && split_target(view(request.target())).path == kDataPath) {
        answer = co_await open_data_link(request);
        if (!answer) {
          co_return;
        }
      } else if (!answer && entrance_ != Entrance::Health && beast::websocket::is_upgrade(request)) {
        answer = refuse_place(request);
        if (!answer) {
          co_await upgrade(std::move(request));
          co_return;
        }
      }
      if (!answer) {
        answer = co_await respond(request);
      }
      keep_alive = request.keep_alive() && !leaving_ && entrance_ != Entrance::Peer;
      answer->keep_alive(keep_alive);
      set_length(*answer, request.method());
      co_await write(std::move(*answer));
      busy_ = false;
    }
    abort();
  }

 private:
  /// A daemon that wants a link has nothing else to say.
  [[nodiscard]] std::size_t body_bytes() const {
    return entrance_ == Entrance::Peer ? 0 : context_->options.message_bytes;
  }

  Task<boost::system::error_code> read_request(http::request_parser<http::string_body>& parser) {
    auto [header_error, header_bytes] = co_await http::async_read_header(socket_, buffer_, parser, use_task);
    busy_ = true;
    if (header_error) {
      co_return header_error;
    }
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      co_await write_continue();
    }
    auto [body_error, body_bytes] = co_await http::async_read(socket_, buffer_, parser, use_task);
    co_return body_error;
  }

  Task<void> refuse_unreadable(boost::system::error_code error) {
    if (std::optional<Refusal> refusal = net::refuse_unreadable(error, body_bytes())) {
      Response answer = refused_response(std::move(*refusal));
      answer.keep_alive(false);
      co_await write(std::move(answer));
      co_await linger();
    }
  }

  /// Waits until a request may be answered; false if that takes too long. Peers by TCP are not paced: they share one
  /// account, and one that asks much must not delay a probe.
  Task<bool> take_turn() {
    if (!peer_.local) {
      co_return true;
    }
    pace_.answer_for_process();
    ReadPace::Turn turn = pace_.next();
    if (turn == ReadPace::Turn::Wait) {
      stop(deadline_);
      while (turn == ReadPace::Turn::Wait) {
        auto [cut_short] = co_await pace_.timer().async_wait(use_task);
        static_cast<void>(cut_short);
        turn = pace_.next();
      }
      arm_deadline();
    }
    co_return turn != ReadPace::Turn::TooLong;
  }

  Response waited_too_long() const {
    const Milliseconds waited = pace_.longest();
    context_->log->write(
        LimitedLog::Kind::RequestWaited,
        spdlog::level::info,
        fmt::format(
            "a request that waited for {} ms behind others of its process is refused connection={} pid={} uid={}",
            waited.count(),
            id_,
            peer_.pid,
            peer_.uid
        )
    );
    return refused_response(net::waited_too_long(waited));
  }

  void arm_deadline() {
    after(deadline_, context_->options.handshake_timeout, weak_from_this(), [](HttpSession& session) {
      session.abort();
    });
  }

  std::optional<Response> refuse_place(const Request& request) const {
    std::string offered;
    for (auto [field, end] = request.equal_range(http::field::sec_websocket_protocol); field != end; ++field) {
      offered += offered.empty() ? "" : ",";
      offered += view(field->value());
    }
    const UpgradePlace& place = entrance_ == Entrance::Peer ? kPeerPlace : kRpcPlace;
    auto refused = refuse_upgrade(place, view(request.target()), offered, buffer_.size());
    return refused ? std::optional(refused_response(std::move(*refused))) : std::nullopt;
  }

  /// A refusal, or none: then it was answered, and the connection is not this session's any more.
  Task<std::optional<Response>> open_data_link(const Request& request) {
    auto read = read_data_request(data_request_of(request, buffer_.size()));
    if (auto* refused = std::get_if<Refusal>(&read)) {
      co_return refused_response(std::move(*refused));
    }
    stop(deadline_);
    Upgrade upgrade{id_, std::move(socket_), {}, peer_, std::move(process_)};
    co_await serve_data_link(context_, std::move(upgrade), std::get<DataLinkHello>(std::move(read)), peer_.address);
    co_return std::nullopt;
  }

  Task<Response> respond(const Request& request) {
    if (entrance_ == Entrance::Peer) {
      co_return refused_response(refuse_without_upgrade(kPeerPlace, view(request.target())));
    }
    const Target target = split_target(view(request.target()));
    if (target.path == "/rpc" && entrance_ != Entrance::Health) {
      if (request.method() == http::verb::post) {
        co_return co_await post(request);
      }
      co_return refused_response(method_not_allowed("POST"));
    }
    if (!reads(request) && entrance_ == Entrance::Health) {
      co_return refused_response(method_not_allowed("GET, HEAD"));
    }
    co_return page(request);
  }

  Response page(const Request& request) {
    // A page shows the jobs of every uid.
    const bool owner = entrance_ == Entrance::Unix && (peer_.uid == 0 || peer_.uid == context_->own_uid);
    const bool trusted = owner || peer_.token != TokenRole::None;
    const IoWatch::Turn turn{context_->metrics.io_watch, "a page"};
    // The metrics are the same for all: those by TCP share a text, and only the owner sees the numbers of this moment.
    PageRequest asked = page_request(request, trusted);
    asked.trusted = trusted && (owner || asked.path != "/metrics");
    const std::optional<HttpReply> page = context_->pages.on_get(asked);
    charge(turn);
    if (!page) {
      return text_response(http::status::not_found, fmt::format("no page '{}'", asked.path));
    }
    return reads(request) ? page_response(*page) : refused_response(method_not_allowed("GET, HEAD"));
  }

  void charge(const IoWatch::Turn& turn) { pace_.charge(FairShare::Worth::Refused, turn.computed()); }

  Task<Response> post(const Request& request) {
    if (!is_json_content_type(view(request[http::field::content_type]))) {
      co_return text_response(
          http::status::unsupported_media_type,
          fmt::format(
              "content type '{}' is not supported; send 'Content-Type: application/json'",
              view(request[http::field::content_type])
          )
      );
    }
    MessageHandler::PostReply reply =
        post_turn(request.body(), [&] { return context_->messages.on_post(peer_, request.body()); });
    if (reply.go_on) {
      stop(deadline_);
      while (reply.go_on && socket_.is_open()) {
        co_await asio::post(context_->io, use_task);  // behind what others sent meanwhile
        reply = post_turn({}, reply.go_on);
      }
      arm_deadline();
    }
    if (reply.later) {
      stop(deadline_);
      reply = co_await made_elsewhere(std::exchange(reply.later, {}));
      arm_deadline();
    }
    Response response{static_cast<http::status>(reply.status), 11};
    if (!reply.body.empty()) {
      response.set(http::field::content_type, "application/json");
    }
    response.body() = std::move(reply.body);
    co_return response;
  }

  /// Waits for as long as it takes: whoever makes the reply has a limit of its own.
  Task<MessageHandler::PostReply> made_elsewhere(
      std::function<void(std::function<void(MessageHandler::PostReply)>)> later
  ) {
    struct Waiting {
      explicit Waiting(asio::io_context& io) : gate(io, Timer::time_point::max()) {}

      Timer gate;
      std::optional<MessageHandler::PostReply> reply;
    };

    const auto waiting = std::make_shared<Waiting>(context_->io);
    later([waiting](MessageHandler::PostReply reply) {
      waiting->reply = std::move(reply);
      waiting->gate.cancel();
    });
    while (!waiting->reply) {
      co_await waiting->gate.async_wait(use_task);
    }
    co_return std::move(*waiting->reply);
  }

  template <typename Turn>
  MessageHandler::PostReply post_turn(std::string_view text, const Turn& work) {
    const IoWatch::Turn turn{context_->metrics.io_watch, "a POST", text};
    MessageHandler::PostReply reply = work();
    charge(turn);
    return reply;
  }

  Task<void> upgrade(Request request) {
    deadline_.cancel();
    Upgrade upgrade{id_, std::move(socket_), std::move(request), peer_, std::move(process_)};
    if (entrance_ == Entrance::Peer) {
      co_await serve_peer_link(context_, std::move(upgrade));
    } else {
      co_await serve_websocket(context_, std::move(upgrade));
    }
  }

  Task<void> write(Response response) {
    response.set(http::field::server, fmt::format("gradsyncd/{}", kVersion));
    if (!response.has_content_length()) {
      response.prepare_payload();
    }
    auto [error, bytes] = co_await http::async_write(socket_, response, use_task);
    if (error) {
      abort();
    }
  }

  Task<void> write_continue() {
    http::response<http::empty_body> response{http::status::continue_, 11};
    auto [error, bytes] = co_await http::async_write(socket_, response, use_task);
    if (error) {
      abort();
    }
  }

  /// Reads off what the peer still sends, so that it sees the answer and not a reset; ends with the deadline.
  Task<void> linger() {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    const Duration cost = co_await read_off(socket_, kLingerBytes);
    pace_.charge(FairShare::Worth::Refused, cost);
  }

  ContextPtr context_;
  ConnectionId id_;
  Entrance entrance_;
  PeerIdentity peer_;
  UniqueFd process_;
  ReadPace pace_;
  PeerSocket socket_;
  Timer deadline_;
  beast::flat_buffer buffer_;
  bool busy_ = false;     ///< a request is being read or answered
  bool leaving_ = false;  ///< go_away was called
};

Task<void> drive(std::shared_ptr<HttpSession> session) { co_await session->run(); }

}  // namespace

Serving serve_http(const ContextPtr& context, Incoming incoming) {
  auto session = std::make_shared<HttpSession>(context, std::move(incoming));
  return {session, drive(session)};
}

}  // namespace gradsync::net
