#include "net/http/request_access.hpp"

#include "net/http/http_rules.hpp"
#include "net/http/refusals.hpp"
#include "net/peer/link_context.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace gradsync::net {

namespace {

Refusal refuse_token(
    const ServerContext& context, Entrance entrance, const PeerIdentity& peer, std::string_view setting
) {
  context.metrics.refused_token.Increment();
  const char* const what = entrance == Entrance::Peer ? "link" : "request";
  context.log->write(
      LimitedLog::Kind::RefusedToken,
      spdlog::level::warn,
      fmt::format("a {} is refused: no token, or not that of {} address={}", what, setting, peer.address)
  );
  return wrong_token(setting);
}

bool on_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:");
}

/// A page of a stranger, whose DNS leads its name to this machine, has a browser ask under that name: at the health
/// port, or at a port that is forwarded to the unix socket. Other clients of that socket make a name up, without a
/// port.
bool names_another_host(const ServerContext& context, Entrance entrance, std::string_view host) {
  const bool forwarded = entrance == Entrance::Unix && host.find(':') != std::string_view::npos;
  const bool loopback_health = entrance == Entrance::Health && on_loopback(context.options.health_address);
  return (forwarded || loopback_health) && !is_loopback_host(host);
}

/// Whether a request needs a token, or brings one that shows it more.
bool asks_for_token(ServerContext& context, Entrance entrance, const Asking& asking) {
  if (entrance != Entrance::Tcp && entrance != Entrance::Health) {
    return false;
  }
  const PageAccess access = asking.page ? context.pages.access(*asking.page) : PageAccess::Jobs;
  if (entrance == Entrance::Tcp) {
    return access != PageAccess::Shell;
  }
  return access == PageAccess::Jobs && context.tokens.any() && asking.authorization.has_value();
}

/// A token that a page of another site sends is not meant for this daemon. Neither does such a page speak for the user
/// at whose forwarded port its browser reaches the unix socket: a browser lets each open a WebSocket there.
std::optional<Refusal> refuse_origin(const ServerContext& context, const Asking& asking) {
  if (!asking.origin || origin_matches_host(*asking.origin, asking.host)) {
    return std::nullopt;
  }
  context.metrics.refused_token.Increment();
  return Refusal{
      .status = 403,
      .text = fmt::format("unauthorized: origin '{}' is not this host '{}'", *asking.origin, asking.host),
  };
}

}  // namespace

std::optional<Refusal> refuse_access(
    ServerContext& context, Entrance entrance, PeerIdentity& peer, const Asking& asking
) {
  if (names_another_host(context, entrance, asking.host)) {
    return Refusal{
        .status = 421,
        .text = fmt::format("unauthorized: '{}' is no name of this port; ask for localhost", asking.host),
    };
  }
  peer.token = TokenRole::None;  // the requests of one connection may be of several users: a proxy sends them
  if (entrance == Entrance::Peer) {
    if (!bearer_matches(asking.authorization.value_or(""), context.peers->token)) {
      return refuse_token(context, entrance, peer, "[peer] token_file");
    }
  } else if (asks_for_token(context, entrance, asking)) {
    peer.token = context.tokens.role_of(asking.authorization.value_or(""));
    if (peer.token == TokenRole::None) {
      return refuse_token(context, entrance, peer, context.tokens.settings());
    }
  } else if (entrance != Entrance::Unix) {
    return std::nullopt;
  }
  return refuse_origin(context, asking);
}

}  // namespace gradsync::net
