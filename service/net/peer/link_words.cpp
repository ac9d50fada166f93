#include "net/peer/link_words.hpp"

#include <boost/asio/error.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/websocket/error.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <fmt/format.h>

namespace gradsync::net {

namespace {

using boost::beast::http::status;
using LinkCloseCode = boost::beast::websocket::close_code;

std::string closed_with(std::uint16_t code) {
  switch (code) {
    case LinkCloseCode::normal:
      return "the other daemon closed it";
    case LinkCloseCode::going_away:
      return "the other daemon is shutting down";
    case LinkCloseCode::policy_error:
      return "the other daemon closed it, because no join came in time";
    case LinkCloseCode::too_big:
      return "a message was too large for the other daemon";
    default:
      return fmt::format("the other daemon closed it with code {}", code);
  }
}

}  // namespace

std::string declined(unsigned code) {
  switch (static_cast<status>(code)) {
    case status::unauthorized:
      return "it refuses the token: [peer] token_file has to have the same token on all nodes";
    case status::not_found:
    case status::bad_request:
      return fmt::format("HTTP {}: what answers there is no listener for links of this release", code);
    case status::service_unavailable:
      return "HTTP 503: it has no place for another link now";
    default:
      return fmt::format("HTTP {}", code);
  }
}

std::string no_answer_within(Milliseconds wait) { return fmt::format("no answer within {} ms", wait.count()); }

std::string broken_by(boost::system::error_code error) {
  namespace websocket = boost::beast::websocket;
  if (error == boost::asio::error::eof) {
    return "the other daemon closed the connection";
  }
  if (error.category() == websocket::make_error_code(websocket::error::closed).category()) {
    return fmt::format("the other daemon broke the WebSocket protocol: {}", error.message());
  }
  return fmt::format("the connection broke: {}", error.message());
}

std::string ended_by(boost::system::error_code error, std::uint16_t code, std::size_t most_bytes) {
  namespace websocket = boost::beast::websocket;
  if (error == websocket::error::closed) {
    return closed_with(code);
  }
  if (error == websocket::error::message_too_big) {
    return fmt::format("the other daemon sent a message of more than {} bytes", most_bytes);
  }
  return broken_by(error);
}

std::string silent_for(Milliseconds wait) {
  return fmt::format("no byte came from the other daemon for {} ms", wait.count());
}

std::string not_joined_within(Milliseconds wait) {
  return fmt::format("the other daemon did not join within {} ms", wait.count());
}

std::string too_large_to_send(std::size_t bytes, std::size_t most) {
  return fmt::format("a message of {} bytes is too large for a link, the limit is {}", bytes, most);
}

std::string too_much_unread(std::size_t bytes, std::size_t most) {
  return fmt::format("the other daemon does not read: {} bytes wait for it, the limit is {}", bytes, most);
}

std::string too_much_joining(std::size_t most) {
  return fmt::format("links that have not joined hold more than {} bytes of unfinished messages, this one most", most);
}

}  // namespace gradsync::net
