#pragma once
// Which data connections the jobs of this daemon want, which of them there are, and which other daemons have opened
// before they were wanted here. Of two nodes the one with the higher number dials; to each other node there are two
// connections.
//
// Invariants: a job hears one word for each `want`, unless it forgets it, or wants something else, first; then nothing
// of it is open here any more. A connection is for one epoch of one life at either end: any other is closed. Nothing
// waits longer than `kPatience`.
//
// Pure but for the dialling, which is an interface: time is a parameter, and sockets are values. Thread: io.

#include "base/clock.hpp"
#include "engine/peers/member_machine.hpp"
#include "engine/peers/peers.hpp"
#include "net/peer_types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::app {

/// Opens connections. Neither call is answered from within.
class DataDialling {
 public:
  virtual ~DataDialling() = default;
  virtual net::LinkId dial(const std::string& address, const net::DataLinkHello& hello) = 0;
  virtual void drop(net::LinkId dial) = 0;
};

/// What a job hears: `LinksReady` or `LinksFailed`.
using DataVerdict = std::pair<engine::JobNumber, engine::PeerEvent>;

class DataLinks {
 public:
  static constexpr Milliseconds kPatience{10'000};
  static constexpr std::size_t kMostEarly = 1'024;  ///< that wait for a job to want them
  static constexpr Milliseconds kFirstRetry{100};
  static constexpr Milliseconds kLongestRetry{1'000};  ///< doubles up to it

  /// `incarnation`: of this daemon. `dialling` outlives it.
  DataLinks(std::string incarnation, DataDialling& dialling);

  /// In place of what the job wanted before.
  [[nodiscard]] std::optional<DataVerdict> want(
      TimePoint now, engine::JobNumber job, engine::JobKey key, engine::OpenDataLinks wanted
  );

  /// The epoch of the job is over.
  void forget(engine::JobNumber job);

  /// The job is gone.
  void erase(engine::JobNumber job);

  [[nodiscard]] std::optional<DataVerdict> on_arrived(TimePoint now, net::DataLink link);
  [[nodiscard]] std::optional<DataVerdict> on_dialled(net::LinkId dial, UniqueFd socket);
  void on_dial_failed(TimePoint now, net::LinkId dial, const std::string& why);

  [[nodiscard]] std::vector<DataVerdict> on_time(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

 private:
  struct Slot {
    UniqueFd socket;
    net::LinkId dial = 0;  ///< under way; 0: none
    std::optional<TimePoint> retry_at = {};
    Milliseconds retry{kFirstRetry};
    std::string why = {};  ///< it came to nothing when it was tried last
  };

  struct End {
    engine::DataEnd end;
    std::array<Slot, 2> slots;  ///< by payload
  };

  struct Wish {
    engine::JobKey key;
    std::uint64_t epoch = 0;
    engine::NodeNumber own = 0;
    std::vector<End> ends;  ///< empty: nothing is wanted any more, and what comes for this epoch is too late
    TimePoint until;
  };

  struct Early {
    net::DataLink link;
    TimePoint until;
  };

  enum class Place : std::uint8_t { Taken, TooLate, TooEarly };

  [[nodiscard]] Place place(Wish& wish, net::DataLink& link) const;
  [[nodiscard]] std::pair<engine::JobNumber, Slot*> slot_of(net::LinkId dial);
  void take_early(Wish& wish);
  void dial(const Wish& wish, End& end, net::DataPayload payload);
  void give_up(Wish& wish);
  [[nodiscard]] std::optional<DataVerdict> ready(engine::JobNumber job);
  [[nodiscard]] static Error failure_of(const Wish& wish);

  const std::string incarnation_;
  DataDialling& dialling_;
  std::map<engine::JobNumber, Wish> wishes_;
  std::list<Early> early_;  ///< the oldest first
};

}  // namespace gradsync::app
