#pragma once
// The composition root: every part is built here from top to bottom, and destroyed in the reverse order. The stop order
// is one function, `drain`. `serve` and `run` are both this, with other reasons to stop.
//
// Thread: constructed and run on the main thread, which is the io thread.

#include "app/config/options.hpp"
#include "net/server.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace boost::asio {
class io_context;
}

namespace gradsync::app {

class Application {
 public:
  explicit Application(const Options& options);
  ~Application();
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  [[nodiscard]] boost::asio::io_context& io();

  /// Binds the listeners.
  [[nodiscard]] std::optional<net::StartFailure> start();

  /// Turns the io loop until the drain is over or `stop_at_once`.
  void run();

  /// Readiness off, no new connections and attaches; the step in flight may finish within `drain_ms`; then every
  /// connection is closed and `run` returns. The second call closes at once.
  void drain();

  /// Has the flight recorders of all jobs dumped.
  void dump_flights();

  /// `hook` is called once everything is closed; it releases other work that keeps the loop running.
  void on_closed(std::function<void()> hook);

  /// `run` returns as soon as the current handler ends.
  void stop_at_once();

  [[nodiscard]] bool draining() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace gradsync::app
