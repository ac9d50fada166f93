#pragma once
// The things that handlers use: the engine, the connections, and the caller. Thread: io only.

#include "base/fair_budget.hpp"
#include "engine/engine.hpp"
#include "rpc/audit.hpp"
#include "rpc/connection.hpp"
#include "rpc/metrics.hpp"
#include "rpc/reply.hpp"
#include "rpc/types.hpp"

#include <functional>
#include <map>
#include <memory>
#include <set>

namespace gradsync::rpc {

struct Core {
  static constexpr std::uint64_t kWaitingBatchBytes = 64U << 20;

  engine::Engine& engine;
  Outbox& outbox;
  ServerIdentity identity;
  RpcLimits limits;
  SetLogLevel set_log_level;
  ExamineNode examine_node;
  DumpJobs dump_jobs;
  RpcMetrics& metrics;
  /// Text of batches whose rest waits for a later turn.
  FairBudget waiting_batches = {kWaitingBatchBytes, identity.own_uid};
  std::map<ConnectionId, Connection> connections = {};
  std::set<ConnectionId> subscribed = {};  ///< those of them that have subscriptions: events look at no other
  /// Sessions of closed connections whose process still lives, so that its exit reaches the engine.
  std::map<ConnectionId, engine::SessionId> orphans = {};
  AuditLog audit = {};

  [[nodiscard]] ServerMoment moment() const { return identity.moment ? identity.moment() : ServerMoment{}; }

  /// The uid that the peer may see the jobs of; nullopt: all.
  [[nodiscard]] static std::optional<std::uint32_t> visible_uid(const Peer& peer) {
    const bool all = peer.local ? peer.uid == 0 : peer.privileged || peer.reads_only;
    return all ? std::nullopt : std::optional<std::uint32_t>(peer.uid);
  }
};

/// The caller. `connection` is null for `POST /rpc`, and after the connection closed.
struct Caller {
  Peer peer;
  Connection* connection = nullptr;
};

}  // namespace gradsync::rpc
