#pragma once
// Measures how long the handlers of the io thread take. Every entry point opens a `Turn`; everything inside it, nested
// turns included, counts as one. It costs two readings of the clock per turn, and a system call at most once in a
// millisecond.
//
// A turn longer than `kLongTurn` either computed for so long, which is a defect of ours, or was held up: by the
// scheduler, by a CPU quota, or in a call that blocks. The processor time of the thread tells the two apart.
//
// Thread: io only.

#include "base/clock.hpp"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace gradsync::net {

class IoWatch {
 public:
  static constexpr Milliseconds kLongTurn{50};

  explicit IoWatch(prometheus::Registry& registry);

  /// A turn that computes for longer than this ends the process and says what it did; 0: never. For tests.
  void abort_above(Milliseconds limit) { abort_above_ = limit; }

  class [[nodiscard]] Turn {
   public:
    /// `what` names the handler; `text`, of a message, has to live as long as the turn and names the method.
    Turn(IoWatch& watch, const char* what, std::string_view text = {});
    ~Turn();
    /// Time of the processor that the turn has used so far.
    [[nodiscard]] Duration computed() const;
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    friend IoWatch;

    IoWatch& watch_;
    const char* what_;
    std::string_view text_;
    TimePoint begin_{};
    bool outermost_;
  };

 private:
  /// A reading of the thread's processor time, which costs more than one of the clock and is reused while young.
  struct Processor {
    TimePoint at{};
    Duration used{};
  };

  /// Long turns of one reason since the last line in the log, of which there is one per minute.
  struct Unsaid {
    const char* how;
    TimePoint logged{};
    std::uint64_t turns = 0;
    Duration longest{};
    std::string what;
  };

  [[nodiscard]] Duration computed(TimePoint begin, TimePoint now) const;
  void begin(TimePoint now);
  void end(const Turn& turn, TimePoint now);
  static void note(Unsaid& unsaid, Duration took, std::string what, TimePoint now);
  [[nodiscard]] static std::string described(const char* what, std::string_view text);

  prometheus::Histogram& seconds_;
  prometheus::Counter& computed_;
  prometheus::Counter& held_up_;
  Milliseconds abort_above_{0};
  Processor processor_;
  bool inside_ = false;

  Unsaid unsaid_computed_{"computed", {}, 0, {}, {}};
  Unsaid unsaid_held_up_{"was held up", {}, 0, {}, {}};
};

}  // namespace gradsync::net
