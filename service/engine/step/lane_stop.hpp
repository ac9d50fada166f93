#pragma once
// Decides when lanes that were told to abort an attempt hang. Events in, decisions out; no clock and no lane of its
// own.
//
// A lane has `patience` to stop. Any report of it, of whatever job, shows that it works, and begins its time anew. The
// decision is taken once for an attempt, and stands until the attempt is over.

#include "base/clock.hpp"
#include "base/error.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace gradsync::engine {

class LaneStop {
 public:
  /// What ends work that does not stop by itself.
  enum class EndedBy : std::uint8_t {
    Restart,  ///< of the daemon, in whose process the lane is
    Kill,     ///< of the lane's worker, by its supervisor
  };

  /// A lane is told to abort.
  void on_told(TimePoint now) { told_ = now; }

  /// When the lanes must have stopped, where none reports after `moved`; nothing while it does not matter.
  [[nodiscard]] std::optional<TimePoint> next_deadline(TimePoint moved, Milliseconds patience) const;

  /// The answer to step calls from now on, where the lanes hang: gradients may still change. It is given out once.
  /// `failure`: why the attempt fails, where that is known.
  [[nodiscard]] std::optional<Error> on_time(
      TimePoint now,
      TimePoint moved,
      Milliseconds patience,
      const std::string& job,
      const std::optional<Error>& failure,
      EndedBy ended_by
  );

  /// The same answer, once it was given out.
  [[nodiscard]] const std::optional<Error>& stuck() const { return stuck_; }

 private:
  std::optional<TimePoint> told_;
  std::optional<Error> stuck_;
};

}  // namespace gradsync::engine
