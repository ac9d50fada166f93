#pragma once
// The port between one job of this daemon and its other nodes: the machine of its role, and what that wants to be sent.
//
// The role is known when rank 0 attaches, or when all ranks of the node have attached and none of them is rank 0, or
// when a rank says what a record knows. It is another one where rank 0 goes and others take all seats. Until then what
// the job tells is kept; the last word of it counts.
//
// Invariants: what a machine wants sent waits in `Outgoing` until the turn in which the job performed what the same
// call told it is over, so that `done` is in the record before any other node hears of it; the port never calls the
// job. Thread: io.

#include "base/fair_budget.hpp"
#include "engine/peers/coordinator_node.hpp"
#include "engine/peers/declarations/declaration_store.hpp"
#include "engine/peers/member_machine.hpp"
#include "engine/peers/peers.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::app {

/// The epoch is over: data connections that are being made for it are closed.
struct CloseDataLinks {};

using Outgoing = std::variant<
    engine::SendToMember,
    engine::CloseLink,
    engine::SendToCoordinator,
    engine::OpenLink,
    engine::DropLink,
    engine::OpenDataLinks,
    CloseDataLinks>;

class PeerPort final : public engine::Peers {
 public:
  struct Options {
    engine::JobNumber job = 0;
    engine::PeerJoin identity;
    std::string coordinator;  ///< as the ranks said it; may be empty where rank 0 is on this node
    std::string version;
    std::uint64_t first_epoch = 1;
    std::uint64_t retry_seed = 0;
    std::size_t most_nodes = 256;
    std::function<TimePoint()> now = std::chrono::steady_clock::now;
  };

  /// What the owner of links hears. Both are called in turns of the engine.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_told(engine::JobNumber job) = 0;  ///< there may be something to send, or another deadline
    virtual void on_gone(engine::JobNumber job) = 0;  ///< the job has ended, and the port with it
  };

  /// `declared` and the owner outlive the port.
  PeerPort(Options options, FairBudget& declared, Owner& owner);
  ~PeerPort() override;
  PeerPort(const PeerPort&) = delete;
  PeerPort& operator=(const PeerPort&) = delete;

  // engine::Peers
  [[nodiscard]] engine::PeerEvents tell(engine::LocalEvent event) override;
  [[nodiscard]] bool vote(const engine::Voted& voted) override;

  [[nodiscard]] bool alone() const override { return false; }

  [[nodiscard]] std::string node() const override { return options_.identity.node; }

  [[nodiscard]] std::string waits_for() const override;

  /// Rank 0 is on this node: links of other nodes are for it.
  [[nodiscard]] bool coordinates() const { return coordinator_ != nullptr; }

  [[nodiscard]] engine::JobNumber job() const { return options_.job; }

  [[nodiscard]] engine::JobKey key() const { return options_.identity.job; }

  // links of other nodes, at the coordinator
  [[nodiscard]] engine::PeerEvents on_link(engine::LinkNumber link, std::string seen_address);
  [[nodiscard]] engine::PeerEvents on_message(engine::LinkNumber link, engine::ToCoordinator message);
  [[nodiscard]] engine::PeerEvents on_link_ended(engine::LinkNumber link, const std::string& why);

  // the link to the coordinator
  [[nodiscard]] engine::PeerEvents on_own_link(std::string own_address);
  [[nodiscard]] engine::PeerEvents on_own_message(engine::ToMember message);
  [[nodiscard]] engine::PeerEvents on_own_link_ended(const std::string& why);

  [[nodiscard]] engine::PeerEvents on_time();
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  [[nodiscard]] std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }

  /// What followed for the job from its vote, beside the verdict.
  [[nodiscard]] engine::PeerEvents take_later() { return std::exchange(later_, {}); }

 private:
  [[nodiscard]] engine::PeerEvents told(engine::LocalEvent event);
  [[nodiscard]] engine::PeerEvents choose_role(engine::LocalsChanged changed);
  [[nodiscard]] bool are_all(const std::vector<std::int64_t>& ranks) const;
  void retire();
  void close_data();
  void keep_contents(const engine::LocalsChanged& changed);
  [[nodiscard]] engine::MemberMachine::Options member_options(std::string coordinator) const;

  template <typename Actions>
  [[nodiscard]] engine::PeerEvents taken(Actions actions);

  Options options_;
  Owner& owner_;
  engine::DeclarationStore declarations_;
  std::unique_ptr<engine::CoordinatorNode> coordinator_;
  std::unique_ptr<engine::MemberMachine> member_;
  std::vector<std::int64_t> paused_;  ///< said before the role was known
  std::vector<Outgoing> outgoing_;
  engine::PeerEvents later_;
  bool linked_ = false;       ///< to the coordinator
  bool data_wanted_ = false;  ///< data connections, of the epoch that stands
  std::string unreachable_;   ///< why it was not reached when it was tried last
};

}  // namespace gradsync::app
