#pragma once
// The nodes of one job with links between them: messages are late, come twice, now or much later, or are lost with
// their link; daemons are killed between any two of their actions and come again, with the record of their ranks or
// without; ranks are lost and replaced. Time is virtual, and all randomness is that of one seed. What a job does with
// the port is modelled here (`LinkedMachines::on_event`), and what has to hold is checked as it happens.

#include "engine/peers/coordinator_node.hpp"
#include "engine/peers/member_machine.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// Every content is one and the same declaration.
class OneDeclaration final : public DeclarationsByHash {
 public:
  [[nodiscard]] std::shared_ptr<const plan::RankDeclaration> find(const ContentHash&) const override { return one_; }

  [[nodiscard]] std::vector<PeerDeclaration> pages_of(const ContentHash&) const override { return {}; }

  [[nodiscard]] std::optional<Error> take(PeerDeclaration) override { return std::nullopt; }

 private:
  std::shared_ptr<const plan::RankDeclaration> one_ = std::make_shared<plan::RankDeclaration>();
};

class LinkedMachines {
 public:
  /// `travels`: gradients do, over data connections of each epoch.
  LinkedMachines(std::size_t nodes, std::uint64_t seed, bool travels = false);

  /// Something of what may happen, faults among it.
  void disturb();
  /// Without new faults: messages arrive, nodes come again, ranks ask, in the end time passes. A rank that is missing
  /// is replaced only when no node is in doubt any more, unless the record of the coordinator is gone as well.
  void go_on();

  /// The attempts that every node has answered as done, without a loss of its ranks meanwhile.
  [[nodiscard]] std::size_t done_by_all() const { return done_by_all_; }

  /// The attempts that some node heard nobody can know about.
  [[nodiscard]] std::size_t unknown() const { return unknown_; }

  /// The first thing that must not happen; empty: nothing.
  [[nodiscard]] const std::string& breach() const { return breach_; }

  /// What every machine waits for, for the message of a failure.
  [[nodiscard]] std::string state() const;

 private:
  enum class Step : std::uint8_t { Idle, Asked, Voted };

  /// A daemon, its two ranks, and the record that they keep alive.
  struct Node {
    std::unique_ptr<MemberMachine> member;         // but for node 0
    std::unique_ptr<CoordinatorNode> coordinator;  // node 0
    std::uint64_t incarnation = 0;
    std::optional<std::uint64_t> fuse = {};  // it is killed after so many actions
    bool whole = true;                       // both ranks are there and have declared
    // the record and the file of the policies
    std::uint64_t voted = 0;
    std::uint64_t done = 0;
    bool known = false;
    std::uint64_t policies = 0;  // what they remember; 0: nothing
    std::uint64_t staged = 0;
    // the job
    std::uint64_t waits = 0;     // the word in which the ranks wait
    std::uint64_t verdict = 0;   // the word for which a verdict has to come
    std::uint64_t prepared = 0;  // the epoch that stands here, begun or not
    std::uint64_t latest = 0;    // the highest of this incarnation
    bool connected = false;
    bool begun = false;
    std::uint64_t word = 0;
    bool measured = false;
    Step step = Step::Idle;
    LinkNumber link = 0;
    std::string why = {};  // its last epoch ended

    [[nodiscard]] bool up() const { return member || coordinator; }
  };

  struct Link {
    std::size_t node = 0;
    std::deque<ToCoordinator> up;
    std::deque<ToMember> down;
    std::vector<ToCoordinator> up_again;
    std::vector<ToMember> down_again;
    bool up_open = true;  // the coordinator's end
    bool down_open = true;
    bool up_ends = false;  // behind what is on its way
    bool down_ends = false;
  };

  using Links = std::map<LinkNumber, Link>;
  using Action = std::variant<NodeAction, MemberAction>;

  struct Queued {
    std::size_t node;
    std::uint64_t incarnation;
    Action action;
  };

  [[nodiscard]] std::uint64_t below(std::uint64_t most);

  [[nodiscard]] bool one_in(std::uint64_t many) { return below(many) == 0; }

  void fail(const std::string& what) { breach_ = breach_.empty() ? what : breach_; }

  // daemons and ranks (linked_machines.cpp)
  void start(std::size_t index);
  void kill(std::size_t index);
  void lose(std::size_t index);
  void lose_rank(std::size_t index);
  void replace_rank(std::size_t index);
  void ask(std::size_t index);
  void overdue(std::size_t index);
  void answer(std::size_t index, std::uint64_t word, Verdict verdict);
  [[nodiscard]] LocalsChanged locals(std::size_t index) const;
  [[nodiscard]] bool doubts() const;
  void local(std::size_t index, LocalEvent event);
  void disturb_links(std::uint64_t what);

  // links and time (linked_links.cpp)
  [[nodiscard]] std::vector<LinkNumber> busy() const;
  void deliver(LinkNumber number);
  void deliver_again();
  void cut(LinkNumber number);
  void close_member_end(LinkNumber number);
  void close_coordinator_end(LinkNumber number);
  void forget_if_closed(LinkNumber number);
  void hand_up(LinkNumber number, ToCoordinator message);
  void hand_down(LinkNumber number, ToMember message);
  void pass_time();
  void tick();
  void perform(std::size_t index, std::vector<NodeAction> actions);
  void perform(std::size_t index, std::vector<MemberAction> actions);
  void drain();
  void act(std::size_t index, NodeAction& action);
  void act(std::size_t index, MemberAction& action);
  void send_down(SendToMember& send);
  void open(std::size_t index);

  // the job of a node (linked_jobs.cpp)
  void on_event(std::size_t index, PeerEvent& event);
  void on_prepare(std::size_t index, const PrepareEpoch& prepare);
  void on_begin(std::size_t index, const BeginEpoch& begin);
  void on_sums(std::size_t index, const SumsKnown& sums);
  void on_verdict(std::size_t index, const VerdictReached& verdict);
  void on_refused(std::size_t index, const AttemptRefused& refused);
  void on_epoch_over(std::size_t index);
  void store_done(std::uint64_t word);
  void say_ready(std::size_t index);
  void on_connect(std::size_t index, const ConnectEpoch& connect);
  void on_data(std::size_t index, const OpenDataLinks& open);
  void say_connected(std::size_t index, std::uint64_t epoch);

  std::uint64_t random_;
  std::uint64_t calm_ = 1;  ///< one fault of so many happens: all faults together leave no step alone
  TimePoint now_{std::chrono::seconds(1000)};
  OneDeclaration declarations_;
  std::vector<Node> nodes_;
  Links links_;
  LinkNumber links_made_ = 0;
  std::deque<Queued> queue_;
  bool draining_ = false;
  bool travels_;
  bool disturbed_ = false;  ///< new faults may happen
  bool record_of_coordinator_lost_ = false;

  std::map<std::size_t, std::uint64_t> joined_;  // by node: the latest incarnation whose JOIN reached this coordinator
  std::map<std::uint64_t, std::set<std::size_t>> connected_;           // by epoch
  std::map<std::uint64_t, std::set<std::size_t>> asked_;               // by word
  std::map<std::uint64_t, std::map<std::size_t, std::string>> voted_;  // by word: result digests
  std::map<std::uint64_t, Verdict> verdicts_;                          // by word
  std::map<std::uint64_t, std::size_t> answered_;                      // by word: nodes that said done
  std::set<std::uint64_t> stored_;                                     // words that were StoreDone
  std::size_t done_by_all_ = 0;
  std::size_t unknown_ = 0;
  std::string breach_;
};

}  // namespace gradsync::engine
