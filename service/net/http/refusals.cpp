#include "net/http/refusals.hpp"

#include "net/http/http_rules.hpp"

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <fmt/format.h>

#include <utility>

namespace gradsync::net {

namespace {

using boost::beast::http::status;

Refusal refusal(status code, std::string text) { return {static_cast<int>(code), std::move(text)}; }

Refusal no_room_for_body(std::size_t body_bytes) {
  return refusal(
      status::payload_too_large,
      body_bytes == 0
          ? std::string("invalid_request: a request has no body here")
          : fmt::format("limit_exceeded: the body is larger than {} bytes ([limits] message_bytes)", body_bytes)
  );
}

}  // namespace

std::optional<Refusal> refuse_unreadable(boost::system::error_code error, std::size_t body_bytes) {
  namespace http = boost::beast::http;
  if (error == http::error::body_limit) {
    return no_room_for_body(body_bytes);
  }
  if (error == http::error::header_limit) {
    return refusal(
        status::request_header_fields_too_large, fmt::format("the headers are larger than {} bytes", kHeaderBytes)
    );
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != http::make_error_code(http::error::bad_method).category()) {
    return std::nullopt;
  }
  return refusal(status::bad_request, fmt::format("not a valid HTTP/1.1 request: {}", error.message()));
}

std::optional<Refusal> refuse_upgrade(
    const UpgradePlace& place, std::string_view target, std::string_view offered, std::size_t bytes_behind
) {
  const std::string_view path = split_target(target).path;
  if (path != place.path && !(place.at_root && path == "/")) {
    return refusal(status::not_found, fmt::format("no WebSocket at '{}'; use {}", path, place.path));
  }
  if (!offers_subprotocol(offered, place.protocol)) {
    return refusal(
        status::bad_request,
        fmt::format("version_mismatch: subprotocol '{}' is not supported; supported: {}", offered, place.protocol)
    );
  }
  if (bytes_behind > 0) {
    return refusal(
        status::bad_request,
        fmt::format(
            "invalid_request: {} bytes came along with the upgrade request; send frames after its answer", bytes_behind
        )
    );
  }
  return std::nullopt;
}

Refusal refuse_without_upgrade(const UpgradePlace& place, std::string_view target) {
  const std::string_view path = split_target(target).path;
  if (path != place.path) {
    return refusal(status::not_found, fmt::format("nothing at '{}'; use {}", path, place.path));
  }
  Refusal refused =
      refusal(status::upgrade_required, fmt::format("open a WebSocket here, with subprotocol {}", place.protocol));
  refused.field = "Upgrade";
  refused.value = "websocket";
  return refused;
}

Refusal wrong_token(std::string_view setting) {
  Refusal refused = refusal(
      status::unauthorized,
      fmt::format("unauthorized: send the header 'Authorization: Bearer <token>' with the token of {}", setting)
  );
  refused.field = "WWW-Authenticate";
  refused.value = "Bearer";
  return refused;
}

Refusal waited_too_long(Milliseconds waited) {
  return refusal(
      status::service_unavailable,
      fmt::format(
          "limit_exceeded: this process used more than its share of the daemon for {} ms; send less, or try again "
          "later",
          waited.count()
      )
  );
}

Refusal method_not_allowed(std::string allowed) {
  Refusal refused = refusal(status::method_not_allowed, fmt::format("allowed here: {}", allowed));
  refused.field = "Allow";
  refused.value = std::move(allowed);
  return refused;
}

}  // namespace gradsync::net
