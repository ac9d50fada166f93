#include "net/http/close_cause.hpp"

#include <boost/beast/websocket/rfc6455.hpp>
#include <fmt/format.h>

namespace gradsync::net {

using boost::beast::websocket::close_code;

CloseCause shutting_down() { return {close_code::going_away, "the daemon is shutting down"}; }

CloseCause binary_message() { return {close_code::unknown_data, "text frames only"}; }

CloseCause message_too_large(std::size_t most_bytes) {
  return {
      close_code::too_big,
      fmt::format("limit_exceeded: a message is larger than {} bytes ([limits] message_bytes)", most_bytes)};
}

CloseCause cut_within_character() { return {close_code::bad_payload, "a text ends within a character"}; }

CloseCause token_replaced() {
  return {close_code::policy_error, "unauthorized: a token was replaced; connect again with the one that is valid"};
}

CloseCause close_asked(std::string_view reason) { return {close_code::policy_error, std::string(reason)}; }

CloseCause too_much_half_sent(const HeldBytes::Excess& excess) {
  const std::string what =
      fmt::format("{} bytes of messages of {} are half sent, the limit is {}", excess.bytes, excess.whose, excess.most);
  return {
      close_code::try_again_later,
      "limit_exceeded: " + what,
      what + ": closing the largest connection of the largest process of these",
      spdlog::level::warn,
      RepeatedLine::Kind::HalfSent};
}

CloseCause share_used_up(Milliseconds waited) {
  return {
      close_code::try_again_later,
      fmt::format("limit_exceeded: this process used more than its share of the daemon for {} ms", waited.count()),
      fmt::format("closing a connection that waited for {} ms behind others of its process", waited.count()),
      spdlog::level::info,
      RepeatedLine::Kind::ShareUsedUp};
}

CloseCause message_not_ended(Milliseconds waited) {
  return {
      close_code::policy_error,
      fmt::format("invalid_request: a message was begun and not ended within {} ms", waited.count()),
      fmt::format("closing a connection that began a message and did not end it within {} ms", waited.count()),
      spdlog::level::info,
      RepeatedLine::Kind::NotEnded};
}

CloseCause not_initialized(Milliseconds waited) {
  return {
      close_code::policy_error,
      fmt::format("not_initialized: no session.initialize within {} ms", waited.count()),
      fmt::format("closing a connection that was not initialized within {} ms", waited.count()),
      spdlog::level::info,
      RepeatedLine::Kind::NotInitialized};
}

}  // namespace gradsync::net
