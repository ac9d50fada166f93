#pragma once
// The links of a job: one between each member's daemon and the coordinator's. What is on its way arrives in order,
// late, or not at all, and some of it twice. An end that is closed stays closed; the other end hears of it behind what
// was sent, unless the path is blocked.

#include "engine/peers/coordinator_machine.hpp"
#include "engine/peers/peer_message.hpp"
#include "rpc/peer/peer_codec.hpp"
#include "sim/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::sim {

class World;

using engine::JobNumber;
using engine::LinkNumber;

class Network {
 public:
  explicit Network(World& world);

  /// A member connects: `Daemon::on_connected` at both ends, or `on_not_connected`, follows.
  void open(std::size_t member, JobNumber job);

  void send(LinkNumber link, const engine::ToCoordinator& message);
  void send(LinkNumber link, const engine::ToMember& message);

  enum class End : std::uint8_t { Member, Coordinator };
  /// This end reads no more. The other hears `why`.
  void close(LinkNumber link, End end, const std::string& why);

  /// The same for all links of a job of the daemon. Returns them.
  std::vector<LinkNumber> close_all(std::size_t daemon, JobNumber job);

  /// The daemon is gone: some of what it sent last is lost. With its machine nobody is told either.
  void daemon_died(std::size_t daemon, bool machine);

  // faults
  void block(std::size_t member, bool up, bool down, Duration time);
  bool lose_one(std::size_t member);   ///< a message is lost, and with it the link; false: there is none
  bool half_open(std::size_t member);  ///< the member's end is gone, and the coordinator does not hear of it
  void slow_down(std::size_t member, Duration delay, Duration time);
  void heal();

  [[nodiscard]] std::size_t links() const { return links_.size(); }

  [[nodiscard]] Duration coordinator_time() const { return coordinator_time_; }

 private:
  using Message = std::variant<std::string, engine::ToCoordinator, engine::ToMember>;

  struct Frame {
    TimePoint due;
    std::optional<Message> message = {};  ///< none: the end
    std::string why = {};
    std::uint64_t sender_life = 0;
    bool joins = false;
  };

  struct Way {
    std::deque<Frame> frames;
    bool open = true;  ///< its receiver reads
    bool scheduled = false;
    rpc::PeerReader reader = {};
  };

  struct Link {
    std::size_t member = 0;
    JobNumber job = 0;  ///< of the member
    JobNumber coordinator_job = 0;
    Way up = {};
    Way down = {};
  };

  struct Path {
    bool up_blocked = false;
    bool down_blocked = false;
    Duration delay{};
    std::uint64_t blocks = 0;  ///< the newest one ends the blocking
    std::uint64_t slows = 0;
  };

  void connect(std::size_t member, JobNumber job, std::uint64_t life);
  void put(LinkNumber number, bool up, Frame frame);
  void schedule(LinkNumber number, bool up);
  void arrive(LinkNumber number, bool up);
  void hand_over(LinkNumber number, bool up, Message message);
  void hand_up(LinkNumber number, Message message);
  void hand_down(LinkNumber number, Message message);
  void end_here(LinkNumber number, End end, const std::string& why);
  void cut_tail(Way& way);
  void forget_if_closed(LinkNumber number);
  [[nodiscard]] bool blocked(std::size_t member, bool up) const;
  [[nodiscard]] std::vector<LinkNumber> of(std::size_t member) const;
  [[nodiscard]] std::vector<LinkNumber> ends_of(std::size_t daemon) const;

  [[nodiscard]] Way& way_of(Link& link, bool up) { return up ? link.up : link.down; }

  template <typename Value>
  void send_as(LinkNumber link, bool up, const Value& message);

  World& world_;
  std::map<LinkNumber, Link> links_;
  std::vector<std::set<LinkNumber>> of_member_;
  std::vector<Path> paths_;
  LinkNumber made_ = 0;
  Duration coordinator_time_{};  ///< of the machine that runs this: the coordinator's messages, read and written
};

}  // namespace gradsync::sim
