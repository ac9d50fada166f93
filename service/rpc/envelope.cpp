#include "rpc/envelope.hpp"

#include "base/text.hpp"
#include "rpc/error_codes.hpp"
#include "rpc/json_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gradsync::rpc {

namespace {

Error invalid_request(std::string message, std::string hint = {}) {
  return make_error(ErrorCode::InvalidRequest, std::move(message), std::move(hint));
}

/// The id as JSON text. Null, fractions and containers are no ids here: a reply to them could not be told apart.
std::optional<Error> read_id(Value value, std::optional<std::string>& id) {
  if (value.is_integer()) {
    id = value.describe();
    return std::nullopt;
  }
  if (value.is(TokenType::String)) {
    if (value.text().size() > kLongestId) {
      return invalid_request(fmt::format("id is a string of {} bytes; at most {}", value.text().size(), kLongestId));
    }
    id = quoted(value.text());
    return std::nullopt;
  }
  return invalid_request(
      fmt::format("id is {}; expected a string or an integer", value.describe()), "leave id out for a notification"
  );
}

std::optional<Error> unknown_member(std::string_view name) {
  static const std::array<std::string, 4> kKnown{"jsonrpc", "id", "method", "params"};
  if (name.size() > 64) {
    return invalid_request("a request has only jsonrpc, id, method and params");
  }
  const std::string nearest = nearest_name(name, kKnown);
  return invalid_request(
      fmt::format("\"{}\" is not a member of a request", name),
      nearest.empty() ? "a request has only jsonrpc, id, method and params"
                      : fmt::format("did you mean \"{}\"?", nearest)
  );
}

}  // namespace

Request read_request(Value item) {
  Request request;
  if (!item.is(TokenType::Object)) {
    request.error = invalid_request(fmt::format("a request is an object, not {}", item.describe()));
    return request;
  }
  // The id first, so that the other errors can name it.
  if (const auto id = item.member("id")) {
    request.error = read_id(*id, request.id);
  }
  bool version = false;
  bool method = false;
  item.each_member([&](std::string_view name, Value value) {
    if (request.error) {
      return false;
    }
    if (name == "jsonrpc") {
      version = value.is(TokenType::String) && value.text() == "2.0";
      if (!version) {
        request.error = invalid_request(fmt::format("jsonrpc is {}; expected \"2.0\"", value.describe()));
      }
    } else if (name == "method") {
      method = value.is(TokenType::String);
      if (method) {
        request.method = value.text();
      } else {
        request.error = invalid_request(fmt::format("method is {}; expected a string", value.describe()));
      }
    } else if (name == "params") {
      if (value.is(TokenType::Object) || value.is(TokenType::Array)) {
        request.params = value;
      } else {
        request.error = invalid_request(fmt::format("params is {}; expected an object", value.describe()));
      }
    } else if (name != "id") {
      request.error = unknown_member(name);
    }
    return true;
  });
  if (!request.error && !version) {
    request.error = invalid_request("jsonrpc is missing; expected \"2.0\"");
  }
  if (!request.error && !method) {
    request.error = invalid_request("method is missing");
  }
  return request;
}

Result<void> read_envelope(Value root, std::size_t batch_items, Envelope& envelope) {
  envelope.requests.clear();
  envelope.batch = root.is(TokenType::Array);
  if (!envelope.batch) {
    envelope.requests.push_back(read_request(root));
    return {};
  }
  std::size_t count = 0;
  root.each_item([&](Value) { return ++count <= batch_items; });
  if (count == 0) {
    return invalid_request("an empty batch", "put at least one request into a batch");
  }
  if (count > batch_items) {
    return invalid_request(fmt::format("a batch of more than {} requests", batch_items), "send several batches");
  }
  root.each_item([&](Value item) {
    envelope.requests.push_back(read_request(item));
    return true;
  });
  return {};
}

std::string result_reply(const std::optional<std::string>& id, std::string_view result) {
  constexpr std::size_t kAround = 64;
  std::string text;
  text.reserve(result.size() + (id ? id->size() : 0) + kAround);
  text += R"({"jsonrpc":"2.0","id":)";
  text += id ? std::string_view(*id) : "null";
  text += R"(,"result":)";
  text += result;
  text += '}';
  return text;
}

std::string error_reply(const std::optional<std::string>& id, const Error& error) {
  return fmt::format(R"({{"jsonrpc":"2.0","id":{},"error":{}}})", id ? *id : "null", error_json(error));
}

std::string notification(std::string_view method, std::string_view params) {
  return fmt::format(R"({{"jsonrpc":"2.0","method":"{}","params":{}}})", method, params);
}

bool UsedIds::begin(const std::string& id) {
  if (std::find(in_flight_.begin(), in_flight_.end(), id) != in_flight_.end()) {
    return false;
  }
  const auto [at, fresh] = recent_.insert(id);
  if (!fresh) {
    return false;
  }
  in_flight_.push_back(id);
  if (order_.size() < kRemembered) {
    order_.push_back(&*at);
    return true;
  }
  recent_.erase(recent_.find(*order_[oldest_]));
  order_[oldest_] = &*at;
  oldest_ = (oldest_ + 1) % kRemembered;
  return true;
}

void UsedIds::end(const std::string& id) { std::erase(in_flight_, id); }

}  // namespace gradsync::rpc
