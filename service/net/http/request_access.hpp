#pragma once
// Who may ask: the token that a request brings, the host that it names, and the site that sent it. Internal to net.

#include "net/http/refusals.hpp"
#include "net/server_context.hpp"

#include <optional>
#include <string_view>

namespace gradsync::net {

/// The parts of a request that decide whether it may be asked.
struct Asking {
  std::string_view host;
  std::optional<std::string_view> origin;
  std::optional<std::string_view> authorization;
  std::optional<PageRequest> page;  ///< of a GET or HEAD that is no upgrade
};

/// The refusal of a request that may not be asked at all, counted and logged; or none, and `peer` has the role of its
/// token.
[[nodiscard]] std::optional<Refusal> refuse_access(
    ServerContext& context, Entrance entrance, PeerIdentity& peer, const Asking& asking
);

}  // namespace gradsync::net
