#pragma once
// The data connections between daemons, over which gradients travel. The daemons have real sockets; the world has the
// other end of each, and carries what comes out of one to the other one: late, in pieces, or not at all. A connection
// loses nothing from its middle, as TCP does, but it may end anywhere, and it may fall silent.

#include "base/unique_fd.hpp"
#include "net/data_types.hpp"
#include "sim/clock.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::sim {

class World;

class DataNetwork {
 public:
  using Number = std::uint64_t;

  explicit DataNetwork(World& world);

  /// A daemon connects to another one: `Daemon::on_data_arrived` there, and here `on_data_connected`, or
  /// `on_data_failed`.
  Number dial(std::size_t from, std::size_t to, net::DataLinkHello hello);
  void drop(Number dial);

  /// The daemon to which the connection goes has taken it.
  void answer(Number dial);

  /// Takes over what daemons have written, and sees which sockets they have closed. After all that a daemon does.
  void collect();

  /// Before its sockets close: some of what it sent last is lost, in the middle of a message perhaps. With its machine
  /// nobody is told.
  void daemon_died(std::size_t daemon, bool machine);

  // faults; false: there was nothing to do it to
  bool cut();           ///< a connection ends, in the middle of a message where one is there
  void cut_in_next();   ///< the connection of the message that is sent next ends in the middle of it
  void kill_in_next();  ///< likewise its daemon
  bool half_open();     ///< both ends believe in it, until the kernels find out
  bool repeat();        ///< a message comes once more
  void slow_down(std::size_t a, std::size_t b, Duration delay, Duration time);
  void block(std::size_t from, std::size_t to, bool back, Duration time);
  void block_node(std::size_t node, bool out, bool in, Duration time);
  void heal();

  /// What must not be left in the end; empty: nothing is.
  [[nodiscard]] std::string left_over() const;

  [[nodiscard]] std::uint64_t messages() const { return messages_; }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  using Bytes = std::vector<std::byte>;

  struct Frame {
    TimePoint due;
    Bytes bytes = {};      ///< none: the end
    std::size_t done = 0;  ///< that have been delivered
  };

  /// From an end to the other one.
  struct Way {
    std::deque<Frame> frames = {};
    Bytes begun = {};  ///< of a message that its sender has not written as a whole yet
    Bytes last = {};   ///< the message that was delivered last
    bool scheduled = false;
    bool over = false;  ///< its receiver has seen the end
  };

  struct End {
    std::size_t daemon = 0;
    UniqueFd far = {};
    bool closed = false;  ///< by the daemon
  };

  struct Connection {
    std::array<End, 2> ends = {};
    std::array<Way, 2> ways = {};  ///< from the end of that number
    bool silent = false;           ///< what is sent arrives nowhere
  };

  struct Dial {
    std::size_t from = 0;
    std::size_t to = 0;
    std::uint64_t life = 0;  ///< of the daemon that connects
    net::DataLinkHello hello;
    UniqueFd socket = {};  ///< of the daemon that connects, once the other has the connection
    bool dropped = false;
  };

  struct Path {
    bool blocked = false;
    Duration delay{};
    std::uint64_t blocks = 0;  ///< the newest one ends the blocking
    std::uint64_t slows = 0;
  };

  enum class Ends : std::uint8_t { Nothing, Connection, Daemon };

  void end_in(Number number, std::size_t side);
  void cut_at(Number number);
  void arrive(Number dial);
  void fail(Number dial, const std::string& why);
  [[nodiscard]] Duration time_of_dial(const Dial& dial);
  [[nodiscard]] std::array<UniqueFd, 2> connect(const Dial& dial);
  void drain(Number number, std::size_t side);
  void cut_into_messages(Number number, std::size_t side);
  void close_side(Number number, std::size_t side);
  void put(Number number, std::size_t side, Frame frame);
  void schedule(Number number, std::size_t side);
  void deliver(Number number, std::size_t side);
  [[nodiscard]] bool write(Connection& connection, std::size_t side, Frame& frame, std::size_t bytes);
  void end(Number number, std::size_t side);
  [[nodiscard]] bool cut_in_message(Connection& connection, std::size_t side);
  void break_later(Number number, Duration least, Duration most);
  void schedule_between(std::size_t from, std::size_t to);
  [[nodiscard]] Path& path(std::size_t from, std::size_t to);
  [[nodiscard]] Number any_connection();

  World& world_;
  std::size_t daemons_;
  UniqueFd poll_;
  std::map<Number, Connection> connections_;
  std::map<Number, Dial> dials_;
  std::vector<Path> paths_;
  Number made_ = 0;
  Ends next_ = Ends::Nothing;  ///< what ends in the middle of the message that is sent next
  std::uint64_t messages_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace gradsync::sim
