#include "rpc/envelope.hpp"

#include "base/text/text.hpp"
#include "rpc/error_codes.hpp"
#include "rpc/json/json_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <utility>

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
      fmt::format("id is {}; expected a string or an integer of 64 bits", value.describe()),
      "leave id out for a notification"
  );
}

/// Reads an integer of 64 bits, as read_id writes it. Integers from 2^63 on are treated as texts.
std::optional<std::uint64_t> integer_of(std::string_view id) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(id.data(), id.data() + id.size(), value);
  if (problem != std::errc{} || end != id.data() + id.size()) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(value);
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

std::optional<Error> read_member(std::string_view name, Value value, Request& request) {
  if (name == "jsonrpc") {
    if (!value.is(TokenType::String) || value.text() != "2.0") {
      return invalid_request(fmt::format("jsonrpc is {}; expected \"2.0\"", value.describe()));
    }
  } else if (name == "method") {
    if (!value.is(TokenType::String)) {
      return invalid_request(fmt::format("method is {}; expected a string", value.describe()));
    }
    request.method = value.text();
  } else if (name == "params") {
    if (!value.is(TokenType::Object) && !value.is(TokenType::Array)) {
      return invalid_request(fmt::format("params is {}; expected an object", value.describe()));
    }
    request.params = value;
  } else if (name != "id") {
    return unknown_member(name);
  }
  return std::nullopt;
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
    version = version || name == "jsonrpc";
    method = method || name == "method";
    request.error = read_member(name, value, request);
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

bool UsedIds::is_remembered(const Used& used, std::uint64_t use) const {
  return used.first_use + use + kRemembered >= uses_;
}

bool UsedIds::has(const Used& used, std::uint64_t value, std::string_view text) const {
  const std::uint64_t use = text.empty() ? value - used.value : 0;
  return used.text == text && (text.empty() || used.value == value) && use < used.uses && is_remembered(used, use);
}

bool UsedIds::begin(const std::string& id) {
  if (std::find(in_flight_.begin(), in_flight_.end(), id) != in_flight_.end()) {
    return false;
  }
  const std::optional<std::uint64_t> integer = integer_of(id);
  const std::uint64_t value = integer ? *integer : std::hash<std::string_view>{}(id);
  const std::string_view text = integer ? std::string_view{} : id;
  std::size_t place = used_.size();
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (has(used_[i], value, text)) {
      return false;
    }
    place = is_remembered(used_[i], used_[i].uses - 1) ? place : i;
  }
  if (integer && !used_.empty() && used_[newest_].text.empty() && used_[newest_].value + used_[newest_].uses == value) {
    ++used_[newest_].uses;
  } else {
    if (place == used_.size()) {
      used_.emplace_back();
    }
    used_[place].text = text;  // first: it may need memory
    used_[place].first_use = uses_;
    used_[place].uses = 1;
    used_[place].value = value;
    newest_ = place;
  }
  ++uses_;
  in_flight_.push_back(id);
  return true;
}

void UsedIds::end(const std::string& id) { std::erase(in_flight_, id); }

}  // namespace gradsync::rpc
