#pragma once
// Brings time to the engine: `advance` before every event, and a timer for its next deadline. Thread: io only.

#include "engine/engine.hpp"
#include "net/limits/io_watch.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace gradsync::app {

class EngineClock {
 public:
  EngineClock(boost::asio::io_context& io, engine::Engine& engine, net::IoWatch& watch)
      : engine_(engine), watch_(watch), timer_(io) {}

  /// One event of the engine: time first, then the event, then the timer for what it left behind. `what` and `text`
  /// name it to the watch.
  template <typename Work>
  auto turn(const char* what, std::string_view text, Work&& work) {
    const net::IoWatch::Turn watched{watch_, what, text};
    engine_.advance(std::chrono::steady_clock::now());
    const Rearm rearm{*this};
    return work();
  }

  template <typename Work>
  auto turn(const char* what, Work&& work) {
    return turn(what, {}, std::forward<Work>(work));
  }

  /// Called after every turn, those of the timer included; the drain looks there whether all is quiet.
  void after_turn(std::function<void()> hook) { after_turn_ = std::move(hook); }

  void stop();

 private:
  struct Rearm {
    EngineClock& clock;

    ~Rearm() {
      clock.arm();
      if (clock.after_turn_) {
        clock.after_turn_();
      }
    }
  };

  void arm();

  engine::Engine& engine_;
  net::IoWatch& watch_;
  boost::asio::steady_timer timer_;
  std::optional<TimePoint> armed_;  ///< a later deadline keeps an earlier alarm: it then fires once for nothing
  std::function<void()> after_turn_;
  bool stopped_ = false;
};

}  // namespace gradsync::app
