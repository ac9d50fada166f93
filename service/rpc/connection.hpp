#pragma once
// The dispatcher's knowledge about one connection. Thread: io only.

#include "engine/types.hpp"
#include "rpc/envelope.hpp"
#include "rpc/handlers/subscriptions.hpp"
#include "rpc/message.hpp"
#include "rpc/types.hpp"
#include "rpc/wire/wire_session.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace gradsync::rpc {

/// Pages of a declaration that came so far.
struct Declaring {
  std::int64_t next_page = 0;
  std::uint64_t buffer = 0;
  std::shared_ptr<FairBudget::Share> held;  ///< for about the memory of the pages
  plan::RankDeclaration declaration;
};

struct Connection {
  Connection(ConnectionId id_, Peer peer_, const RpcLimits& limits)
      : id(id_), peer(peer_), subscriptions(limits.subscriptions, limits.event_queue) {}

  ConnectionId id;
  Peer peer;
  std::optional<InitializeParams> client;  ///< empty: not initialized
  engine::SessionId session = 0;           ///< 0: not attached
  std::string job;
  std::int64_t rank = -1;
  UsedIds ids;
  Declaring declaring;
  Subscriptions subscriptions;
  std::size_t waiting_bytes = 0;  ///< of events, as the outbox was told
  std::unique_ptr<Message> rest;  ///< of a batch, for later turns; none: all is done
};

}  // namespace gradsync::rpc
