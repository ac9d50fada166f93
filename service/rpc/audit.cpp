#include "rpc/audit.hpp"

#include "rpc/core.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/json/plain_text.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace gradsync::rpc {

namespace {

/// The params that say what a call is about; all are short, and none is secret.
constexpr std::array<std::string_view, 6> kTold{"job", "rank", "world_size", "restart_count", "paused", "level"};

/// A text in quotes of its own has none: nobody writes fields of this line but the daemon.
std::string told(std::string_view text) {
  constexpr std::size_t kEnough = 128;  // more than is shown
  std::string plain(text.substr(0, kEnough));
  std::ranges::replace(plain, '"', '\'');
  return quote_escaped(plain);
}

std::string who(const Caller& caller) {
  const Peer& peer = caller.peer;
  const std::string connection =
      caller.connection == nullptr ? " via=http" : fmt::format(" connection={}", caller.connection->id);
  if (peer.local) {
    return fmt::format("uid={} pid={}{}", peer.uid, peer.pid, connection);
  }
  const char* const role = peer.privileged ? "operator" : peer.reads_only ? "reader" : "none";
  return fmt::format("token={} address={}{}", role, peer.address, connection);
}

}  // namespace

AuditedCall audited_call(std::string_view method, const Caller& caller, const std::optional<Value>& params) {
  std::string what = fmt::format("method={} {}", method, who(caller));
  if (caller.connection != nullptr && caller.connection->session != 0) {
    what += fmt::format(" of_job={} of_rank={}", told(caller.connection->job), caller.connection->rank);
  }
  if (params && params->is(TokenType::Object)) {
    for (const std::string_view key : kTold) {
      if (const std::optional<Value> value = params->member(key)) {
        what += fmt::format(" {}={}", key, value->is(TokenType::String) ? told(value->text()) : value->describe());
      }
    }
  }
  return {std::move(what), !caller.peer.privileged};
}

bool AuditLog::has_room(TimePoint now) {
  if (!second_ || now - *second_ >= std::chrono::seconds(1)) {
    if (left_out_ > 0) {
      spdlog::warn("audit: {} calls of callers without privileges were not listed", left_out_);
    }
    second_ = now;
    lines_ = 0;
    left_out_ = 0;
  }
  if (lines_ == kLimitedLines) {
    ++left_out_;
    return false;
  }
  ++lines_;
  return true;
}

void AuditLog::write(const AuditedCall& call, const Error* error, TimePoint now) {
  if (!call.limited || has_room(now)) {
    spdlog::info("audit: {} outcome={}", call.what, error == nullptr ? "ok" : kind_of(error->code));
  }
}

}  // namespace gradsync::rpc
