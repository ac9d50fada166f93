#pragma once
// What an HTTP session answers. Included by http_session.cpp alone: Beast is compiled once. Internal to net.

#include "net/server.hpp"

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gradsync::net {

namespace beast = boost::beast;
namespace http = boost::beast::http;

using Response = http::response<http::string_body>;

inline constexpr std::size_t kHeaderBytes = 16 * 1024;

inline std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

inline Response text_response(http::status status, std::string body) {
  Response response{status, 11};
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = std::move(body) + "\n";
  return response;
}

inline Response page_response(const HttpReply& page) {
  Response response{static_cast<http::status>(page.status), 11};
  response.set(http::field::content_type, page.content_type);
  response.set(http::field::cache_control, "no-store");
  response.body() = page.body;
  return response;
}

/// What to say when a request could not be read; nullopt: the peer just left.
inline std::optional<Response> unreadable(boost::system::error_code error, std::size_t message_bytes) {
  if (error == http::error::body_limit) {
    return text_response(
        http::status::payload_too_large,
        fmt::format("limit_exceeded: the body is larger than {} bytes ([limits] message_bytes)", message_bytes)
    );
  }
  if (error == http::error::header_limit) {
    return text_response(
        http::status::request_header_fields_too_large, fmt::format("the headers are larger than {} bytes", kHeaderBytes)
    );
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != http::make_error_code(http::error::bad_method).category()) {
    return std::nullopt;
  }
  return text_response(http::status::bad_request, fmt::format("not a valid HTTP/1.1 request: {}", error.message()));
}

inline Response not_allowed(const char* allowed) {
  Response response = text_response(http::status::method_not_allowed, fmt::format("allowed here: {}", allowed));
  response.set(http::field::allow, allowed);
  return response;
}

}  // namespace gradsync::net
